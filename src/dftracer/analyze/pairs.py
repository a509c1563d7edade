"""Every (category, name) of one file as a small number, with what the analysis must know about it."""

from __future__ import annotations

import os
import re

import numpy as np
import numpy.typing as npt

from dftracer.analyze.stages import is_io
from dftracer.format.io_calls import is_close, is_open, is_read, is_write
from dftracer.load._scan import Scanner
from dftracer.load.chunk import Chunk

__all__ = [
    "IO_CLOSE",
    "IO_META",
    "IO_NOT",
    "IO_OPEN",
    "IO_OPEN_TO_WRITE",
    "IO_READ",
    "IO_WRITE",
    "Pairs",
    "opens_to_write",
]

IO_NOT, IO_READ, IO_WRITE, IO_OPEN, IO_CLOSE, IO_META, IO_OPEN_TO_WRITE = range(7)


def _io_kind(cat: str, name: str) -> int:
    if not is_io(cat, name):
        return IO_NOT
    if is_read(name):
        return IO_READ
    if is_write(name):
        return IO_WRITE
    if name.startswith("creat"):
        return IO_OPEN_TO_WRITE
    # `fdopen` opens nothing: its descriptor is already open.
    if is_open(name) and name != "fdopen":
        return IO_OPEN
    return IO_CLOSE if is_close(name) else IO_META


_FLAGS = re.compile(rb'"flags": ?"?(-?\d+)')
_FIRST = b'{"flags":'  # how the arguments of an open begin
_DIGITS = 8  # more than flags ever have


def _to_write(flags: int) -> bool:
    mode, makes = flags & 3, bool(flags & (os.O_CREAT | os.O_TRUNC))
    return mode == os.O_WRONLY or (mode == os.O_RDWR and makes)


def opens_to_write(chunk: Chunk, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which of some open calls are for writing, by their flags."""
    heads, sizes = chunk.args_heads(rows, len(_FIRST) + _DIGITS)
    out = np.zeros(rows.size, dtype=bool)
    usual = (heads[:, : len(_FIRST)] == np.frombuffer(_FIRST, np.uint8)).all(axis=1) & (sizes > len(_FIRST))
    # There are few distinct ones, so each is read once.
    words = np.ascontiguousarray(heads[usual, len(_FIRST) :]).view(np.uint64).reshape(-1)
    texts, which = np.unique(words, return_inverse=True)
    values = [int(re.match(rb"-?\d*", t.tobytes()).group() or 0) for t in texts]  # type: ignore[union-attr]
    out[usual] = np.array([_to_write(v) for v in values], dtype=bool)[which]
    for at in np.flatnonzero(~usual & (sizes > 0)).tolist():
        found = _FLAGS.search(chunk.args_text(int(rows[at])).encode())
        out[at] = found is not None and _to_write(int(found.group(1)))
    return out


class Pairs:
    """Numbers pairs in order of appearance; the numbers stay valid across the chunks of a file."""

    def __init__(self, keys: list[tuple[str, str]]) -> None:
        self.keys = keys
        self._known: dict[tuple[str, str], int] = {}
        self._number: dict[tuple[int, int], int] = {}  # by the codes of the current scanner
        self._io: list[int] = []
        self._items: list[bool] = []
        self._names: list[str] = []
        self._cats: list[str] = []

    @property
    def returns_items(self) -> npt.NDArray[np.bool_]:
        """Calls whose `ret` counts items of `size` bytes."""
        return np.array(self._items, dtype=bool)

    @property
    def io_kinds(self) -> npt.NDArray[np.uint8]:
        return np.array(self._io, dtype=np.uint8)

    def of(self, scanner: Scanner, chunk: Chunk) -> npt.NDArray[np.int32]:
        """The pair of each row."""
        self._names += scanner.dictionary("name", len(self._names))
        self._cats += scanner.dictionary("cat", len(self._cats))
        # Codes start at -1 (absent), so both are shifted by one.
        width = len(self._names) + 1
        key = (chunk.codes("cat").astype(np.int64) + 1) * width + (chunk.codes("name") + 1)
        size = width * (len(self._cats) + 1)
        if size <= 4_000_000:
            present = np.flatnonzero(np.bincount(key, minlength=size))
            table = np.zeros(size, dtype=np.int32)
            table[present] = [self._number_of(*divmod(int(k), width)) for k in present]
            small: npt.NDArray[np.int32] = table[key]
            return small
        present, inverse = np.unique(key, return_inverse=True)
        numbers = np.array([self._number_of(*divmod(int(k), width)) for k in present], dtype=np.int32)
        result: npt.NDArray[np.int32] = numbers[inverse]
        return result

    def _number_of(self, cat_code: int, name_code: int) -> int:
        known = self._number.get((cat_code, name_code))
        if known is not None:
            return known
        cat = self._cats[cat_code - 1] if cat_code else ""
        name = self._names[name_code - 1] if name_code else ""
        key = (cat, name)
        number = self._number[cat_code, name_code] = self._known.setdefault(key, len(self.keys))
        if number < len(self.keys):
            return number
        self.keys.append(key)
        self._io.append(_io_kind(cat, name))
        self._items.append(
            is_io(cat, name) and name.removesuffix("_unlocked") in {"fread", "fwrite", "__fread_chk"}
        )
        return number
