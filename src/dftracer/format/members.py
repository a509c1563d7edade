"""What trace files and files of step rows consist of.

Gzip members: the index that ours carry, writing text into one, and reading as much text as possible.
Blocks of step rows: where they end.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

MAGIC = b"\x1f\x8b\x08"
INDEX_ID = b"DF"
INDEX_STRUCT = struct.Struct("<IIIIQQ")
_FEXTRA = 4
_HEAD = 64  # the longest header of a member of ours
_HEADER_SIZE = 12 + 4 + INDEX_STRUCT.size
_TRAILER_SIZE = 8
_CHUNK = 1 << 18
_LAST_TS = (1 << 64) - 1

ROWS_MAGIC = b"\xdfRW"
ROW_BLOCK = struct.Struct("<3scHHI")  # magic, kind, rows, size of the payload, its CRC-32
# What the flags of a row say, from the lowest bit on: RowFlag in native/format/step_row.hpp.
ROW_FLAGS = {
    name: 1 << bit
    for bit, name in enumerate(
        (
            "forward_unseen",
            "inference",
            "learns",
            "loop_begins",
            "automatic",
            "between",
            "by_updates",
            "cut",
            "device",
            "restores",
        )
    )
}


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
    """The text of all members from where `file` is; after damage, continues with the next member.

    `problem` receives "truncated" (the file ends inside a member), "corrupt" (a damaged member) or
    "garbage" (bytes that belong to no member). An empty chunk marks the end of a broken member, so that the
    lines before and after it are not joined.
    """
    at = file.tell()
    while True:
        member, damaged = _next_member(file, at)
        if damaged:
            problem("garbage")
        if member is None:
            return
        file.seek(member)
        broken, at = yield from _member(file)
        if not broken:
            continue
        # Damaged data may be read beyond the end of its member: the next may begin before that.
        following, _ = _next_member(file, member + 1)
        problem("corrupt" if following is not None else broken)
        yield b""
        if following is None:
            return
        at = following


def _member(file: BinaryIO) -> Generator[bytes, None, tuple[str | None, int]]:
    """The text of the member at the file's position, what is wrong with it, and where it ends."""
    decoder = zlib.decompressobj(wbits=31)
    packed = b""
    while not decoder.eof:
        packed = packed or file.read(_CHUNK)
        if not packed:
            rest = decoder.flush()
            if rest:
                yield rest
            return "truncated", file.tell()
        before = decoder.copy()
        try:
            text = decoder.decompress(packed, _CHUNK * 4)
        except zlib.error:
            yield from _until_damage(before, packed)
            return "corrupt", file.tell()
        packed = decoder.unconsumed_tail
        if text:
            yield text
    return None, file.tell() - len(decoder.unused_data)


def _until_damage(decoder: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """What the decoder makes of the bytes up to the one it rejects."""
    out = bytearray()
    try:
        for at in range(len(packed)):
            out += decoder.decompress(packed[at : at + 1])
    except zlib.error:
        pass
    if out:
        yield bytes(out)


def _next_member(file: BinaryIO, at: int) -> tuple[int | None, bool]:
    """Where the next member begins, at or after `at`; and whether anything but zeros is before it."""
    damaged = False
    while True:
        file.seek(at)
        window = file.read(_CHUNK)
        found = window.find(MAGIC)
        while found != -1 and not _is_header(_bytes_at(file, at + found)):
            found = window.find(MAGIC, found + 1)
        last = len(window) < _CHUNK
        # The last two bytes may be the beginning of a magic number.
        passed = window[:found] if found != -1 else window if last else window[: 1 - len(MAGIC)]
        damaged = damaged or bool(passed.strip(b"\0"))
        if found != -1:
            return at + found, damaged
        if last:
            return None, damaged
        at += len(passed)


def _bytes_at(file: BinaryIO, at: int) -> bytes:
    file.seek(at)
    return file.read(10)


def _is_header(head: bytes) -> bool:
    """Whether these bytes are a gzip member's header; strict enough to find one in damaged data."""
    if len(head) < 10:  # the file ends here
        return head.startswith(MAGIC)
    if not head.startswith(MAGIC) or head[3] & 0xE0:
        return False
    return head[8] in (0, 2, 4) and (head[9] <= 13 or head[9] == 255)


def is_packed(file: BinaryIO, name: str) -> bool:
    """Whether a trace file consists of gzip members, even if the first of them is damaged."""
    file.seek(0)
    head = file.read(_HEAD)
    if head.startswith(MAGIC[:2]):
        return True
    binary = any(byte < 32 and byte not in b"\t\n\r" for byte in head)
    return (name.endswith(".gz") or binary) and _next_member(file, 1)[0] is not None


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
            # Where a member begins as the one before it says; a section never begins in damaged data.
            if at - start >= size:
                spans.append((start, at))
                start = at
            at += index.member_size
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


def row_blocks(data: bytes) -> Iterator[int]:
    """Where each intact block of step rows ends, up to the first that is not."""
    at = 0
    while at + ROW_BLOCK.size <= len(data):
        magic, _, _, size, crc = ROW_BLOCK.unpack_from(data, at)
        payload = data[at + ROW_BLOCK.size : at + ROW_BLOCK.size + size]
        if magic != ROWS_MAGIC or len(payload) != size or zlib.crc32(payload) != crc:
            return
        at += ROW_BLOCK.size + size
        yield at
