"""Looking at a run: `dftracer report`, `view` and `top`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dftracer._console import has_unicode, safe_console
from dftracer._packages import need
from dftracer.cli.main import EXIT_OK, CommandError, Verb
from dftracer.cli.outputs import (
    appearing,
    check_output,
    check_suffix,
    console,
    print_json,
    progress,
    write_text,
)
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    open_trace,
    output_path,
    recording_now,
    refuse_empty_selection,
    refuse_filters,
    take_newest,
)
from dftracer.format.trace_names import NoTraces
from dftracer.load.find import find_files, recover

if TYPE_CHECKING:
    from dftracer.analyze import Analysis


_SUFFIXES = (".html", ".md", ".json", ".txt")
# Importing the packages of the analysis makes very many objects, all of which stay.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class Report(Verb):
    help = "Show where the time went, why, and what would help."
    example = """\
dftracer report
dftracer report traces/
dftracer report traces/ -o report.html
dftracer report traces/ --ranks 0,1 --json"""
    output = "the terminal; .html, .md, .json and .txt choose the format"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)
        parser.add_argument("--html", metavar="FILE", help="write one self-contained HTML page")
        parser.add_argument("--md", action="store_true", help="print Markdown, short enough for a chat")
        parser.add_argument(
            "--run",
            metavar="ID|all",
            help="which run to report; `all`: all files as one run (default: newest)",
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

    def run(self, args: argparse.Namespace) -> int:
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        with _without_blas_threads():
            take_newest(args, rows=True)
            _choose_format(args)
            _check_page(args)
            from dftracer.load._scan import keep_freed_memory

            keep_freed_memory()  # before the first thread is started, which some imports do
            from dftracer.analyze import analyze
            from dftracer.analyze.analysis import analyze_rows, rows_left

        shown = args.paths[0]
        recover(args.paths)
        try:
            rows, others = rows_left(args.paths, args.run)
        except NoTraces as e:
            raise CommandError(str(e)) from None
        if rows:
            refuse_filters(args, "only step rows are left of this run, which cannot be filtered")
            if not args.quiet:
                note = "the traces are gone; what follows is from the step rows"
                print(f"dftracer report: {note}", file=sys.stderr)
            analysis = analyze_rows(rows, others)
        else:
            with contextlib.ExitStack() as stack:
                _take_steps(args, stack)
                trace = open_trace(args, torch=True)
                with progress(args, "reading") as bar:
                    analysis = analyze(trace, dask=args.dask, progress=bar, run=args.run)
        if not analysis.trace_facts["events"] and not analysis.from_rows:
            refuse_empty_selection(args, trace)
        analysis.flops = args.flops
        _print_report(args, analysis)
        if args.html:
            from dftracer.report import html_page

            write_text(Path(args.html), html_page(analysis, f"dftracer: {shown}"), errors="replace")
            if not args.quiet:
                where = sys.stderr if args.json or args.md else sys.stdout
                print(f"HTML report: {Path(args.html).resolve()}", file=where)
        return EXIT_OK


@contextlib.contextmanager
def _without_blas_threads() -> Iterator[None]:
    """Import NumPy inside this: it must not start one thread per core, which would spin for nothing."""
    given = os.environ.get(_BLAS_THREADS)
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if given is None:
            del os.environ[_BLAS_THREADS]


def _take_steps(args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
    """With --steps, report the slice of these steps: most events have no label, and workers are ahead."""
    if args.steps is None:
        return
    from dftracer.cli.commands.copies import Slice

    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dftracer-steps-"))
    Slice().run(
        argparse.Namespace(**{**vars(args), "output": directory, "force": True, "json": False, "quiet": True})
    )
    args.paths, args.steps, args.time, args.epochs = [directory], None, None, None


def _choose_format(args: argparse.Namespace) -> None:
    """The format that the suffix of -o means; an unknown suffix is an error, not a text file."""
    if not args.output:
        return
    path = Path(args.output)
    asked = [kind for kind, on in ((".json", args.json), (".md", args.md)) if on]
    if asked and (path.suffix in (asked[0], "") or path.suffix not in _SUFFIXES):
        return
    if asked:
        raise CommandError(
            f"{path} ends in {path.suffix}, but --{asked[0][1:]} asks for {asked[0]}: choose one"
        )
    if not _is_device(path):
        check_suffix(path, _SUFFIXES)
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
    if args.html:
        try:
            traces = find_files(args.paths)
        except NoTraces:  # only profiler files, or nothing: the reader says which
            traces = []
        check_output(Path(args.html), traces, force=args.force)


def _print_report(args: argparse.Namespace, analysis: Analysis) -> None:
    """The report as JSON, as Markdown or for the terminal; to a file if -o names one."""
    if getattr(args, "only_page", False):
        return
    if args.quiet and args.html and not (args.json or args.md or args.output):
        return
    from dftracer.report import document, markdown, print_report

    with contextlib.ExitStack() as stack:
        out: IO[str] = sys.stdout
        if args.output:
            temporary = stack.enter_context(appearing(output_path(args, "")))
            out = stack.enter_context(temporary.open("w", encoding="utf-8", errors="backslashreplace"))
        if args.md:
            out.write(markdown(analysis))
        elif args.json:
            json.dump(document(analysis), out, indent=1, ensure_ascii=not has_unicode(out))
            out.write("\n")
        else:
            print_report(analysis, safe_console(file=out, width=120) if args.output else console())


class View(Verb):
    help = (
        "Look at every event of a trace in the browser: zoom, search, compare two runs, follow a running job."
    )
    example = """\
dftracer view
dftracer view traces/
dftracer view before/ after/
dftracer view traces/ --follow --port 8080 --no-open"""
    output = "nothing is written"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "paths",
            nargs="*",
            metavar="DIR",
            help="a trace directory or file, two to compare runs"
            " (default: the newest run under traces/ or in the current directory)",
        )
        parser.add_argument(
            "--port",
            type=_port,
            default=0,
            metavar="N",
            help="port on 127.0.0.1; 0: any free one (default: 0)",
        )
        parser.add_argument(
            "--no-open", action="store_true", help="print the address without opening a browser"
        )
        parser.add_argument(
            "--run", metavar="ID|all", help="which run to show; `all`: all files as one run (default: newest)"
        )
        parser.add_argument("--follow", action="store_true", help="follow a running job's trace as it grows")
        parser.add_argument(
            "--no-cache",
            action="store_true",
            help="write nothing to the cache directory (~/.cache/dftracer/view)",
        )

    def run(self, args: argparse.Namespace) -> int:
        threshold = gc.get_threshold()
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        with _without_blas_threads():
            for module in ("starlette", "uvicorn"):
                need(module, "view")
            for module in ("numpy", "polars"):
                need(module)
            if args.output:
                raise CommandError("view writes no file; `dftracer report -o page.html` makes a page to keep")
            take_newest(args)
            if len(args.paths) > 2:
                raise CommandError("give one trace, or two to see them side by side")
            from dftracer.view.server import PortTaken, Session, serve
            from dftracer.view.source import FollowedSource, Source

        gc.set_threshold(*threshold)  # it may run for days
        try:
            kind = FollowedSource if args.follow else Source
            sources = [kind([p], args.run, cache=not args.no_cache) for p in args.paths]
            serve(Session(sources, follow=args.follow), args.port, not args.no_open, args.quiet)
        except (NoTraces, PortTaken) as e:
            raise CommandError(str(e)) from None
        return EXIT_OK


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 0 to 65535")
    return port


class Top(Verb):
    help = (
        "Watch a run: stages of the last steps per rank, rates, loader wait, device, I/O, hottest files,"
        " drops."
    )
    example = """\
dftracer top
dftracer top traces/ --last 60
dftracer top 12345
dftracer top traces/ --once --json"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "target",
            nargs="?",
            metavar="DIR|PID",
            help="a directory of traces, or a process id (default: where this user's programs are recording,"
            " otherwise the newest run under traces/ or in the current directory)",
        )
        parser.add_argument("--once", action="store_true", help="print one snapshot and exit, for scripts")
        parser.add_argument(
            "--last",
            type=_seconds,
            default=30.0,
            metavar="SECONDS",
            help="the period the figures cover (default: 30)",
        )
        parser.add_argument(
            "--interval",
            type=_seconds,
            default=1.0,
            metavar="SECONDS",
            help="time between two snapshots (default: 1)",
        )

    def run(self, args: argparse.Namespace) -> int:
        paths = _folders_of(args.target)
        from dftracer.live import Recent
        from dftracer.report.snapshot import take_snapshot
        from dftracer.top import print_snapshot, run_screen

        with Recent(paths, args.last) as recent:
            try:
                if args.once or args.json or not sys.stdout.isatty():
                    snapshot = take_snapshot(recent)
                    if args.json:
                        print_json(snapshot.to_json())
                    else:
                        print_snapshot(snapshot, console())
                    return EXIT_OK
                run_screen(lambda: take_snapshot(recent), args.interval)
            except NoTraces as problem:
                raise CommandError(f"{', '.join(map(str, paths))}: {problem}") from None
        return EXIT_OK


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400 seconds")
    return value


def _folders_of(target: str | None) -> list[Path]:
    """The directories of traces that a directory, a process id or nothing stands for."""
    if target is None:
        return [recording_now(rows=True)]
    if Path(target).exists():
        return [Path(target)]
    if target.isdigit():
        from dftracer.live import traces_of_process

        folders = traces_of_process(int(target))
        if not folders:
            raise CommandError(
                f"process {target} writes no trace that is visible here; is it running, and is it yours?"
            )
        return folders
    raise CommandError(f"{target} is neither a directory nor a process id")
