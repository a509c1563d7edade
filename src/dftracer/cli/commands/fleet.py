"""`dftracer fleet`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dftracer._text import seconds_text
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import counting, print_json
from dftracer.cli.table import print_table
from dftracer.cli.trace_arguments import span
from dftracer.load.files import NoTraces

HELP = "Find the slow ranks, groups of ranks and steps among thousands, from step rows alone."
EXAMPLE = """\
dftracer fleet traces/
dftracer fleet traces/ --html fleet.html
dftracer fleet s3://bucket/job --json
dftracer fleet traces/ --dask tcp://scheduler:8786"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="where the step rows (*.rows) are (default: traces/, otherwise the current directory)",
    )
    parser.add_argument("--run", metavar="ID", help="which run (default: the newest)")
    parser.add_argument("--steps", type=span, metavar="FROM:TO", help="only these steps (default: all)")
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="read on a Dask cluster, tcp://host:port or 'local' (default: in this process)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with a heat map of all ranks and steps")


def run(args: argparse.Namespace) -> int:
    from dftracer.analyze.fleet import read_fleet
    from dftracer.report.fleet import (
        GROUP_COLUMNS,
        RANK_COLUMNS,
        STEP_COLUMNS,
        fleet_lines,
        fleet_page,
        short_ranks,
    )

    paths = args.paths or ["traces" if Path("traces").is_dir() else "."]
    for path in paths:
        if "://" not in path and not Path(path).exists():
            raise CommandError(f"{path} does not exist")
    if args.html:
        check_output(Path(args.html), [], force=args.force)
    try:
        with counting(args, "files") as tick:
            fleet = read_fleet(paths, args.dask, args.run, args.steps, tick)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    lines = fleet_lines(fleet)
    if args.json:
        print_json(fleet.to_json())
    elif not (args.quiet and args.html):
        print("\n".join(lines))
        groups = [
            (short_ranks(g.ranks), g.host or "", g.stage, seconds_text(g.seconds)) for g in fleet.slow_groups
        ]
        ranks = [(str(r.rank), r.stage, seconds_text(r.seconds)) for r in fleet.slow_ranks]
        steps = [(str(s.step), seconds_text(s.seconds)) for s in fleet.slow_steps]
        for columns, rows in ((GROUP_COLUMNS, groups), (RANK_COLUMNS, ranks), (STEP_COLUMNS, steps)):
            if rows:
                print()
                print_table(columns, rows)
    if len(fleet.runs) > 1 and args.run is None and not args.quiet:
        print(
            f"dftracer fleet: run {fleet.runs[0]}, the newest; also there: {', '.join(fleet.runs[1:4])}",
            file=sys.stderr,
        )
    if args.html:
        place = Path(args.html)
        with appearing(place) as made:
            made.write_text(fleet_page(fleet, "Fleet"), encoding="utf-8", errors="replace")
        if not args.quiet:
            print(f"{place}: {lines[0]}", file=sys.stderr if args.json else sys.stdout)
    return EXIT_OK
