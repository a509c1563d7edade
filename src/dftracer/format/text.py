"""Lines from the text of a trace, and the record in a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["LINE_LIMIT", "parse_line", "split_lines", "stripped"]

# No recorder writes a longer line; without a limit, 3 MB of gzip could require 3 GB of memory.
LINE_LIMIT = 16 << 20


def split_lines(text: Iterable[bytes], too_long: Callable[[], None]) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether the text ends or breaks off with it before a newline.

    An empty chunk marks a break in the text: the line before it is not continued. Lines beyond `LINE_LIMIT`
    are skipped; `too_long` is called for each.
    """
    held: list[bytes] = []
    size = 0
    for chunk in text:
        if not chunk:
            yield from _flushed(held, size, too_long)
            size = 0
            continue
        *whole, tail = chunk.split(b"\n")
        for part in whole:
            if size > LINE_LIMIT or size + len(part) > LINE_LIMIT:
                too_long()
            elif held:
                held.append(part)
                yield b"".join(held), False
            else:
                yield part, False
            held.clear()
            size = 0
        size += len(tail)
        if size > LINE_LIMIT:
            held.clear()
        elif tail:
            held.append(tail)
    yield from _flushed(held, size, too_long)


def _flushed(held: list[bytes], size: int, too_long: Callable[[], None]) -> Iterator[tuple[bytes, bool]]:
    if size > LINE_LIMIT:
        too_long()
    elif held:
        yield b"".join(held), True
    held.clear()


def stripped(line: bytes) -> bytes:
    """A line without the brackets and commas of the list around the records; empty if nothing is left."""
    text = line.strip(b" \t\r\n,\0")
    if text.startswith(b"["):
        text = text[1:].lstrip()
    return b"" if text == b"]" else text


def parse_line(text: bytes) -> Any:
    """The value of a stripped line; ValueError if it is not JSON."""
    decoded = text.decode("utf-8", "replace")
    try:
        try:
            return json.loads(decoded)
        except ValueError:
            # The closing bracket of the file may be on the same line as the last record.
            if decoded.endswith("]"):
                return json.loads(decoded[:-1].rstrip(" \t,"))
            raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
