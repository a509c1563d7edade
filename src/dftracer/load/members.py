"""Where the members of a trace file begin, from their notes alone: nothing is inflated."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from dftracer._schema import INDEX_STRUCT

__all__ = ["last_time", "member_spans"]

_HEAD = 64
_FIXED = struct.Struct("<2sBB6xH")


def _note(head: bytes) -> tuple[int, int] | None:
    """The size of the member that begins with `head` and its last time, if it has a note."""
    if len(head) < _FIXED.size:
        return None
    magic, method, flags, extra = _FIXED.unpack_from(head)
    if magic != b"\x1f\x8b" or method != 8 or not flags & 4:
        return None
    at, end = _FIXED.size, _FIXED.size + extra
    while at + 4 <= min(end, len(head)):
        (size,) = struct.unpack_from("<H", head, at + 2)
        if head[at : at + 2] == b"DF" and size >= 32 and at + 36 <= len(head):
            member, *_, last = INDEX_STRUCT.unpack_from(head, at + 4)
            return (member, last) if member >= end + 8 else None
        at += 4 + size
    return None


def member_spans(file: Path, size: int) -> list[tuple[int, int]]:
    """The file in spans of whole members, each of at least `size` bytes (but the last).

    A file whose members have no notes is one span.
    """
    whole = file.stat().st_size
    if whole < 2 * size:
        return [(0, whole)]
    spans: list[tuple[int, int]] = []
    start = at = 0
    with file.open("rb", buffering=0) as f:
        while at < whole:
            note = _note(os.pread(f.fileno(), _HEAD, at))
            if note is None:
                if at == 0:
                    return [(0, whole)]
                break  # the stump of a member, or a foreign one: it goes with the last span
            at += note[0]
            if at - start >= size:
                spans.append((start, min(at, whole)))
                start = at
    if start < whole:
        spans.append((start, whole))
    return spans


def last_time(file: Path) -> int | None:
    """When the last event of a file begins, from the notes of its members; else when it was last written."""
    whole = file.stat()
    at, last = 0, 0
    with file.open("rb", buffering=0) as f:
        while at < whole.st_size:
            note = _note(os.pread(f.fileno(), _HEAD, at))
            if note is None:
                break
            at += note[0]
            last = max(last, note[1])
    return last or whole.st_mtime_ns // 1000
