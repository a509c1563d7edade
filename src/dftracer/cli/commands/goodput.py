"""`dftracer goodput`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import counting, print_json
from dftracer.cli.table import print_table
from dftracer.load.files import NoTraces

HELP = "Show how much of a job's time, over all its restarts, made new steps, and what took the rest."
EXAMPLE = """\
dftracer goodput traces/
dftracer goodput traces/ --name llama-7b
dftracer goodput traces/ --json
dftracer goodput traces/ --html goodput.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="where the traces of the job's attempts are (default: traces/, otherwise the current directory)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the runs of this name are the attempts (default: the newest run, and those it goes on from)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with the parts and the steps over time")


def run(args: argparse.Namespace) -> int:
    from dftracer.analyze.goodput import goodput
    from dftracer.report.jobs import (
        ATTEMPT_COLUMNS,
        PART_COLUMNS,
        attempt_texts,
        goodput_page,
        goodput_sentence,
        part_texts,
    )

    paths = args.paths or ["traces" if Path("traces").is_dir() else "."]
    if args.html:
        check_output(Path(args.html), [], force=args.force)
    try:
        with counting(args, "runs") as tick:
            found = goodput(paths, args.name, tick)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    if args.json:
        print_json(found.to_json())
    elif not (args.quiet and args.html):
        print(goodput_sentence(found))
        print()
        print_table(PART_COLUMNS, part_texts(found))
        print()
        print_table(ATTEMPT_COLUMNS, [attempt_texts(i + 1, a) for i, a in enumerate(found.attempts)])
    if any(a.main is not None and a.main.from_rows for a in found.attempts) and not args.quiet:
        print("dftracer goodput: where traces are gone, this is from the step rows", file=sys.stderr)
    if found.left_out and not args.quiet and args.name is None:
        others = f"{plural(len(found.left_out), 'other run')} in the same place"
        told = "is no attempt of this job" if len(found.left_out) == 1 else "are no attempts of this job"
        print(f"dftracer goodput: {others} {told}; --name chooses", file=sys.stderr)
    if args.html:
        place = Path(args.html)
        with appearing(place) as made:
            made.write_text(goodput_page(found, "Goodput"), encoding="utf-8", errors="replace")
        if not args.quiet:
            print(f"{place}: {goodput_sentence(found)}", file=sys.stderr if args.json else sys.stdout)
    return EXIT_OK
