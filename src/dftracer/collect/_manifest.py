"""The manifests: one per rank, always whole, and their merge for the directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["VERSION", "alone", "merge", "merge_at_end", "write"]

VERSION = 1
_FEW = 64  # ranks that may each read all manifests
_WAIT_S = 10.0
_RANK = re.compile(r"^manifest_(\d+)\.json$")


def write(path: str, content: dict[str, Any]) -> None:
    """Replace a file in one step."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, default=str)
        file.write("\n")
    os.replace(part, path)


@contextlib.contextmanager
def alone(directory: str) -> Iterator[None]:
    """One rank of this host at a time; a file system without locks goes without."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def merge_at_end(directory: str, rank: int, world_size: int) -> None:
    """Merge when this rank has ended: each of a few ranks does, of many only rank 0, which waits a little."""
    if world_size > _FEW:
        if rank != 0:
            return
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            if sum(bool(_RANK.match(name)) for name in os.listdir(directory)) >= world_size:
                break
            time.sleep(0.5)
    merge(directory)


def merge(directory: str) -> None:
    """`manifest.json` from what the ranks have left so far; the last rank to write sees all."""
    with alone(directory):
        write(os.path.join(directory, "manifest.json"), _merged(directory))


def _merged(directory: str) -> dict[str, Any]:
    ranks: dict[int, dict[str, Any]] = {}
    for name in os.listdir(directory):
        found = _RANK.match(name)
        if not found:
            continue
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                ranks[int(found[1])] = json.load(file)
        except (OSError, ValueError):
            continue
    world = max((int(m.get("world_size") or 1) for m in ranks.values()), default=0)
    nodes = sum(w.get("et_nodes") or 0 for m in ranks.values() for w in m["windows"])
    joined = sum(w.get("joined") or 0 for m in ranks.values() for w in m["windows"])
    return {
        "version": VERSION,
        "world_size": world,
        "ranks_present": sorted(ranks),
        "ranks_missing": sorted(set(range(world)) - set(ranks)),
        "et_nodes": nodes,
        "joined": joined,
        "coverage": joined / nodes if nodes else None,
        "ranks": [ranks[rank] for rank in sorted(ranks)],
        "warnings": [f"rank {rank}: {text}" for rank in sorted(ranks) for text in ranks[rank]["warnings"]],
    }
