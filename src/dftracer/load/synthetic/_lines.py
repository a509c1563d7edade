"""The text of synthetic records, in members like the recorder's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dftracer.format.members import gzip_member
from dftracer.format.records import (
    FIRST_LINE,
    LAST_LINE,
    TRACER,
    arguments,
    event_line,
    metadata_line,
    string_hash,
)

__all__ = ["EPOCH_US", "MadeFile"]

EPOCH_US = 1_760_000_000_000_000  # when every synthetic job starts


class MadeFile:
    """The trace file of one process: lines in, members out; numbers its records."""

    def __init__(self, path: Path, pid: int, host: str, member_text: int) -> None:
        self.path = path
        self.pid = pid
        self.hhash = string_hash(host)
        self.ids = 0  # of the last record
        self._gz = path.suffix == ".gz"
        self._file = path.open("wb")
        self._limit = member_text
        self._parts: list[str] = []
        self._size = 0
        self._first = 0
        self._last = 0
        self.add(FIRST_LINE)
        self.meta("HH", host, self.hhash)

    def add(self, lines: str, *begins: int) -> None:
        """Add lines, with the first and the last time at which an event in them begins."""
        self._parts.append(lines)
        self._size += len(lines)
        for ts in begins:
            self._first = min(self._first, ts) if self._first else ts
            self._last = max(self._last, ts)
        if self._size >= self._limit:
            self._cut()

    def meta(self, kind: str, key: str, value: str, **more: Any) -> None:
        """Add a metadata record."""
        self.ids += 1
        self.add(metadata_line(self.ids, kind, self.pid, self.hhash, key, value, more))

    def own_event(self, name: str, ts: int, **args: Any) -> None:
        """Add `start` or `end`, the tracer's own events."""
        self.ids += 1
        full = arguments(self.hhash, -1, args, 1)
        self.add(event_line(self.ids, name, TRACER, self.pid, self.pid, ts, 0, full), ts)

    def end(self, ts: int, **facts: Any) -> None:
        """Close the trace as the recorder does."""
        self.own_event("end", ts, **{"num_events": self.ids + 1, "dropped": 0, **facts})
        self.add(LAST_LINE)

    def close(self) -> None:
        self._cut()
        self._file.close()

    def _cut(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts).encode()
        member = gzip_member(text, text.count(b"\n"), self._first, self._last) if self._gz else text
        self._file.write(member)
        self._parts.clear()
        self._size = self._first = self._last = 0
