"""A chunk of rows as NumPy arrays over native memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.format.records import AGGREGATION_INTERVAL_US
from dftracer.load import _scan

MISSING: int = _scan.MISSING  # where a record has no such value
Ints = npt.NDArray[np.int64]

# Names on the Python side; the native side knows the same (native/load/columns.hpp).
INT_COLUMNS = (
    "id",
    "pid",
    "tid",
    "ts",
    "dur",
    "level",
    "p_idx",
    "epoch",
    "step",
    "count",
    "size",
    "offset",
    "ret",
    "errno",
    "image_idx",
)
CODE_COLUMNS = ("name", "cat", "hhash", "fhash")


def int64s(buffer: Any) -> Ints:
    """Native memory as an array."""
    return np.frombuffer(buffer, dtype=np.int64)


def int32s(buffer: Any) -> npt.NDArray[np.int32]:
    """Native memory as an array."""
    return np.frombuffer(buffer, dtype=np.int32)


def uint32s(buffer: Any) -> npt.NDArray[np.uint32]:
    """Native memory as an array."""
    return np.frombuffer(buffer, dtype=np.uint32)


def uint8s(buffer: Any) -> npt.NDArray[np.uint8]:
    """Native memory as an array."""
    return np.frombuffer(buffer, dtype=np.uint8)


class Chunk:
    """Rows of one file. Missing integers are `MISSING`, missing codes -1."""

    __slots__ = ("_raw", "interval_us", "meta", "rows", "unit")

    def __init__(self, raw: dict[str, Any]) -> None:
        self._raw = raw
        self.rows: int = raw["rows"]
        self.meta: list[tuple[str, str, str, str, int, int, int]] = raw["meta"]
        self.unit = (1, 1)  # (multiply, divide) to get microseconds from times that are in no column
        # The interval of a process's aggregated records that do not say it.
        self.interval_us: Callable[[int], int] = lambda _: AGGREGATION_INTERVAL_US

    def has(self, column: str) -> bool:
        """Whether any row has a value in `column`."""
        return _native(column) in self._raw

    def raw(self, column: str) -> Any:
        """The native buffer of a column; None if no row has a value."""
        return self._raw.get(_native(column))

    def scale_time(self, multiply: int, divide: int) -> None:
        """Convert times in another unit to microseconds."""
        self.unit = (multiply, divide)
        for column in ("ts", "dur"):
            if self.has(column):
                self._raw[column] = self.ints(column) * multiply // divide

    def select(self, rows: npt.NDArray[np.intp]) -> Chunk:
        """Some of the rows."""
        raw: dict[str, Any] = {
            "rows": int(rows.size),
            "meta": self.meta,
            "ph": np.ascontiguousarray(self.ph()[rows]),
        }
        for column in INT_COLUMNS:
            if self.has(column):
                raw[_native(column)] = self.ints(column)[rows]
        for column in CODE_COLUMNS:
            if self.has(column):
                raw[column] = self.codes(column)[rows]
        if self.rows:
            raw["args_end"], raw["args_text"] = self.args_of(rows)
        chosen = Chunk(raw)
        chosen.unit = self.unit
        chosen.interval_us = self.interval_us
        return chosen

    def args(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """The arguments of all rows that are in no column, as one text and where each row's part ends."""
        return np.frombuffer(self._raw["args_end"], dtype=np.int32), uint8s(self._raw["args_text"])

    def args_of(self, rows: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """The arguments of some rows that are in no column, as one text and where each row's part ends."""
        end = np.frombuffer(self._raw["args_end"], dtype=np.int32).astype(np.int64)
        start = np.concatenate(([0], end[:-1]))[rows]
        size = end[rows] - start
        ends = np.cumsum(size)
        # Each byte's position: where its row's text begins, and how far it is into it.
        at = np.repeat(start - (ends - size), size) + np.arange(ends[-1] if ends.size else 0)
        return ends.astype(np.int32), uint8s(self._raw["args_text"])[at]

    def ints(self, column: str) -> Ints:
        buffer = self._raw.get(_native(column))
        if buffer is None:
            return np.full(self.rows, MISSING, dtype=np.int64)
        return np.frombuffer(buffer, dtype=np.int64)

    def ints_at(self, column: str, rows: Any, at: npt.NDArray[np.intp]) -> Ints:
        """A column of those rows `at` which some of `rows` are."""
        if not self.has(column):
            return np.full(at.size, MISSING, dtype=np.int64)
        return self.ints(column)[at if isinstance(rows, slice) else rows[at]]

    def codes(self, column: str) -> npt.NDArray[np.int32]:
        buffer = self._raw.get(column)
        if buffer is None:
            return np.full(self.rows, -1, dtype=np.int32)
        return np.frombuffer(buffer, dtype=np.int32)

    def ph(self) -> npt.NDArray[np.int8]:
        return np.frombuffer(self._raw["ph"], dtype=np.int8) if self.rows else np.empty(0, np.int8)

    def args_text(self, row: int) -> str:
        """The arguments of one row that are in no column, as JSON ('' if there are none)."""
        ends = np.frombuffer(self._raw["args_end"], dtype=np.int32)
        start = int(ends[row - 1]) if row else 0
        return bytes(memoryview(self._raw["args_text"])[start : int(ends[row])]).decode("utf-8", "replace")


def _native(column: str) -> str:
    return "errno_" if column == "errno" else column
