"""`python -m bench`: measure, save the results, write `docs/performance.md` and the figures of the README."""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import machine, report, rivals
from bench.results import Results, Row, Run
from bench.rounds import ROOT, Bench
from bench.subjects import (
    decorator,
    files,
    import_time,
    loop,
    off,
    others,
    size,
    soak,
    span,
    start,
    throughput,
    update,
)

RESULTS = ROOT / "bench" / "results.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "performance.md"

SUBJECTS: dict[str, Callable[[Bench], list[Row]]] = {
    "span": span.rows,
    "decorator": decorator.rows,
    "loop": loop.rows,
    "update": update.rows,
    "off": off.rows,
    "throughput": throughput.rows,
    "size": size.rows,
    "files": files.rows,
    "import": import_time.rows,
    "start": start.rows,
    "soak": soak.rows,
    "others": others.rows,
}


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)}; default all"
    )
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes; saves nothing")
    parser.add_argument("--no-rivals", action="store_true", help="ours alone")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--page", type=Path, default=PAGE, help="the Markdown page made of them")
    parser.add_argument("--render", action="store_true", help="only write the page from the saved results")
    arguments = parser.parse_args(argv)
    for name in arguments.subjects:
        if name not in SUBJECTS:
            parser.error(f"no subject {name!r}; there are {', '.join(SUBJECTS)}")
    return arguments


def _say(row: Row) -> None:
    rival = f"  rival {row.rival:.4g}" if row.rival is not None else ""
    ratio = f"  ratio {row.ratio:.1f}" if row.ratio is not None else ""
    sys.stdout.write(f"{row.what}: {row.ours:.4g} {row.unit}{rival}{ratio}\n")
    for goal in row.goals:
        sys.stdout.write(f"    {'met   ' if goal.met else 'MISSED'} {goal.text} ({goal.value:.4g})\n")
    for note in row.notes:
        sys.stdout.write(f"    note   {note}\n")
    sys.stdout.flush()


def _measure(arguments: argparse.Namespace, bench: Bench) -> Results:
    names = arguments.subjects or list(SUBJECTS)
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    run = Run(today, names, machine.circumstances())
    results = Results(machine.facts(), others.versions(bench), [run])
    for name in names:
        rows = SUBJECTS[name](bench)
        for row in rows:
            _say(row)
        (results.side if name == "others" else results.rows).extend(rows)
    return results


def main(argv: list[str]) -> int:
    arguments = _arguments(argv)
    if not arguments.render:
        rival = None if arguments.no_rivals else rivals.ensure()
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            bench = Bench(Path(sys.executable), rival, arguments.quick, Path(directory))
            measured = _measure(arguments, bench)
        if arguments.quick:
            return 0
        if arguments.subjects and arguments.json.is_file():
            measured.take_over(Results.load(arguments.json))
            measured.sort(list(SUBJECTS))
        measured.save(arguments.json)
    arguments.page.parent.mkdir(parents=True, exist_ok=True)
    results = Results.load(arguments.json)
    arguments.page.write_text(report.markdown(results))
    if arguments.page == PAGE:
        README.write_text(report.with_figures(README.read_text(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
