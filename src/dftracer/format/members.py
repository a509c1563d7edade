"""Gzip members: the index that ours carry, writing text into one, and reading as much text as possible."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

__all__ = [
    "INDEX_ID",
    "INDEX_STRUCT",
    "MAGIC",
    "MemberIndex",
    "gzip_member",
    "inflate",
    "last_time",
    "member_index",
    "member_spans",
    "skip_text",
]

MAGIC = b"\x1f\x8b\x08"
INDEX_ID = b"DF"
INDEX_STRUCT = struct.Struct("<IIIIQQ")
_FEXTRA = 4
_HEAD = 64  # the longest header of a member of ours
_HEADER_SIZE = 12 + 4 + INDEX_STRUCT.size
_TRAILER_SIZE = 8
_CHUNK = 1 << 18
_LAST_TS = (1 << 64) - 1


class MemberIndex(NamedTuple):
    """The subfield `DF` in the header of each gzip member: what a reader needs to skip over it."""

    member_size: int  # bytes of the whole member, including header and trailer
    text_size: int  # bytes of text in it
    lines: int
    reserved: int
    first_ts: int  # us, 0 without events
    last_ts: int


def gzip_member(text: bytes, lines: int, first_ts: int, last_ts: int, level: int = 1) -> bytes:
    """One gzip member with its index."""
    body = zlib.compressobj(level, zlib.DEFLATED, -15)
    packed = body.compress(text) + body.flush()
    size = _HEADER_SIZE + len(packed) + _TRAILER_SIZE
    index = MemberIndex(size, len(text), lines, 0, _time(first_ts), _time(last_ts))
    extra = INDEX_ID + struct.pack("<H", INDEX_STRUCT.size) + INDEX_STRUCT.pack(*index)
    head = MAGIC + bytes([_FEXTRA]) + b"\0\0\0\0\0\xff" + struct.pack("<H", len(extra))
    return head + extra + packed + struct.pack("<II", zlib.crc32(text), len(text) & 0xFFFFFFFF)


def _time(ts: int) -> int:
    """A time that fits the index: damaged records have impossible times."""
    return min(max(ts, 0), _LAST_TS)


def member_index(head: bytes) -> MemberIndex | None:
    """The index of the member that begins at the start of `head` (64 bytes suffice), None without one."""
    if len(head) < 12 or not head.startswith(MAGIC) or not head[3] & _FEXTRA:
        return None
    end = 12 + int.from_bytes(head[10:12], "little")
    at = 12
    while at + 4 <= end:
        size = int.from_bytes(head[at + 2 : at + 4], "little")
        body = head[at + 4 : at + 4 + size]
        if head[at : at + 2] == INDEX_ID and len(body) >= INDEX_STRUCT.size:
            index = MemberIndex(*INDEX_STRUCT.unpack(body[: INDEX_STRUCT.size]))
            # With a size too small for a header and a trailer, a walk would never advance.
            return index if index.member_size >= end + _TRAILER_SIZE else None
        at += 4 + size
    return None


def inflate(file: BinaryIO, problem: Callable[[str], None]) -> Iterator[bytes]:
    """The text of all members; after damage, continues with the next member that can be found.

    `problem` receives "truncated" (the file ends inside a member), "corrupt" (a damaged member) or
    "garbage" (bytes that belong to no member). An empty chunk marks the end of a broken member, so that the
    lines before and after it are not joined.
    """
    source = _Source(file)
    while source.find_member(problem):
        broken = yield from _member(source)
        if broken:
            problem(broken)
            yield b""


def _member(source: _Source) -> Generator[bytes, None, str | None]:
    decoder = zlib.decompressobj(wbits=31)
    while not decoder.eof:
        if not source.buffer and not source.fill():
            rest = decoder.flush()
            if rest:
                yield rest
            return "truncated"
        try:
            text = decoder.decompress(source.buffer, _CHUNK * 4)
        except zlib.error:
            # One byte further, or the search for the next member would find this one again.
            source.buffer = source.buffer[1:]
            return "corrupt"
        source.buffer = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        if text:
            yield text
    return None


def skip_text(file: BinaryIO, limit: int) -> int:
    """Skip whole indexed members with at most `limit` bytes of text; returns how much text they have."""
    size = file.seek(0, os.SEEK_END)
    at = skipped = 0
    while True:
        file.seek(at)
        index = member_index(file.read(_HEAD))
        if index is None or at + index.member_size > size:
            break
        if skipped + index.text_size > limit:
            break
        at += index.member_size
        skipped += index.text_size
    file.seek(at)
    return skipped


def member_spans(file: Path, size: int) -> list[tuple[int, int]]:
    """The file in sections of whole members, each at least `size` bytes (but the last); nothing is inflated.

    A file whose members have no index is one section.
    """
    whole = file.stat().st_size
    if whole < 2 * size:
        return [(0, whole)]
    spans: list[tuple[int, int]] = []
    start = at = 0
    with file.open("rb", buffering=0) as f:
        while at < whole:
            index = member_index(os.pread(f.fileno(), _HEAD, at))
            if index is None:
                if at == 0:
                    return [(0, whole)]
                break  # part of a member, or another writer's: it goes with the last section
            at += index.member_size
            if at - start >= size:
                spans.append((start, min(at, whole)))
                start = at
    if start < whole:
        spans.append((start, whole))
    return spans


def last_time(file: Path) -> int:
    """When a file's last event begins, from its members' indexes; otherwise when it was last written."""
    whole = file.stat()
    at = last = 0
    with file.open("rb", buffering=0) as f:
        while at < whole.st_size:
            index = member_index(os.pread(f.fileno(), _HEAD, at))
            if index is None:
                break
            at += index.member_size
            last = max(last, index.last_ts)
    return last or whole.st_mtime_ns // 1000


class _Source:
    __slots__ = ("_file", "buffer")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.buffer = b""

    def fill(self) -> bool:
        more = self._file.read(_CHUNK)
        self.buffer += more
        return bool(more)

    def find_member(self, problem: Callable[[str], None]) -> bool:
        """Move to the next member; zeros before it are padding, not damage."""
        damaged = False
        while True:
            found = self.buffer.find(MAGIC)
            # The last two bytes may be the beginning of a magic number.
            passed = self.buffer[: found if found != -1 else max(0, len(self.buffer) - 2)]
            damaged = damaged or bool(passed.strip(b"\0"))
            self.buffer = self.buffer[len(passed) :]
            if found == -1 and self.fill():
                continue
            if damaged or (found == -1 and self.buffer.strip(b"\0")):
                problem("garbage")
            return found != -1
