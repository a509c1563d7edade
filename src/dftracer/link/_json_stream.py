"""Large JSON files in pieces: the head, the items of one long array, and what follows it.

Memory stays at a few pieces whatever the size of the file. What torch writes is not always valid JSON: names
are not escaped, and a killed process leaves the array open. Such items are repaired, or skipped and
counted.
"""

from __future__ import annotations

import json
import re
import types
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dftracer._text import plural
from dftracer.format.members import MAGIC
from dftracer.format.torch_files import repaired_item

BLOCK = 1 << 20
_PACKED_BLOCK = 1 << 18
_PLAIN = re.compile(rb'"(\w+)"\s*:\s*(-?(?:0|[1-9]\d{0,17})(?!\d)|"[^"\\]*")')


@dataclass
class Repairs:
    """What was wrong with a file, and what was done about it."""

    truncated: bool = False
    repaired: int = 0
    dropped: int = 0
    notes: list[str] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """One sentence per problem."""
        out = list(self.notes)
        if self.truncated:
            out.append("truncated: the process ended while writing it; the complete items were read")
        if self.repaired:
            broken = plural(self.repaired, "item was", "items were")
            out.append(f"{broken} not valid JSON (unescaped names) and repaired")
        if self.dropped:
            lost = plural(self.dropped, "item is", "items are")
            out.append(f"{lost} skipped: unreadable")
        return out


def read_blocks(path: Path, repairs: Repairs, size: int = BLOCK) -> Iterator[bytes]:
    """The bytes of a file, inflated if necessary; a truncated or damaged end is noted, not raised."""
    with path.open("rb") as f:
        if f.read(2) != MAGIC[:2]:
            f.seek(0)
            while block := f.read(size):
                yield block
            return
        f.seek(0)
        yield from _inflated(f, repairs, size)


def _inflated(f: BinaryIO, repairs: Repairs, size: int) -> Iterator[bytes]:
    parts: list[bytes] = []
    held = 0
    inflate = zlib.decompressobj(31)
    inside = False  # a member has begun and not ended
    damaged = False
    while not damaged and (packed := f.read(_PACKED_BLOCK)):
        while packed:
            inside = True
            try:
                part = inflate.decompress(packed, size)
            except zlib.error:
                damaged = True
                break
            parts.append(part)
            held += len(part)
            packed = inflate.unconsumed_tail
            if inflate.eof:
                packed = inflate.unused_data
                inflate = zlib.decompressobj(31)
                inside = False
            if held >= size:
                yield b"".join(parts)
                parts, held = [], 0
    if parts:
        yield b"".join(parts)
    if damaged:
        repairs.notes.append("the gzip data is damaged")
    repairs.truncated |= damaged or inside


class ItemReader:
    """The items of the array `key` of the top object.

    `begins` is a pattern for the beginning of an item: it distinguishes an item from an object inside one,
    and so shows where a block may be cut. `item` makes the type of an item. Afterwards `head` and `tail`
    contain the other keys of the top object.
    """

    def __init__(
        self, path: Path, key: str, begins: bytes, item: Callable[[], Any], name: re.Pattern[str]
    ) -> None:
        self.path = path
        self.repairs = Repairs()
        self.head: dict[str, Any] = {}
        self.found = False
        self._make_item = item
        self._decoders: tuple[Any, Any, type[Exception]] | None = None
        self._name = name
        self._open = re.compile(rb'"' + key.encode() + rb'"\s*:\s*\[\s*')
        self._cut = re.compile(rb"\}\s*,\s*(?=\{\s*(?:" + begins + rb"))")

    def texts(self) -> Iterator[bytes]:
        """The items as text, many at a time, with the commas between them."""
        blocks = read_blocks(self.path, self.repairs)
        held = b""
        for block in blocks:
            held += block
            opened = self._open.search(held)
            if opened is not None:
                self.found = True
                self._take_head(held[: opened.start()])
                yield from self._items(held[opened.end() :], blocks)
                return
        self._take_head(held.rstrip().removesuffix(b"}"))

    def _items(self, held: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            at = self._last_cut(held)
            if at is not None:
                yield held[: at[0]]
                held = held[at[1] :]
            held += block
        yield from self._last(held)

    def _last_cut(self, text: bytes) -> tuple[int, int] | None:
        """Where the last item begins, looking from the end."""
        low = len(text)
        while low > 0:
            low = max(0, low - (1 << 16))
            found = list(self._cut.finditer(text, low))
            if found:
                return found[-1].start() + 1, found[-1].end()
        return None

    def _last(self, held: bytes) -> Iterator[bytes]:
        """The remainder: the last items, the end of the array, the rest of the top object."""
        at = self._last_cut(held)
        if at is not None:
            yield held[: at[0]]
            held = held[at[1] :]
        held = held.strip()
        if not held:
            self.repairs.truncated = True
            return
        if held[:1] == b"]":
            self._take_head(b'{"_":0' + held[1:].rstrip().removesuffix(b"}"))
            return
        try:
            item, end = json.JSONDecoder(strict=False).raw_decode(held.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            yield from self._last_unclean(held)
            return
        yield json.dumps(item).encode()
        rest = held.decode("utf-8", "replace")[end:].strip()
        if rest.startswith("]"):
            self._take_head(b'{"_":0' + rest[1:].strip().removesuffix("}").encode())
        else:
            self.repairs.truncated = True

    def _last_unclean(self, held: bytes) -> Iterator[bytes]:
        """The last item is incomplete, or has an unescaped name."""
        closing = re.search(rb"\}\s*\]\s*(,\s*\"[^\"]+\"\s*:[^{}\[\]]*)*\}?\s*$", held)
        if closing is None:
            self.repairs.truncated = True
            return
        yield held[: closing.start() + 1]
        self._take_head(b'{"_":0' + (closing.group(1) or b""))

    def _take_head(self, text: bytes) -> None:
        text = text.strip().rstrip(b",")
        try:
            value = json.loads(text.decode("utf-8", "replace") + "}", strict=False)
        except (ValueError, RecursionError):
            for name, value in _PLAIN.findall(text):
                known = json.loads(value.decode("utf-8", "replace"), strict=False)
                self.head.setdefault(name.decode(), known)
            return
        if isinstance(value, dict):
            value.pop("_", None)
            self.head.update(value)

    def decode(self, text: bytes) -> list[Any]:
        """The items of a text, one by one if something is wrong with it."""
        if not text.strip():
            return []
        many, _, error = self._typed()
        try:
            items: list[Any] = many.decode(b"[" + text + b"]")
            return items
        except (error, UnicodeDecodeError, RecursionError):
            pass
        out = []
        begin = 0
        ends = [(m.start() + 1, m.end()) for m in self._cut.finditer(text)]
        for end, following in [*ends, (len(text), len(text))]:
            item = self._decode_one(text[begin:end])
            begin = following
            if item is None:
                self.repairs.dropped += 1
            else:
                out.append(item)
        return out

    def _typed(self) -> tuple[Any, Any, type[Exception]]:
        """Decoders for a list and for one item, and what they raise; created when the fast path fails."""
        if self._decoders is None:
            from dftracer._packages import need  # noqa: PLC0415 - brings NumPy, which looking at heads does without

            msgspec = need("msgspec", "link")
            item: Any = self._make_item()
            many: Any = types.GenericAlias(list, (item,))
            self._decoders = (msgspec.json.Decoder(many), msgspec.json.Decoder(item), msgspec.DecodeError)
        return self._decoders

    def _decode_one(self, text: bytes) -> Any:
        _, one, error = self._typed()
        try:
            return one.decode(text)
        except (error, UnicodeDecodeError, RecursionError):
            pass
        value = repaired_item(text.decode("utf-8", "replace"), self._name)
        try:
            # A second trip through JSON: raw pieces of an item must be text again.
            item = one.decode(json.dumps(value, allow_nan=False).encode())
        except (ValueError, RecursionError, error):
            return None
        self.repairs.repaired += 1
        return item
