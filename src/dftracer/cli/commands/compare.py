"""`dftracer compare`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from dftracer._terminal import safe_console
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import console, print_json
from dftracer.cli.sides import input_files, open_side
from dftracer.cli.trace_arguments import newest_folders
from dftracer.format.files import NoTraces

HELP = "Compare runs: what changed, by how much, and how certain that is."
EXAMPLE = """\
dftracer compare traces/before traces/after
dftracer compare before.json after.json -o compare.html
dftracer compare traces/a traces/b traces/c --json
dftracer compare a1 a2 a3 -- b1 b2 b3              # the spread between equal runs counts"""
OUTPUT = "the terminal; .html, .md, .json and .txt choose the format"

_ENDINGS = (".html", ".md", ".json", ".txt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="trace files, directories or saved `report --json`; each is compared with the first,"
        " or, with -- between them, the runs before it with those after it"
        " (default: the two newest runs of one command under traces/ or in the current directory)",
    )
    parser.add_argument("--md", action="store_true", help="print Markdown")


def run(args: argparse.Namespace) -> int:
    if not args.runs:
        args.runs = _two_newest(args)
    if len(args.runs) < 2:
        raise CommandError("give at least two runs: dftracer compare BEFORE AFTER")
    groups = _groups(args)
    kind = _kind(args)
    if args.output:
        check_output(Path(args.output), input_files(args.runs), force=args.force)
    from dftracer.compare import compare_all, html_page, markdown, print_comparison, to_json
    from dftracer.compare.comparison import group_of

    comparisons = compare_all([group_of([open_side(args, path) for path in group]) for group in groups])
    if not args.output:
        if kind == ".json":
            print_json(to_json(comparisons))
        elif kind == ".md":
            print(markdown(comparisons), end="")
        else:
            print_comparison(comparisons, console())
        return EXIT_OK
    with (
        appearing(Path(args.output)) as place,
        place.open("w", encoding="utf-8", errors="backslashreplace") as out,
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
    from dftracer.load.heads import processes_of
    from dftracer.load.runs import find_runs

    folders = newest_folders()
    commands: dict[Path, object] = {}
    for folder in folders:
        with contextlib.suppress(NoTraces):
            commands[folder] = find_runs(processes_of([str(folder)]))[0].identity()["command"]
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


def _kind(args: argparse.Namespace) -> str:
    """What to write, according to the options or the suffix of -o."""
    asked = ".json" if args.json else ".md" if args.md else ""
    if not args.output:
        return asked or ".txt"
    ending = Path(args.output).suffix
    if asked and ending in _ENDINGS and ending != asked:
        raise CommandError(f"{args.output} ends in {ending}, but --{asked[1:]} asks for {asked}: choose one")
    if asked:
        return asked
    if ending not in _ENDINGS:
        raise CommandError(
            f"{args.output}: the name must end in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
        )
    return ending
