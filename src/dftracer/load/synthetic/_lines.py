"""The text of synthetic records, in members like the recorder's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dftracer.format.hashes import string_hash
from dftracer.format.members import gzip_member

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
        self.add("[\n")
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
        args = {"hhash": self.hhash, "name": key, "value": value, **more}
        head = {"id": self.ids, "name": kind, "cat": "dftracer", "pid": self.pid, "tid": self.pid}
        self.add(_dump({**head, "ph": "M", "args": args}))

    def own_event(self, name: str, ts: int, **args: Any) -> None:
        """Add `start` or `end`, the tracer's own events."""
        self.ids += 1
        full = {"hhash": self.hhash, "p_idx": -1, **args, "level": 1}
        self.add(self.event_line(self.ids, name, "dftracer", self.pid, ts, 0, full), ts)

    def event_line(
        self, ident: int, name: str, cat: str, tid: int, ts: int, dur: int, args: dict[str, Any]
    ) -> str:
        head = {"id": ident, "name": name, "cat": cat, "pid": self.pid, "tid": tid, "ts": ts, "dur": dur}
        return _dump({**head, "ph": "X", "args": args})

    def end(self, ts: int, **facts: Any) -> None:
        """Close the trace as the recorder does."""
        self.own_event("end", ts, **{"num_events": self.ids + 1, "dropped": 0, **facts})
        self.add("]\n")

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


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
