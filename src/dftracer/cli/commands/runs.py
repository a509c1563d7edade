"""`dftracer runs`."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import counting, print_json
from dftracer.cli.table import print_table
from dftracer.load.files import NoTraces

if TYPE_CHECKING:
    from dftracer.analyze.history import RunRow

HELP = "List the runs in a place, the newest first: what they were, how fast, how they ended."
EXAMPLE = """\
dftracer runs
dftracer runs traces/ --name resnet50
dftracer runs traces/ --json
dftracer runs traces/ --html runs.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="where to look (default: traces/, otherwise the current directory)",
    )
    parser.add_argument("--name", metavar="NAME", help="only runs of this name (default: all)")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with the trend of each figure over the runs of one name, and a report of each run"
        " into FILE-reports/",
    )


def run(args: argparse.Namespace) -> int:
    from dftracer.analyze.history import list_runs

    paths = args.paths or ["traces" if Path("traces").is_dir() else "."]
    if args.html:
        check_output(Path(args.html), [], force=args.force)
    try:
        with counting(args, "runs") as tick:
            rows = list_runs(paths, tick)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    if args.name is not None:
        names = sorted({row.name for row in rows if row.name})
        rows = [row for row in rows if row.name == args.name]
        if not rows:
            known = f"; there are {', '.join(names)}" if names else "; no run has a name"
            raise CommandError(f"no run is called {args.name!r}{known}")
    if args.json:
        print_json([row.to_json() for row in rows])
    elif not (args.quiet and args.html):
        from dftracer.report.jobs import RUN_COLUMNS, run_texts

        print_table(RUN_COLUMNS, [run_texts(row) for row in rows])
    if args.html:
        _write_page(args, rows, paths)
    return EXIT_OK


def _write_page(args: argparse.Namespace, rows: list[RunRow], paths: list[str]) -> None:
    from dftracer.report.jobs import runs_page

    place = Path(args.html)
    with counting(args, "reports") as tick:
        reports = _write_reports(rows, place.with_name(f"{place.stem}-reports"), tick)
    with appearing(place) as made:
        text = runs_page(rows, f"Runs in {', '.join(paths)}", reports)
        made.write_text(text, encoding="utf-8", errors="replace")
    if not args.quiet:
        where = sys.stderr if args.json else sys.stdout
        print(f"{place}: {plural(len(rows), 'run')}", file=where)


def _write_reports(rows: list[RunRow], folder: Path, tick: object) -> dict[str, str]:
    """A report of each run, unless an earlier page has left it; by path and id of the run."""
    from dftracer.analyze import analyze
    from dftracer.report import html_page

    folder.mkdir(exist_ok=True)
    out = {}
    for done, row in enumerate(rows):
        stamps = "".join(f"{f}:{Path(f).stat().st_size}:{Path(f).stat().st_mtime_ns};" for f in row.files)
        file = folder / f"{hashlib.sha256(stamps.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.html"
        try:
            if not file.exists():
                analysis = analyze(row.files, run="all")
                with appearing(file) as made:
                    made.write_text(
                        html_page(analysis, f"dftracer: {row.path}"), encoding="utf-8", errors="replace"
                    )
            out[f"{row.path}/{row.run or ''}"] = f"{folder.name}/{file.name}"
        except NoTraces:  # killed before it recorded anything
            pass
        if callable(tick):
            tick(done + 1, len(rows))
    return out
