"""The trace files of processes that may still run: found, seen as they are at one moment, and copied."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dftracer import _core
from dftracer.format.members import gzip_member, member_index
from dftracer.format.records import END_RECORD, TIME
from dftracer.format.trace_names import SUFFIXES, Paths, find_traces

# --- A snapshot of every trace file: what is final in it, and what its process has recorded beyond that


_HEAD = 64
_STATES = {"running": "running", "dead": "killed"}
# Small members of an open tail are merged within this time (plus a flush, and a slow disk).
_SETTLED_US = 15_000_000
_RECOVERED = b'"recovered":true'  # in the end that somebody else wrote for a killed process


class LiveFile(NamedTuple):
    """A trace file and its process at one moment."""

    path: Path
    pid: int | None  # of a process whose ring is here
    state: str
    final: int
    size: int  # of the valid part of the file; 0 before the first flush
    tail: bytes = b""  # the file between `final` and `size`, unchanged: members or plain text
    text: bytes = b""  # lines that are in no file yet
    dropped: int = 0  # events lost so far, of a process whose ring is here
    refusing: bool = False  # the disk rejects writes at the moment
    consistent: bool = True  # all of it is from one moment; otherwise the last lines may appear twice

    @property
    def packed(self) -> bool:
        return self.path.suffix == ".gz"

    def rest(self) -> bytes:
        """All lines after `final`."""
        return (_inflated(self.tail) if self.packed else self.tail) + self.text


def look(paths: Paths) -> list[LiveFile]:
    """All trace files under `paths`, and those that processes have not created yet."""
    given = [Path(p) for p in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    found: dict[str, LiveFile] = {}
    # Listed before the rings are read: a file that is renamed in between is then found only under its
    # new name, because the old one is gone.
    names = find_traces([p for p in given if p.exists()])
    for ring in _core.ring_paths([*(str(p) for p in given if p.is_dir()), *requested_directories()]):
        seen = _core.peek_ring(ring)
        if seen is None or not _is_below(Path(seen["trace"]), given):
            continue
        file = LiveFile(
            Path(seen["trace"]),
            seen["pid"],
            _STATES.get(seen["state"], "unknown"),
            seen["final"],
            seen["size"],
            seen["tail"],
            seen["text"],
            seen["dropped"],
            seen["refusing"],
            seen["consistent"],
        )
        found[os.path.realpath(file.path)] = file
    for name in names:
        real = os.path.realpath(name)
        other = None if real in found else _without_ring(Path(name))
        if other is not None:
            found[real] = other
    return sorted(found.values(), key=lambda f: f.path)


def requested_directories() -> list[str]:
    """Where the user wants rings to be."""
    directory = os.environ.get("DFTRACER_RING_DIR")
    return [directory] if directory else []


def _is_below(trace: Path, given: Iterable[Path]) -> bool:
    real = Path(os.path.realpath(trace))
    return any(real == where or where in real.parents for where in (Path(os.path.realpath(p)) for p in given))


def _without_ring(path: Path) -> LiveFile | None:
    """A file whose process has ended, or belongs to another host or user: its members say how far it is."""
    try:
        with path.open("rb", buffering=0) as f:
            size = os.fstat(f.fileno()).st_size
            if path.suffix != ".gz":
                return _plain(path, f.fileno(), size)
            members = _members(f.fileno(), size)
            if not members:
                return LiveFile(path, None, "finished" if size else "unknown", size, size)
            whole = sum(members[-1][:2])
            last = os.pread(f.fileno(), members[-1][1], members[-1][0])
            if (state := _ended(_inflated(last))) is not None:
                return LiveFile(path, None, state, size, size)
            newest = max(last_ts for _, _, last_ts in members)
            final = next((at for at, _, ts in members if ts > newest - _SETTLED_US), whole)
            return LiveFile(path, None, "cut", final, whole, os.pread(f.fileno(), whole - final, final))
    except FileNotFoundError:
        return None
    except OSError:
        return LiveFile(path, None, "unknown", 0, 0)


def _ended(text: bytes) -> str | None:
    """How the process ended; None if the text has no end record."""
    at = text.rfind(END_RECORD)
    if at < 0:
        return None
    return "killed" if _RECOVERED in text[at:].partition(b"\n")[0] else "finished"


def _plain(path: Path, descriptor: int, size: int) -> LiveFile:
    last = os.pread(descriptor, 1 << 16, max(0, size - (1 << 16)))
    if (state := _ended(last)) is not None:
        return LiveFile(path, None, state, size, size)
    whole = size - len(last) + last.rfind(b"\n") + 1
    return LiveFile(path, None, "cut", whole, whole)


def _members(descriptor: int, size: int) -> list[tuple[int, int, int]]:
    """(offset, size, last time) of the complete members at the beginning of a file."""
    out = []
    at = 0
    while at < size:
        index = member_index(os.pread(descriptor, _HEAD, at))
        if index is None or at + index.member_size > size:
            break
        out.append((at, index.member_size, index.last_ts))
        at += index.member_size
    return out


def _inflated(members: bytes) -> bytes:
    parts = []
    while members:
        decoder = zlib.decompressobj(wbits=31)
        try:
            parts.append(decoder.decompress(members))
        except zlib.error:
            break
        if not decoder.eof:
            break
        members = decoder.unused_data
    return b"".join(parts)


# --- A file as it would be if its process had just ended, for readers of files


_TS = re.compile(TIME + rb"(\d+)")


def rest_member(text: bytes) -> bytes:
    """Lines as one member."""
    times = [int(t) for t in _TS.findall(text)]
    return gzip_member(text, text.count(b"\n"), min(times, default=0), max(times, default=0))


def whole_copy(file: LiveFile, to: Path) -> None:
    """Write the settled part and the rest to `to`; the trace itself is only read."""
    with to.open("wb") as out:
        if file.final:
            with file.path.open("rb") as f:
                shutil.copyfileobj(_FirstBytes(f, file.final), out)
        rest = file.rest()
        if rest:
            out.write(rest_member(rest) if file.packed else rest)


class _FirstBytes:
    """The first bytes of a file."""

    def __init__(self, file: object, size: int) -> None:
        self._file, self._left = file, size

    def read(self, n: int = -1) -> bytes:
        got: bytes = self._file.read(min(n, self._left) if n >= 0 else self._left)  # type: ignore[attr-defined]
        self._left -= len(got)
        return got


# --- Where a process writes its trace, from the rings, its open files, or its environment


_NAMES = ("DFTRACER_SESSION", "DFTRACER_LOG_FILE")


def running_directories() -> list[Path]:
    """Where this user's processes are writing traces, the youngest process first."""
    found: dict[Path, int] = {}
    for ring in _core.ring_paths(requested_directories()):
        seen = _core.peek_ring(ring)
        if seen is not None and seen["state"] == "running":
            folder = Path(seen["trace"]).parent
            found[folder] = max(found.get(folder, 0), _born(seen["pid"]))
    return sorted(found, key=lambda folder: -found[folder])


def traces_of_process(pid: int) -> list[Path]:
    """The directories that a process and its children write traces to; empty if none is known."""
    family = _family(pid)
    folders: dict[Path, None] = {}
    for ring in _core.ring_paths(requested_directories()):
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
