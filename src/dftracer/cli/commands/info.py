"""`dftracer info`."""

from __future__ import annotations

import argparse
from typing import Any

from dftracer.cli.common import add_paths, console, open_trace, print_json
from dftracer.cli.main import EXIT_OK

HELP = "List the files of a trace: who wrote them, how much is in them, how they ended."
EXAMPLE = "dftracer info traces/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)


def run(args: argparse.Namespace) -> int:
    from dftracer.load.facts import file_facts

    rows = [f for p in open_trace(args).processes for f in [file_facts(p)]]
    if args.json:
        print_json({"files": rows})
        return EXIT_OK
    from rich.table import Table

    from dftracer.report.words import bytes_text, count_text, seconds_text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, justify in (
        ("rank", "right"),
        ("pid", "right"),
        ("parent", "right"),
        ("host", "left"),
        ("events", "right"),
        ("size", "right"),
        ("time", "right"),
        ("state", "left"),
        ("file", "left"),
    ):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for r in rows:
        table.add_row(*(_text(r, bytes_text, count_text, seconds_text)))
    console().print(table)
    if args.verbose:
        for r in rows:
            print(f"{r['file']}: {r['command'] or 'command unknown'}; end: {r['end']}")
    return EXIT_OK


def _text(r: dict[str, Any], size: Any, count: Any, seconds: Any) -> list[str]:
    return [
        "-" if r["rank"] is None else str(r["rank"]),
        str(r["pid"]),
        "-" if r["ppid"] is None else str(r["ppid"]),
        r["host"],
        count(r["events"]),
        size(r["bytes"]),
        "-" if r["span_s"] is None else seconds(r["span_s"]),
        "; ".join(r["problems"]) or "complete",
        str(r["file"]),
    ]
