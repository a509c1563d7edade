"""Runs against each other: `dftracer compare`, and `dftracer check` for CI."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dftracer._console import safe_console
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError, Verb
from dftracer.cli.outputs import (
    appearing,
    check_output,
    check_suffix,
    console,
    print_json,
    progress,
    write_text,
)
from dftracer.cli.trace_arguments import newest_folders, take_newest
from dftracer.format.trace_names import NoTraces, find_files

if TYPE_CHECKING:
    from dftracer.compare import Side
    from dftracer.compare.checks import LimitFile


class Compare(Verb):
    help = "Compare runs: what changed, by how much, and how certain that is."
    example = """\
dftracer compare traces/before traces/after
dftracer compare before.json after.json -o compare.html
dftracer compare traces/a traces/b traces/c --json
dftracer compare a1 a2 a3 -- b1 b2 b3              # the spread between equal runs counts"""
    output = "the terminal; .html, .md, .json and .txt choose the format"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "runs",
            nargs="*",
            metavar="RUN",
            help="trace files, directories or saved `report --json`; each is compared with the first,"
            " or, with -- between them, the runs before it with those after it"
            " (default: the two newest runs of one command under traces/ or in the current directory)",
        )
        parser.add_argument("--md", action="store_true", help="print Markdown")

    def run(self, args: argparse.Namespace) -> int:
        if not args.runs:
            args.runs = _two_newest(args)
        if len(args.runs) < 2:
            raise CommandError("give at least two runs: dftracer compare BEFORE AFTER")
        groups = _groups(args)
        kind = _format(args)
        if args.output:
            check_output(Path(args.output), _input_files(args.runs), force=args.force)
        from dftracer.compare import compare_all, html_page, markdown, print_comparison, to_json
        from dftracer.compare.comparison import group_of

        comparisons = compare_all([group_of([_open_side(args, path) for path in group]) for group in groups])
        if not args.output:
            if kind == ".json":
                print_json(to_json(comparisons))
            elif kind == ".md":
                print(markdown(comparisons), end="")
            else:
                print_comparison(comparisons, console())
            return EXIT_OK
        with (
            appearing(Path(args.output)) as temporary,
            temporary.open("w", encoding="utf-8", errors="backslashreplace") as out,
        ):
            if kind == ".json":
                json.dump(to_json(comparisons), out, indent=1, ensure_ascii=False)
                out.write("\n")
            elif kind == ".md":
                out.write(markdown(comparisons))
            elif kind == ".html":
                out.write(html_page(comparisons, f"dftracer: {' and '.join(args.runs)}"))
            else:
                print_comparison(comparisons, safe_console(file=out, width=120))
        return EXIT_OK


def _two_newest(args: argparse.Namespace) -> list[str]:
    """The newest run, and the one before it that ran the same command."""
    from dftracer.analyze.history import runs_below

    folders = newest_folders(rows=True)
    commands: dict[Path, object] = {}
    for folder in folders:
        with contextlib.suppress(NoTraces):
            commands[folder] = runs_below([folder])[0].identity()["command"]
        if len(commands) > 1 and commands[folder] == next(iter(commands.values())):
            before, after = str(folder), str(next(iter(commands)))
            if not args.quiet:
                print(f"dftracer compare: {before} and {after}", file=sys.stderr)
            return [before, after]
    raise CommandError(
        "no run given, and no two runs of one command are under traces/ or in the current directory"
    )


def _groups(args: argparse.Namespace) -> list[list[str]]:
    """The runs of each side: single ones, or two groups with -- between them."""
    words = list(args.words)
    if "--" not in words:
        return [[path] for path in args.runs]
    after = words[words.index("--") + 1 :]
    before = args.runs[: len(args.runs) - len(after)]
    if not before or not after:
        raise CommandError("give runs on both sides of --: dftracer compare A1 A2 -- B1 B2")
    return [before, after]


def _format(args: argparse.Namespace) -> str:
    """The format to write, from the options or the suffix of -o."""
    suffixes = (".html", ".md", ".json", ".txt")
    asked = ".json" if args.json else ".md" if args.md else ""
    if not args.output:
        return asked or ".txt"
    found = Path(args.output).suffix
    if asked and found in suffixes and found != asked:
        raise CommandError(f"{args.output} ends in {found}, but --{asked[1:]} asks for {asked}: choose one")
    return asked or check_suffix(args.output, suffixes)


def _open_side(args: argparse.Namespace, path: str) -> Side:
    """One run; a trace is analysed, a saved report is read."""
    from dftracer.analyze import analyze
    from dftracer.compare import NotComparable, is_report, read_report, side_of
    from dftracer.report.contents import comparable

    try:
        if is_report(path):
            return read_report(path)
        with progress(args, f"reading {path}") as bar:
            analysis = analyze(path, progress=bar)
        if analysis.from_rows and not args.quiet:
            print(
                f"dftracer {args.verb}: {path}: the traces are gone; what needs events is missing here",
                file=sys.stderr,
            )
        return side_of(path, comparable(analysis))
    except (NoTraces, NotComparable) as e:
        raise CommandError(str(e)) from None


def _input_files(paths: list[str]) -> list[Path]:
    """All files that belong to the inputs, so that none of them is written to."""
    out: list[Path] = []
    for path in paths:
        if Path(path).is_file():
            out.append(Path(path))
            continue
        with contextlib.suppress(NoTraces):  # the reader gives a better message
            out += find_files([path])
    return out


_MAX_REGRESSION = "5%"


class Check(Verb):
    help = "Fail when a run is slower than a baseline or exceeds a limit: a gate for CI."
    example = """\
dftracer check traces/ --baseline main.json --max-regression 5%
dftracer check traces/ --limit 'fetch_wait.share < 0.1' --limit 'step.p95 < 0.5'
dftracer check traces/ --limits limits.toml --markdown summary.md --junit check.xml"""
    output = "the terminal; .md, .xml (JUnit), .json and .txt choose the format"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "run",
            nargs="?",
            metavar="RUN",
            help="a trace file, a directory or a saved `report --json`"
            " (default: the newest run under traces/ or in the current directory)",
        )
        parser.add_argument("--baseline", metavar="RUN", help="the run to compare with")
        parser.add_argument(
            "--max-regression",
            metavar="SHARE",
            help="how much slower than the baseline a step may be (default: 5%%)",
        )
        parser.add_argument(
            "--max-stage-regression", metavar="SHARE", help="the same for each stage (default: not checked)"
        )
        parser.add_argument("--limits", metavar="TOML", help="a file of limits")
        parser.add_argument(
            "--limit", metavar="'FIGURE < N'", action="append", default=[], help="a limit, may be repeated"
        )
        parser.add_argument(
            "--markdown", metavar="FILE", help="write a summary in Markdown, for a job summary"
        )
        parser.add_argument("--junit", metavar="FILE", help="write JUnit XML")

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.compare.checks import BadLimit

        args.paths = [args.run] if args.run else []
        take_newest(args, rows=True)
        args.run = args.paths[0]
        try:
            return _check(args)
        except BadLimit as e:
            raise CommandError(str(e)) from None


def _check(args: argparse.Namespace) -> int:
    from dftracer.compare import checks, compare, to_json
    from dftracer.compare.showing import notes

    limits = _limits(args)
    outputs = _outputs(args, [p for p in (args.run, limits.baseline) if p])
    side = _open_side(args, args.run)
    results: list[checks.Check] = []
    comparison = None
    if limits.baseline:
        comparison = compare(_open_side(args, limits.baseline), side)
        most = limits.max_regression
        most = checks.parse_share(_MAX_REGRESSION) if most is None else most
        results += checks.against_baseline(comparison, most, limits.max_stage_regression)
    results += [checks.check_limit(side, limit) for limit in limits.limits]
    remarks = notes(comparison) if comparison is not None else []
    ok = all(result.ok for result in results)
    answer = {
        "ok": ok,
        "answer": checks.answer_of(results),
        "verdict": checks.headline_of(args.run, results),
        "checks": [result.to_json() for result in results],
        "comparison": None if comparison is None else to_json([comparison]),
    }
    lines = checks.check_lines(args.run, results)
    texts = {
        ".md": lambda: checks.check_markdown(args.run, results, remarks),
        ".xml": lambda: checks.check_junit(args.run, results),
        ".json": lambda: json.dumps(answer, indent=1, ensure_ascii=False) + "\n",
        ".txt": lambda: "\n".join(lines) + "\n",
    }
    for path, suffix in outputs:
        write_text(path, texts[suffix]())
    if args.json and not args.output:
        print_json(answer)
    elif not args.quiet or not ok:
        print("\n".join([*lines, *remarks]))
    return EXIT_OK if ok else EXIT_PROBLEMS


def _limits(args: argparse.Namespace) -> LimitFile:
    """What to check; the command line takes precedence over the file."""
    from dftracer.compare.checks import LimitFile, parse_limit, parse_share, read_limits

    out = read_limits(args.limits) if args.limits else LimitFile()
    out.limits += [parse_limit(text) for text in args.limit]
    out.baseline = args.baseline or out.baseline
    for name in ("max_regression", "max_stage_regression"):
        if getattr(args, name) is not None:
            setattr(out, name, parse_share(getattr(args, name)))
            if not out.baseline:
                raise CommandError(f"--{name.replace('_', '-')} needs a --baseline to compare with")
    if not out.baseline and not out.limits:
        raise CommandError("nothing to check: give --baseline RUN, --limit 'FIGURE < N' or --limits FILE")
    return out


def _outputs(args: argparse.Namespace, runs: list[str]) -> list[tuple[Path, str]]:
    """Files to write, each with the suffix of its format; rejected before the long work, not after it."""
    out = [(Path(p), suffix) for p, suffix in ((args.markdown, ".md"), (args.junit, ".xml")) if p]
    if args.output:
        suffix = ".json" if args.json else check_suffix(args.output, (".md", ".xml", ".json", ".txt"))
        out.append((Path(args.output), suffix))
    inputs = _input_files(runs)
    for path, _ in out:
        # A job summary file already exists, empty, before the job begins.
        empty = path.is_file() and path.stat().st_size == 0
        check_output(path, inputs, force=args.force or empty)
    return out
