"""Managing the rings that killed processes have left: `dftracer repair --rings`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.showing import print_json

__all__ = ["add_ring_arguments", "recover_rings"]

_DEAD = "dead"
_OUT_OF_SIGHT = "not visible here"
_ELSEWHERE = "of another host or container"
_UNFINISHED = "killed during its set-up"


def add_ring_arguments(parser: argparse.ArgumentParser) -> None:
    """What `repair` offers for rings."""
    parser.add_argument(
        "--rings",
        action="store_true",
        help="list the rings of killed processes and recover them: into their traces, into those found under"
        " PATH if they were moved, else into new files in -o",
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="with --rings: discard the events of rings that have no trace; only those of traces under PATH",
    )
    parser.add_argument(
        "--all", action="store_true", help="with --discard: the rings of every run, wherever its traces are"
    )


def recover_rings(args: argparse.Namespace) -> int:
    """List every ring, with what became of it."""
    from dftracer import _core

    if args.discard and not (args.paths or args.all):
        raise CommandError("whose events to discard? Name the PATH of their traces, or --all for every run")
    requested = os.environ.get("DFTRACER_RING_DIR")
    places = [str(p) for p in map(Path, args.paths) if p.is_dir()] + ([requested] if requested else [])
    moved = _traces_by_name(args.paths)
    rows: list[dict[str, Any]] = [
        {**ring, **_recover(ring, moved, args)} for ring in _core.rings([os.path.abspath(p) for p in places])
    ]
    left = [r for r in rows if r["outcome"] == "kept" and r["state"] in {_DEAD, _ELSEWHERE}]
    if args.json:
        print_json({"rings": rows})
    elif not args.quiet:
        for row in rows:
            print(_line(row))
        if not rows:
            print("no rings: every process that ended has its events in its trace")
        elif left and not args.output:
            print("give the PATH where the traces are now, or -o DIRECTORY to write the events to new files")
    return EXIT_PROBLEMS if left else EXIT_OK


def _traces_by_name(paths: list[str]) -> dict[str, list[Path]]:
    """The traces under the paths; where there are none, rings of theirs may still be left."""
    from dftracer.format.files import find_traces

    found: dict[str, list[Path]] = {}
    for file in map(Path, find_traces(paths)):
        found.setdefault(file.name, []).append(file)
    return found


def _recover(ring: dict[str, Any], moved: dict[str, list[Path]], args: argparse.Namespace) -> dict[str, Any]:
    """What became of one ring."""
    from dftracer import _core

    discard = args.discard and (args.all or _is_below(ring, args.paths))
    if ring["state"] in {_OUT_OF_SIGHT, _UNFINISHED} and discard and _core.discard_ring(ring["ring"]):
        return {"outcome": "discarded", "why": "", "recovered": 0, "to": None}
    if ring["state"] != _DEAD and not (ring["state"] == _ELSEWHERE and args.force):
        return {"outcome": "kept", "why": ring["state"], "recovered": 0, "to": None}
    path, trace = ring["ring"], ring["trace"]
    outcome, why, events = _core.recover_ring(path, trace, False, args.force)
    to = trace
    for file in moved.get(Path(trace).name, []) if outcome == "kept" else []:
        if _core.ring_belongs_to(path, str(file)):
            to = str(file.resolve())
            outcome, why, events = _core.recover_ring(path, to, False, args.force)
            break
    if outcome == "kept" and args.output:
        target = Path(args.output)
        target.mkdir(parents=True, exist_ok=True)
        to = str(target.resolve() / Path(trace).name)
        outcome, why, events = _core.recover_ring(path, to, True, args.force)
    if outcome == "kept" and discard and _core.discard_ring(path):
        outcome, why = "discarded", ""
    return {"outcome": outcome, "why": why, "recovered": events, "to": to if outcome == "recovered" else None}


def _is_below(ring: dict[str, Any], paths: list[str]) -> bool:
    """Whether a ring belongs under one of the paths: its trace, or itself. One without events is no loss."""
    if ring["state"] == _UNFINISHED:
        return True
    places = [Path(p).resolve() for p in paths]
    mine = [Path(p).resolve() for p in (ring["trace"], ring["ring"]) if p]
    return any(m == place or place in m.parents for m in mine for place in places)


def _line(row: dict[str, Any]) -> str:
    what = f"{row['ring']}: "
    if row["trace"]:
        what += f"process {row['pid']}, trace {row['trace']}, {plural(row['records'], 'record')} waiting: "
    if row["outcome"] == "recovered":
        return what + f"recovered into {row['to']}"
    if row["outcome"] == "kept":
        if row["state"] == "of another user":
            return what + f"owned by user {row['owner']}, who alone can recover it"
        return what + f"kept, {row['why']}"
    return what + str(row["outcome"])
