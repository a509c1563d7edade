"""`dftracer info`."""

from __future__ import annotations

import argparse
from typing import Any

from dftracer._text import Column, bytes_text, count_text, seconds_text
from dftracer.cli.heads import processes_of
from dftracer.cli.main import EXIT_OK
from dftracer.cli.showing import print_json
from dftracer.cli.table import print_table
from dftracer.cli.trace_arguments import add_paths, take_newest

HELP = "List the files of a trace: who wrote them, how much is in them, how they ended."
EXAMPLE = """\
dftracer info traces/
dftracer info traces/ --json"""
_COLUMNS = (
    Column("rank", right=True),
    Column("pid", right=True),
    Column("parent", right=True, drop=1),
    Column("host", drop=2),
    Column("events", right=True),
    Column("size", right=True),
    Column("time", right=True),
    Column("state"),
    Column("file", lead=True, whole=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, newest=True)


def run(args: argparse.Namespace) -> int:
    take_newest(args)
    from dftracer.load.facts import file_facts

    rows = [file_facts(p) for p in processes_of(args)]
    if args.json:
        print_json({"files": rows})
        return EXIT_OK
    print_table(_COLUMNS, [_texts(r) for r in rows])
    if args.verbose:
        for r in rows:
            print(f"{r['file']}: {r['command'] or 'command unknown'}; end: {r['end']}")
    return EXIT_OK


def _texts(r: dict[str, Any]) -> list[str]:
    return [
        "-" if r["rank"] is None else str(r["rank"]),
        str(r["pid"]),
        "-" if r["ppid"] is None else str(r["ppid"]),
        r["host"],
        _count(r),
        bytes_text(r["bytes"]),
        "-" if r["span_s"] is None else seconds_text(r["span_s"]),
        "; ".join(r["problems"]) or "complete",
        str(r["file"]),
    ]


def _count(r: dict[str, Any]) -> str:
    """Of a remote file only the number of all records is known, from its end."""
    found = r["records"] if r["events"] is None else r["events"]
    return "-" if found is None else count_text(found)
