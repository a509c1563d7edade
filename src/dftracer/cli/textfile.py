"""Trace files as lines of text: for verbs that copy records as they are."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["LineWriter", "read_lines"]

_MEMBER_TEXT = 1 << 20


def _pieces(path: Path) -> Iterator[bytes]:
    """The text of a file, what can be had of it."""
    with path.open("rb") as file:
        head = file.read(2)
        file.seek(0)
        if head != b"\x1f\x8b":
            while piece := file.read(1 << 20):
                yield piece
            return
        inflate = zlib.decompressobj(31)
        while piece := file.read(1 << 18):
            while piece:
                try:
                    yield inflate.decompress(piece)
                except zlib.error:
                    # Look for the next member behind the damage.
                    rest = piece + file.read()
                    at = rest.find(b"\x1f\x8b\x08", 1)
                    if at < 0:
                        return
                    piece, inflate = rest[at:], zlib.decompressobj(31)
                    continue
                piece = inflate.unused_data
                if inflate.eof:
                    inflate = zlib.decompressobj(31)


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Each line and its record; None for a line that is no record."""
    rest = b""
    for piece in _pieces(path):
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield from _record(line)
    yield from _record(rest)


def _record(line: bytes) -> Iterator[tuple[str, dict[str, Any] | None]]:
    text = line.decode("utf-8", "replace").strip().rstrip(",").lstrip("[").removesuffix("]").strip()
    if not text:
        return
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    yield text, record if isinstance(record, dict) and "name" in record else None


class LineWriter:
    """Writes records to a `.pfw` or `.pfw.gz` file, in members that readers can hop over."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._gz = path.suffix == ".gz"
        self._lines: list[str] = ["["]
        self._size = 0
        self._first = self._last = 0
        self.records = 0

    def add(self, text: str, ts: int | None = None) -> None:
        self._lines.append(text)
        self._size += len(text) + 1
        self.records += 1
        if ts:
            self._first = min(self._first, ts) if self._first else ts
            self._last = max(self._last, ts)
        if self._size >= _MEMBER_TEXT:
            self._cut()

    def _cut(self) -> None:
        text = ("\n".join(self._lines) + "\n").encode("utf-8", "replace")
        if self._gz:
            from dftracer.load.synthetic import gzip_member  # brings NumPy, which other verbs start without

            text = gzip_member(text, len(self._lines), self._first, self._last, 6)
        self._file.write(text)
        self._lines = []
        self._size = self._first = self._last = 0

    def close(self) -> None:
        self._lines.append("]")
        self._cut()
        self._file.close()
