"""Columns: of integers, of byte strings, and the table of activities that every source of times becomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dftracer.link._json_stream import Repairs
from dftracer.link._text import join_columns
from dftracer.load.chunk import int64s

Ints: TypeAlias = "npt.NDArray[np.int64]"
Codes: TypeAlias = "npt.NDArray[np.int32]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"


class Interner(dict[Any, int]):
    """Numbers for values, in order of first appearance."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number

    def codes(self, values: Iterable[Any]) -> list[int]:
        """The numbers of many values."""
        return list(map(self.__getitem__, values))


def integers(values: Iterable[Any]) -> Ints:
    """Whole numbers as a column; -1 for values that are not numbers and for the largest unsigned one."""
    numbers = values if isinstance(values, list) else list(values)
    try:
        return np.array(numbers, dtype=np.int64)
    except (OverflowError, TypeError, ValueError):
        return np.array([integer(v) for v in numbers], dtype=np.int64)


def integer(value: Any, default: int = -1) -> int:
    """A whole number that a column can hold, or the default."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -(1 << 63) <= number < 1 << 63 else default


def distinct(values: Ints) -> Ints:
    """Each value once, in order; by sorting, which is faster here than NumPy's hashing."""
    ordered = np.sort(values)
    if not ordered.size:
        return ordered
    once: Ints = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return once


def contains(there: Ints, values: Ints) -> Flags:
    """Which of the values are present."""
    ordered = np.sort(there)
    if not ordered.size:
        return np.zeros(values.size, dtype=bool)
    at = np.minimum(np.searchsorted(ordered, values), ordered.size - 1)
    found: Flags = ordered[at] == values
    return found


class ByteColumn:
    """Byte strings concatenated in one text."""

    def __init__(self, text: bytes, ends: Ints) -> None:
        self.text = text
        self.ends = ends

    @classmethod
    def of(cls, values: list[bytes]) -> ByteColumn:
        """From a list."""
        return cls(b"".join(values), np.cumsum([len(v) for v in values], dtype=np.int64))

    @classmethod
    def joined(cls, parts: list[ByteColumn]) -> ByteColumn:
        """Several columns concatenated."""
        shift = np.cumsum([0, *(len(p.text) for p in parts)])
        ends = [p.ends + s for p, s in zip(parts, shift.tolist(), strict=False)]
        return cls(
            b"".join(p.text for p in parts), np.concatenate(ends) if ends else np.zeros(0, dtype=np.int64)
        )

    def take(self, rows: Ints) -> ByteColumn:
        """These rows, in this order."""
        text, ends = join_columns([self.slices], np.ascontiguousarray(rows, dtype=np.int64))
        return ByteColumn(text, int64s(ends))

    @property
    def slices(self) -> tuple[str, bytes, Ints]:
        """As a column to join."""
        return ("slices", self.text, self.ends)

    def __len__(self) -> int:
        return int(self.ends.size)

    def __getitem__(self, row: int) -> bytes:
        return self.text[int(self.ends[row - 1]) if row else 0 : int(self.ends[row])]

    def __iter__(self) -> Iterator[bytes]:
        return (self[row] for row in range(len(self)))


Columns: TypeAlias = "list[Any]"  # what `join_columns` takes


def coded(codes: Any, pieces: list[bytes]) -> tuple[str, Any, list[bytes]]:
    """One of a few pieces for each row."""
    return ("codes", np.ascontiguousarray(codes, dtype=np.int32), pieces)


def join_rows(columns: Columns, rows: Ints) -> ByteColumn:
    """The columns side by side."""
    text, ends = join_columns(columns, np.ascontiguousarray(rows, dtype=np.int64))
    return ByteColumn(text, int64s(ends))


def last_before(
    key: Ints,
    time: Ints,
    wanted_key: Ints,
    wanted_time: Ints,
    place: Ints | None = None,
    wanted_place: Ints | None = None,
) -> Ints:
    """For each wanted key and time, the index of the last entry of `key` not after it, -1 if there is none.

    Among equal times the smaller place comes first, and at the same place the wanted one before the others.
    """
    n, m = key.size, wanted_key.size
    out = np.full(m, -1, dtype=np.int64)
    if not n or not m:
        return out
    is_wanted = np.concatenate([np.zeros(n, dtype=np.int8), np.ones(m, dtype=np.int8)])
    keys = np.concatenate([key, wanted_key])
    columns = [np.concatenate([time, wanted_time]), keys]
    if place is not None and wanted_place is not None:
        columns.insert(0, np.concatenate([place, wanted_place]))
    order = np.lexsort((-is_wanted, *columns))
    found = np.where(is_wanted[order] == 0, np.arange(n + m), -1)
    found = np.maximum.accumulate(found)
    at = np.flatnonzero(is_wanted[order] == 1)
    source = found[at]
    ok = (source >= 0) & (keys[order[np.maximum(source, 0)]] == keys[order[at]])
    out[order[at[ok]] - n] = order[source[ok]]
    return out


# --- What ran, when, and where

OP, ANNOTATION, RUNTIME, KERNEL, MEMCPY, MEMSET, SYNC = range(7)
KIND_NAMES = ("op", "annotation", "runtime", "kernel", "memcpy", "memset", "sync")
HOST_KINDS = (OP, ANNOTATION, RUNTIME)
DEVICE_KINDS = (KERNEL, MEMCPY, MEMSET)

# Integers of every activity; -1 (0 for rf) if the source has none.
COLUMNS = (
    "kind",
    "pid",
    "tid",
    "start",  # ns since the epoch
    "dur",  # ns
    "rf",
    "external",
    "correlation",
    "seq",
    "fw_tid",
    "device",
    "stream",
)


@dataclass
class ActivityTable:
    """Activities of one process and its devices in order of their start; outer ones before inner ones."""

    path: Path | None
    source: str  # "kineto" or "nsys"
    kind: Ints
    pid: Ints
    tid: Ints
    start: Ints
    dur: Ints
    rf: Ints
    external: Ints
    correlation: Ints
    seq: Ints
    fw_tid: Ints
    device: Ints
    stream: Ints
    name: Codes
    names: list[str]
    details: dict[int, dict[str, Any]] = field(default_factory=dict)  # by row: collectives, copies, syncs
    main_pid: int | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)
    host: str = ""
    threads: dict[int, str] = field(default_factory=dict)
    writes_ids: bool = False  # events carry record ids, though perhaps all of them 0
    repairs: Repairs = field(default_factory=Repairs)

    def __len__(self) -> int:
        return int(self.kind.size)

    @property
    def end(self) -> Ints:
        end: Ints = self.start + self.dur
        return end

    def is_kind(self, *kinds: int) -> Flags:
        """Which rows are of these kinds."""
        wanted: Flags = np.isin(self.kind, kinds)
        return wanted

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end; (0, 0) without any activity."""
        return (int(self.start.min()), int(self.end.max())) if len(self) else (0, 0)


def empty_activity(source: str = "kineto") -> ActivityTable:
    """A table without rows."""
    columns: dict[str, Any] = {c: np.zeros(0, dtype=np.int64) for c in COLUMNS}
    return ActivityTable(path=None, source=source, **columns, name=np.zeros(0, dtype=np.int32), names=[])
