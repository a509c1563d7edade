"""`dftracer check`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import print_json
from dftracer.cli.sides import input_files, open_side
from dftracer.cli.trace_arguments import take_newest

if TYPE_CHECKING:
    from dftracer.compare.checks import LimitFile

HELP = "Fail when a run is slower than a baseline or exceeds a limit: a gate for CI."
EXAMPLE = """\
dftracer check traces/ --baseline main.json --max-regression 5%
dftracer check traces/ --limit 'fetch_wait.share < 0.1' --limit 'step.p95 < 0.5'
dftracer check traces/ --limits limits.toml --markdown summary.md --junit check.xml"""
OUTPUT = "the terminal; .md, .xml (JUnit), .json and .txt choose the format"

_MAX_REGRESSION = "5%"
_ENDINGS = (".md", ".xml", ".json", ".txt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    parser.add_argument("--markdown", metavar="FILE", help="write a summary in Markdown, for a job summary")
    parser.add_argument("--junit", metavar="FILE", help="write JUnit XML")


def run(args: argparse.Namespace) -> int:
    from dftracer.compare.checks import BadLimit

    args.paths = [args.run] if args.run else []
    take_newest(args)
    args.run = args.paths[0]
    try:
        return _check(args)
    except BadLimit as e:
        raise CommandError(str(e)) from None


def _check(args: argparse.Namespace) -> int:
    from dftracer.compare import compare, to_json
    from dftracer.compare.checks import (
        Check,
        against_baseline,
        answer_of,
        check_junit,
        check_limit,
        check_lines,
        check_markdown,
        headline_of,
        parse_share,
    )
    from dftracer.compare.showing import notes

    asked = _asked(args)
    outputs = _outputs(args, [p for p in (args.run, asked.baseline) if p])
    side = open_side(args, args.run)
    checks: list[Check] = []
    told = None
    if asked.baseline:
        told = compare(open_side(args, asked.baseline), side)
        most = asked.max_regression if asked.max_regression is not None else parse_share(_MAX_REGRESSION)
        checks += against_baseline(told, most, asked.max_stage_regression)
    checks += [check_limit(side, limit) for limit in asked.limits]
    said = notes(told) if told is not None else []
    ok = all(c.ok for c in checks)
    answer = {
        "ok": ok,
        "answer": answer_of(checks),
        "verdict": headline_of(args.run, checks),
        "checks": [c.to_json() for c in checks],
        "comparison": None if told is None else to_json([told]),
    }
    texts = {
        ".md": lambda: check_markdown(args.run, checks, said),
        ".xml": lambda: check_junit(args.run, checks),
        ".json": lambda: json.dumps(answer, indent=1, ensure_ascii=False) + "\n",
        ".txt": lambda: "\n".join(check_lines(args.run, checks)) + "\n",
    }
    for path, kind in outputs:
        with appearing(path) as place:
            place.write_text(texts[kind](), encoding="utf-8", errors="backslashreplace")
    if args.json and not args.output:
        print_json(answer)
    elif not args.quiet or not ok:
        print("\n".join([*check_lines(args.run, checks), *said]))
    return EXIT_OK if ok else EXIT_PROBLEMS


def _asked(args: argparse.Namespace) -> LimitFile:
    """The command line takes precedence over the file."""
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
    """Files to write, each with its kind; rejected before the long work, not after it."""
    out = [(Path(p), kind) for p, kind in ((args.markdown, ".md"), (args.junit, ".xml")) if p]
    if args.output:
        ending = ".json" if args.json else Path(args.output).suffix
        if ending not in _ENDINGS:
            raise CommandError(
                f"{args.output}: the name must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
            )
        out.append((Path(args.output), ending))
    inputs = input_files(runs)
    for path, _ in out:
        # A job summary file already exists, empty, before the job begins.
        empty = path.is_file() and path.stat().st_size == 0
        check_output(path, inputs, force=args.force or empty)
    return out
