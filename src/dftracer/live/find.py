"""Where a process writes its trace, from the rings, its open files, or its environment."""

from __future__ import annotations

import os
from pathlib import Path

from dftracer import _core
from dftracer.format.files import SUFFIXES
from dftracer.live.look import requested_places

__all__ = ["running_directories", "traces_of_process"]

_NAMES = ("DFTRACER_SESSION", "DFTRACER_LOG_FILE")


def running_directories() -> list[Path]:
    """Where this user's processes are writing traces, the youngest process first."""
    found: dict[Path, int] = {}
    for ring in _core.ring_paths(requested_places()):
        seen = _core.peek_ring(ring)
        if seen is not None and seen["state"] == "running":
            folder = Path(seen["trace"]).parent
            found[folder] = max(found.get(folder, 0), _born(seen["pid"]))
    return sorted(found, key=lambda folder: -found[folder])


def traces_of_process(pid: int) -> list[Path]:
    """The directories that a process and its children write traces to; empty if none is known."""
    family = _family(pid)
    folders: dict[Path, None] = {}
    for ring in _core.ring_paths(requested_places()):
        seen = _core.peek_ring(ring)
        if seen is not None and seen["pid"] in family:
            folders[Path(seen["trace"]).parent] = None
    for member in family if not folders else ():
        folders.update(dict.fromkeys(path.parent for path in _open_traces(member)))
    for member in family if not folders else ():
        stem = _stem_of(member)
        if stem is not None:
            folders[stem.parent] = None
    return [folder for folder in folders if folder.is_dir()]


def _family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if len(fields) > 1:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    family, todo = [], [pid]
    while todo:
        at = todo.pop()
        family.append(at)
        todo += parents.get(at, [])
    return family


def _stat(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def _born(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _open_traces(pid: int) -> list[Path]:
    try:
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
    except OSError:
        return []
    return [Path(link) for link in links if link.endswith(SUFFIXES)]


def _stem_of(pid: int) -> Path | None:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        here = Path(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        return None
    env = {k.decode(errors="replace"): os.fsdecode(v) for k, _, v in (p.partition(b"=") for p in pairs)}
    name = next((env[k] for k in _NAMES if env.get(k)), None)
    return None if name is None else here / name
