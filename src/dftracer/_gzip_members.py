"""Text out of gzip members, as much of it as can be had, and the index that our members carry."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO

from dftracer._schema import INDEX_ID, INDEX_STRUCT, MemberIndex

__all__ = ["MAGIC", "inflate", "member_index", "skip_text"]

MAGIC = b"\x1f\x8b\x08"
_FEXTRA = 4
_CHUNK = 1 << 18


def member_index(head: bytes) -> MemberIndex | None:
    """The index of the member that begins at the start of `head` (64 bytes suffice), None without one."""
    if len(head) < 12 or not head.startswith(MAGIC) or not head[3] & _FEXTRA:
        return None
    end = 12 + int.from_bytes(head[10:12], "little")
    at = 12
    while at + 4 <= end:
        size = int.from_bytes(head[at + 2 : at + 4], "little")
        body = head[at + 4 : at + 4 + size]
        if head[at : at + 2] == INDEX_ID and len(body) == INDEX_STRUCT.size:
            return MemberIndex(*INDEX_STRUCT.unpack(body))
        at += 4 + size
    return None


def inflate(file: BinaryIO, problem: Callable[[str], None]) -> Iterator[bytes]:
    """The text of all members; after damage, goes on with the next member that can be found.

    `problem` is told "truncated" (the file ends inside of a member), "corrupt" (a member with damage) or
    "garbage" (bytes that belong to no member). An empty chunk marks the end of a broken member, so that the
    lines before and after it are not glued together.
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
            # One byte on, or the search for the next member would find this one again.
            source.buffer = source.buffer[1:]
            return "corrupt"
        source.buffer = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        if text:
            yield text
    return None


def skip_text(file: BinaryIO, limit: int) -> int:
    """Move over whole indexed members that hold at most `limit` bytes of text; how much text they hold."""
    size = file.seek(0, os.SEEK_END)
    at = skipped = 0
    while True:
        file.seek(at)
        index = member_index(file.read(64))
        if index is None or index.member_size < 18 or at + index.member_size > size:
            break
        if skipped + index.text_size > limit:
            break
        at += index.member_size
        skipped += index.text_size
    file.seek(at)
    return skipped


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
        """Move to the next member; zeroes before it are padding, not damage."""
        damaged = False
        while True:
            found = self.buffer.find(MAGIC)
            # The last two bytes may be the begin of a magic.
            passed = self.buffer[: found if found != -1 else max(0, len(self.buffer) - 2)]
            damaged = damaged or bool(passed.strip(b"\0"))
            self.buffer = self.buffer[len(passed) :]
            if found == -1 and self.fill():
                continue
            if damaged or (found == -1 and self.buffer.strip(b"\0")):
                problem("garbage")
            return found != -1
