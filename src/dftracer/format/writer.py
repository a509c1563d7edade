"""Trace files made from others: records copied unchanged, in members that readers can skip over."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from dftracer.format.members import gzip_member
from dftracer.format.reader import Problems, parse_line, stripped, text_lines
from dftracer.format.records import is_metadata

MADE_BY = "made_by"
SLICE = "dftracer slice"  # made a part of a trace
DAMAGED = "copied_with_damage"  # the metadata record of a copy whose original could not be read whole
_MEMBER_TEXT = 1 << 20
_LEVEL = 6


class TraceWriter:
    """Writes records to a file; if a command is named, the first record says that it made the file."""

    def __init__(self, path: Path, *, packed: bool, made_by: str | None) -> None:
        self._file = path.open("wb")
        self._packed = packed
        self._made_by = made_by
        self._who: dict[str, int | str] = {}
        self._lines: list[str] = ["["]
        self._size = 0
        self._first = self._last = 0
        self.records = 0

    def add(self, text: str, record: dict[str, Any]) -> None:
        """Add a record by its text."""
        if self.records == 0:
            # Readers treat the first process they find as the file's own.
            pid = record.get("pid")
            self._who = {"pid": pid, "tid": pid} if isinstance(pid, (int, str)) else {}
        if self.records == 0 and self._made_by is not None:
            self._sign()
        self._lines.append(text)
        self._size += len(text) + 1
        self.records += 1
        ts = record.get("ts")
        if type(ts) is int and ts > 0 and not is_metadata(record):
            self._first = min(self._first, ts) if self._first else ts
            self._last = max(self._last, ts)
        if self._size >= _MEMBER_TEXT:
            self._cut()

    def add_damage(self, words: str, counts: dict[str, int]) -> None:
        """Record, after a file's records, what is missing from the copy."""
        if self.records == 0 and self._made_by is not None:
            self._sign()
        args = {"name": DAMAGED, "value": words, **counts}
        record = {"name": DAMAGED, "cat": "dftracer", **self._who, "ph": "M", "args": args}
        self._lines.append(json.dumps(record, separators=(",", ":")))

    def _sign(self) -> None:
        args = {"name": MADE_BY, "value": self._made_by}
        record = {"name": MADE_BY, "cat": "dftracer", **self._who, "ph": "M", "args": args}
        self._lines.append(json.dumps(record, separators=(",", ":")))

    def _cut(self) -> None:
        text = ("\n".join(self._lines) + "\n").encode("utf-8", "replace")
        if self._packed:
            text = gzip_member(text, len(self._lines), self._first, self._last, _LEVEL)
        self._file.write(text)
        self._lines = []
        self._size = self._first = self._last = 0

    def close(self) -> None:
        self._lines.append("]")
        self._cut()
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def maker_of(path: str | os.PathLike[str]) -> str | None:
    """The command that has made a trace file; "" for one without records, None for a recorder's own."""
    try:
        for line, _ in text_lines(path, Problems()):
            text = stripped(line)
            if not text:
                continue
            record = parse_line(text)
            args = record.get("args")
            return str(args["value"]) if record.get("name") == MADE_BY and isinstance(args, dict) else None
    except (OSError, ValueError, AttributeError, KeyError):
        return None
    return ""


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a trace does, whatever its name is."""
    try:
        for line, _ in text_lines(path, Problems()):
            text = stripped(line)
            if text:
                record = parse_line(text)
                return isinstance(record, dict) and "name" in record and "pid" in record
    except (OSError, ValueError):
        return False
    return False
