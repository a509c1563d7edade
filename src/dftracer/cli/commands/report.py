"""`dftracer report`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dftracer._terminal import has_unicode, safe_console
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import console, progress
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    open_trace,
    output_path,
    refuse_empty_selection,
    refuse_filters,
    take_newest,
)
from dftracer.load.files import NoTraces, find_files, recover

if TYPE_CHECKING:
    from dftracer.analyze import Analysis

HELP = "Show where the time went, why, and what would help."
EXAMPLE = """\
dftracer report
dftracer report traces/
dftracer report traces/ -o report.html
dftracer report traces/ --ranks 0,1 --json"""
OUTPUT = "the terminal; .html, .md, .json and .txt choose the format"

_ENDINGS = (".html", ".md", ".json", ".txt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, newest=True)
    parser.add_argument("--html", metavar="FILE", help="write one self-contained HTML page")
    parser.add_argument("--md", action="store_true", help="print Markdown, short enough for a chat")
    parser.add_argument(
        "--run", metavar="ID|all", help="which run to report; `all`: all files as one run (default: newest)"
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="analyse on a Dask cluster, tcp://host:port or 'local' (default: in this process)",
    )
    parser.add_argument(
        "--flops",
        type=float,
        metavar="N",
        help="FLOPs of one step of one rank, for FLOP/s and MFU (default: from the trace)",
    )
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    take_newest(args)
    _choose_format(args)
    _check_page(args)
    from dftracer.analyze import analyze
    from dftracer.analyze.analysis import only_rows

    shown = args.paths[0]
    recover(args.paths)
    if only_rows(args.paths):
        refuse_filters(args, "only step rows are left here, which cannot be filtered")
        analysis = _analyze_rows(args)
    else:
        with contextlib.ExitStack() as stack:
            _take_steps(args, stack)
            trace = open_trace(args, torch=True)
            with progress(args, "reading") as bar:
                analysis = analyze(trace, dask=args.dask, progress=bar, run=args.run)
    if not analysis.trace_facts["events"] and not analysis.from_rows:
        refuse_empty_selection(args, trace)
    analysis.flops = args.flops
    _write_text(args, analysis)
    if args.html:
        from dftracer.report import html_page

        with appearing(Path(args.html)) as place:
            page = html_page(analysis, f"dftracer: {shown}")
            place.write_text(page, encoding="utf-8", errors="replace")
        if not args.quiet:
            where = sys.stderr if args.json or args.md else sys.stdout
            print(f"HTML report: {Path(args.html).resolve()}", file=where)
    return EXIT_OK


def _analyze_rows(args: argparse.Namespace) -> Analysis:
    from dftracer.analyze import analyze

    if not args.quiet:
        print("dftracer report: the traces are gone; what follows is from the step rows", file=sys.stderr)
    try:
        return analyze(args.paths, run=args.run)
    except NoTraces as e:
        raise CommandError(str(e)) from None


def _take_steps(args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
    """With --steps, report the slice of these steps: most events have no label, and workers are ahead."""
    if args.steps is None:
        return
    from dftracer.cli.commands import slice as slicing

    place = stack.enter_context(tempfile.TemporaryDirectory(prefix="dftracer-steps-"))
    slicing.run(
        argparse.Namespace(**{**vars(args), "output": place, "force": True, "json": False, "quiet": True})
    )
    args.paths, args.steps, args.time, args.epochs = [place], None, None, None


def _choose_format(args: argparse.Namespace) -> None:
    """The format that the suffix of -o means; an unknown suffix is an error, not a text file."""
    if not args.output:
        return
    path = Path(args.output)
    asked = [kind for kind, on in ((".json", args.json), (".md", args.md)) if on]
    if asked and (path.suffix in (asked[0], "") or path.suffix not in _ENDINGS):
        return
    if asked:
        raise CommandError(
            f"{path} ends in {path.suffix}, but --{asked[0][1:]} asks for {asked[0]}: choose one"
        )
    if path.suffix not in _ENDINGS and not _is_device(path):
        raise CommandError(f"{path}: the name must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}")
    args.json, args.md = path.suffix == ".json", path.suffix == ".md"
    if path.suffix == ".html":
        if args.html:
            raise CommandError("-o and --html both name a page: give only one")
        args.html, args.output = args.output, None
        args.only_page = True


def _is_device(path: Path) -> bool:
    """A pipe or a terminal: its name does not imply a format."""
    return path.exists() and not path.is_file()


def _check_page(args: argparse.Namespace) -> None:
    """Reject bad outputs before the long work, not after it."""
    page = Path(args.html) if args.html else None
    if page is not None:
        try:
            traces = find_files(args.paths)
        except NoTraces:  # only profiler files, or nothing: the reader says which
            traces = []
        check_output(page, traces, force=args.force)


def _write_text(args: argparse.Namespace, analysis: Analysis) -> None:
    """The report as JSON, as Markdown or for the terminal; to a file if -o names one."""
    if getattr(args, "only_page", False):
        return
    if args.quiet and args.html and not (args.json or args.md or args.output):
        return
    from dftracer.report import document, markdown, print_report

    with contextlib.ExitStack() as stack:
        out: IO[str] = sys.stdout
        if args.output:
            place = stack.enter_context(appearing(output_path(args, "")))
            out = stack.enter_context(place.open("w", encoding="utf-8", errors="backslashreplace"))
        if args.md:
            out.write(markdown(analysis))
        elif args.json:
            json.dump(document(analysis), out, indent=1, ensure_ascii=not has_unicode(out))
            out.write("\n")
        else:
            print_report(analysis, safe_console(file=out, width=120) if args.output else console())
