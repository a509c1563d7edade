"""Where the members of a trace file begin, from their notes alone: nothing is inflated."""

from __future__ import annotations

import os
import struct
from pathlib import Path

__all__ = ["member_spans"]

_HEAD = 64
_FIXED = struct.Struct("<2sBB6xH")


def _member_size(head: bytes) -> int | None:
    """The size of the member that begins with `head`, if it has a note."""
    if len(head) < _FIXED.size:
        return None
    magic, method, flags, extra = _FIXED.unpack_from(head)
    if magic != b"\x1f\x8b" or method != 8 or not flags & 4:
        return None
    at, end = _FIXED.size, _FIXED.size + extra
    while at + 4 <= min(end, len(head)):
        (size,) = struct.unpack_from("<H", head, at + 2)
        if head[at : at + 2] == b"DF" and size >= 32 and at + 8 <= len(head):
            member: int = struct.unpack_from("<I", head, at + 4)[0]
            return member if member >= end + 8 else None
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
            member = _member_size(os.pread(f.fileno(), _HEAD, at))
            if member is None:
                if at == 0:
                    return [(0, whole)]
                break  # the stump of a member, or a foreign one: it goes with the last span
            at += member
            if at - start >= size:
                spans.append((start, min(at, whole)))
                start = at
    if start < whole:
        spans.append((start, whole))
    return spans
