"""`dftracer validate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dftracer._text import plural
from dftracer.cli.heads import processes_of
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.showing import print_json
from dftracer.cli.table import print_wrapped
from dftracer.cli.trace_arguments import add_paths, take_newest

if TYPE_CHECKING:
    from dftracer.link.checks import Checked

HELP = "Check every record of a trace and every file of a collected directory; exit code 1 for problems."
EXAMPLE = """\
dftracer validate traces/ && echo complete
dftracer validate collected/ --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, newest=True)


def run(args: argparse.Namespace) -> int:
    take_newest(args)
    collected = _collected(args.paths)
    rows, missing = _our_traces(args, bool(collected))
    for checked in collected:
        missing = sorted({*missing, *checked.missing_ranks})
    bad = [r for r in rows if r["problems"]]
    ok = not bad and not missing and all(c.ok for c in collected)
    if args.json:
        told: dict[str, Any] = {"ok": ok, "missing_ranks": missing, "files": rows}
        if collected:
            told["ranks"] = [r for c in collected for r in c.ranks]
            told["problems"] = [p for c in collected for p in c.problems]
        print_json(told)
        return EXIT_OK if ok else EXIT_PROBLEMS
    for r in bad:
        print_wrapped(f"{r['file']}: {'; '.join(r['problems'])}", 2)
    for checked in collected:
        _print_collected(checked, args.quiet)
    if missing:
        print_wrapped(
            f"{'rank' if len(missing) == 1 else 'ranks'} without a trace: {', '.join(map(str, missing))}", 2
        )
    if not args.quiet and (rows or not collected):
        records = sum(r["records"] for r in rows)
        files, faulty = plural(len(rows), "file"), plural(len(bad), "file")
        print_wrapped(f"{files}, {plural(records, 'record')}, {faulty} with problems")
        if bad:
            print_wrapped(
                "`dftracer repair` makes clean copies; events that were never written cannot be recovered."
            )
    return EXIT_OK if ok else EXIT_PROBLEMS


def _our_traces(args: argparse.Namespace, others: bool) -> tuple[list[dict[str, Any]], list[int]]:
    """Facts about our own trace files, and the ranks without one; other traces do not need ours."""
    from dftracer.load.facts import file_facts

    try:
        processes = processes_of(args)
    except CommandError:
        if others:
            return [], []
        raise
    rows = [file_facts(p) for p in processes]
    seen = {p.rank for p in processes if p.rank is not None}
    world = max((p.world_size or 0 for p in processes), default=0)
    return rows, sorted(set(range(world)) - seen) if seen else []


def _collected(paths: list[str]) -> list[Checked]:
    """PyTorch's own traces in the directories."""
    from dftracer.link.discover import NothingToLink, holds_torch_traces

    folders = [Path(p) for p in paths if holds_torch_traces(Path(p))]
    if not folders:
        return []
    from dftracer.link.checks import check_directory

    out = []
    for folder in folders:
        try:
            out.append(check_directory(folder))
        except NothingToLink:
            continue
    return out


def _print_collected(checked: Checked, quiet: bool) -> None:
    for problem in checked.problems:
        print_wrapped(problem, 2)
    for r in checked.ranks:
        for problem in r["problems"]:
            print_wrapped(f"rank {r['rank']}: {problem}", 2)
        if not quiet and r["coverage"] is not None:
            nodes = plural(r["et_nodes"], "node")
            print(f"rank {r['rank']}: {r['joined']} of {nodes} joined ({r['coverage']:.2%})")
