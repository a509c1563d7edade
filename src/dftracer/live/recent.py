"""The last seconds of a run as small separate files: their size does not depend on the length of the run."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from dftracer.format.members import member_index
from dftracer.format.records import SAMPLE, TIME, TIME_LIMIT
from dftracer.format.trace_names import Paths
from dftracer.live.look import LiveFile, look, rest_member
from dftracer.load._scan import Scanner, extent
from dftracer.load.chunk import Chunk
from dftracer.load.process import ProcessInfo, assign_ranks, peek

if TYPE_CHECKING:
    from typing import Self


_HEAD = 64
_PLAIN_HEAD, _PLAIN_TAIL = 1 << 16, 32 << 20
# File names are defined where a file was first opened: old members are read for them, a few at each refresh.
_NAMES_AT_ONCE = 32 << 20
_NO_EVENTS = ("\0",)


class _Known:
    """What is known about one trace file so far."""

    def __init__(self, path: Path) -> None:
        self.info = ProcessInfo(path)
        self.early: ProcessInfo | None = None  # while only the copy says whose file it is
        self.members: list[tuple[int, int, int]] = []  # offset, size, last time
        self.walked = 0
        self.unread: list[tuple[int, int]] = []  # members not yet read for names
        self.last_us = 0  # of anything: an event or a sample of the machine
        self.event_us = 0  # when the last event began, as far as members were searched for it
        self.searched = 0  # members

    def walk(self, file: LiveFile) -> None:
        """Add the members that are new in the final part."""
        if file.final <= self.walked:
            return
        with file.path.open("rb", buffering=0) as f:
            while self.walked < file.final:
                index = member_index(os.pread(f.fileno(), _HEAD, self.walked))
                if index is None:
                    self._take_whole(file.final)
                    break
                self.members.append((self.walked, index.member_size, index.last_ts))
                self.unread.append((self.walked, self.walked + index.member_size))
                self.walked += index.member_size
                self.last_us = max(self.last_us, index.last_ts)

    def find_last_event(self) -> None:
        """Search new members, newest first: a hanging process still writes counter samples."""
        for at, size, last in reversed(self.members[self.searched :]):
            if last <= self.event_us:
                continue
            for raw in Scanner(self.info.file, 1, 1 << 22, span=(at, at + size)):
                chunk = Chunk(raw)
                begun = chunk.ints("ts")[chunk.ph() == ord("X")]
                if begun.size:
                    multiply, divide = self.info.time_unit
                    self.event_us = max(self.event_us, int(begun.max()) * multiply // divide)
            if self.event_us:
                break
        self.searched = len(self.members)

    def _take_whole(self, size: int) -> None:
        """The rest of a file that another program compressed: without an index it is read in one piece."""
        last = self.last_us
        for raw in Scanner(self.info.file, 1, 1 << 22, span=(self.walked, size)):
            self.info.take(raw["meta"])
            if raw["rows"]:
                multiply, divide = self.info.time_unit
                last = max(last, extent(raw["ts"], raw["dur"])[1] * multiply // divide)
        self.members.append((self.walked, size - self.walked, last))
        self.walked = size
        self.last_us = last

    def learn_names(self, budget: int) -> int:
        """Read metadata from some of the unread members, newest first; returns what is left of `budget`."""
        while self.unread and budget > 0:
            first, last = self.unread.pop(0 if not self.info.start_us else -1)
            for raw in Scanner(self.info.file, 1, 1 << 20, cats=_NO_EVENTS, span=(first, last)):
                self.info.take(raw["meta"])
            budget -= last - first
        return budget


class Recent:
    """Copies of the last `seconds` of the traces under `paths`, renewed by `refresh`; a context manager.

    `directory` contains them, `start_us` is where they begin. `processes` are the facts about all files.
    """

    def __init__(self, paths: Paths, seconds: float = 30.0) -> None:
        self.paths = paths
        self.seconds = seconds
        self.start_us = 0
        self.now_us = 0
        self.files: list[LiveFile] = []
        self._known: dict[Path, _Known] = {}
        self._place = tempfile.TemporaryDirectory(prefix="dftracer-top-")
        self.directory = Path(self._place.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the copies."""
        self._place.cleanup()

    @property
    def processes(self) -> dict[Path, ProcessInfo]:
        """By trace file, with ranks."""
        found = {path: known.early or known.info for path, known in self._known.items()}
        assign_ranks(list(found.values()))
        return found

    def copy_of(self, path: Path) -> Path:
        """Where the copy of a trace file is."""
        return self.directory / _name_of(path)

    def last_us(self, file: LiveFile) -> int:
        """When a file's last event began."""
        known = self._known.get(file.path)
        return 0 if known is None else known.event_us

    def refresh(self) -> list[Path]:
        """Look again; returns the copies of the files that have something to show."""
        self.files = look(self.paths)
        rests: dict[Path, bytes] = {}
        budget = _NAMES_AT_ONCE
        for file in self.files:
            known = self._known.setdefault(file.path, _Known(file.path))
            try:
                if file.packed:
                    known.walk(file)
                    budget = known.learn_names(budget)
                    known.find_last_event()
            except OSError:  # deleted since it was found
                continue
            rests[file.path] = rest = self._rest(file)
            known.event_us = max(known.event_us, _last_time(rest, events_only=True))
            known.last_us = max(known.last_us, known.event_us, _last_time(rest))
        running = any(f.state == "running" for f in self.files)
        newest = max((k.last_us for k in self._known.values()), default=0)
        self.now_us = max(newest, time.time_ns() // 1000) if running else newest
        self.start_us = self.now_us - int(self.seconds * 1e6)
        copies = self._write(rests)
        for path, known in self._known.items():
            known.early = self._peek(path) if known.info.pid < 0 else None
        return copies

    def _peek(self, path: Path) -> ProcessInfo | None:
        try:
            info = peek(self.copy_of(path))
        except OSError:  # there is no copy: it has nothing to show
            return None
        info.file = path
        return info

    def trace(self, copies: list[Path]) -> Any:
        """The copies as a `Trace` of the last seconds, with all the names of files that are known."""
        from dftracer.load import Trace  # noqa: PLC0415 - needs the extra `analysis`

        trace = Trace(copies, cache=False, threads=1)
        by_name = {_name_of(path): known.info for path, known in self._known.items()}
        for process in trace.processes:
            known = by_name.get(process.file.name)
            if known is not None:
                process.paths.update(known.paths)
                process.strings.update(known.strings)
        return trace.select(time=(self.start_us, 1 << 62))

    def _rest(self, file: LiveFile) -> bytes:
        if file.packed:
            return file.rest()
        # Without members there is no index: read the end of the file, as much as the seconds may need.
        try:
            with file.path.open("rb") as f:
                first = max(0, file.final - _PLAIN_TAIL)
                f.seek(first)
                text = f.read(file.final - first)
                if first:
                    f.seek(0)
                    head = f.read(_PLAIN_HEAD)
                    text = head[: head.rfind(b"\n") + 1] + text[text.find(b"\n") + 1 :]
        except OSError:
            text = b""
        return text + file.rest()

    def _write(self, rests: dict[Path, bytes]) -> list[Path]:
        out: list[Path] = []
        for file in self.files:
            known = self._known[file.path]
            rest = rests.get(file.path)
            if rest is None or known.last_us < self.start_us:
                continue
            wanted = [(at, size) for at, size, last in known.members if last >= self.start_us or at == 0]
            target = self.copy_of(file.path)
            try:
                with target.open("wb") as copy:
                    if file.packed:
                        with file.path.open("rb", buffering=0) if wanted else open(os.devnull, "rb") as f:
                            for at, size in wanted:
                                copy.write(os.pread(f.fileno(), size, at))
                        copy.write(rest_member(rest) if rest else b"")
                    else:
                        copy.write(rest)
            except OSError:
                continue
            out.append(target)
        return out


def _name_of(path: Path) -> str:
    """A unique name for each file, also if files in several folders have the same name."""
    return f"{abs(hash(str(path.parent))):x}-{path.name}"


def _last_time(text: bytes, events_only: bool = False) -> int:
    """The latest time of an event, or of a sample of the machine, in the last lines of a text."""
    found = 0
    for line in text[-(1 << 16) :].splitlines()[-200:]:
        _, key, rest = line.partition(TIME)
        if key and not (events_only and SAMPLE in line):
            digits = rest[:20].split(b",")[0]
            when = int(digits) if digits.isdigit() else 0
            found = max(found, when if when <= TIME_LIMIT else 0)
    return found
