"""Rows that grow with the trace, in memory that grows with the number of distinct rows.

A file of a few megabytes can unpack to tens of millions of events, but hardly to as many distinct ones.
If most rows are repeats, each is kept once with its count. A sample decides whether they are, so that
traces of real runs, whose times do not repeat, pay almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dftracer.load._scan import CallSums, DurationSums
from dftracer.load.chunk import Ints, int32s, int64s, uint32s

_MAX = 1 << 21  # rows before the first check
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(58)  # 1 of 64 times is in the sample
_FEW = 1024  # if a sample of the times has less than one row in this many, it says nothing


class Rows:
    """Columns of equal length; one of them is `ts`."""

    def __init__(self, *names: str, most: int = _MAX) -> None:
        self._names = names
        self._chunks: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self._most = self._limit = most
        self._rows = 0
        self._counts: list[npt.NDArray[np.int64]] | None = None  # before the first fold, each row counts once

    def add(self, *columns: npt.NDArray[Any]) -> None:
        for name, column in zip(self._names, columns, strict=True):
            self._chunks[name].append(column)
        if self._counts is not None:
            self._counts.append(np.ones(columns[0].size, np.int64))
        self._rows += columns[0].size
        if self._rows >= self._limit:
            if self._mostly_repeats():
                self._fold()
            self._limit = max(self._most, 2 * self._rows)

    def take(self, *but: str) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64] | None]:
        """The columns, without some, and how often each row occurred if not once; all are released here."""
        joined = []
        for name in but:
            del self._chunks[name]
        for name in self._names:  # one at a time: both forms of all of them would need twice the memory
            if name in but:
                continue
            parts = self._chunks.pop(name)
            joined.append(np.concatenate(parts) if parts else np.empty(0, np.int64))
        counts = None if self._counts is None else np.concatenate(self._counts)
        return joined, counts

    def _mostly_repeats(self) -> bool:
        sample: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in self._names}
        for i, ts in enumerate(self._chunks["ts"]):
            at = np.flatnonzero((ts.astype(np.uint64) * _ODD) >> _SHIFT == 0)
            for name in self._names:
                sample[name].append(self._chunks[name][i][at])
        frame = pl.DataFrame({name: np.concatenate(parts) for name, parts in sample.items()})
        if frame.height * _FEW < self._rows:
            return True
        return frame.n_unique() * 2 <= frame.height

    def _fold(self) -> None:
        counts = [np.ones(self._rows, np.int64)] if self._counts is None else self._counts
        frame = pl.DataFrame({name: np.concatenate(parts) for name, parts in self._chunks.items()})
        frame = frame.with_columns(pl.Series("", np.concatenate(counts)))
        # File order is kept: for events with equal times it says which one encloses the other.
        frame = frame.group_by(self._names, maintain_order=True).agg(pl.col("").sum())
        self._chunks = {name: [frame[name].to_numpy()] for name in self._names}
        self._counts = [frame[""].to_numpy()]
        self._rows = frame.height


@dataclass
class Calls:
    """I/O calls by file, kind and size, and over time."""

    by_file: tuple[npt.NDArray[Any], ...]  # f, kind, bin, n, bytes, us, extent
    by_time: tuple[npt.NDArray[Any], ...]  # t, kind, n, bytes, us

    @classmethod
    def of_buffers(cls, columns: Any) -> Calls:
        """Of what is native."""
        by_file, by_time = columns
        return cls(
            tuple(np.frombuffer(c, dtype) for c, dtype in zip(by_file, _FILES.values(), strict=True)),
            tuple(np.frombuffer(c, dtype) for c, dtype in zip(by_time, _TIMES.values(), strict=True)),
        )

    @classmethod
    def of(cls, f: Ints, kind: Ints, size: Ints, t: Ints, n: Ints, moved: Ints, us: Ints) -> Calls:
        """Of columns with a row for each file, kind, size and time."""
        sums = CallSums()
        by_file = (f, kind, size, n, moved, us, np.zeros_like(us))
        by_time = (t, kind, n, moved, us)
        sums.add(_typed(_FILES, by_file), _typed(_TIMES, by_time))
        return cls.of_buffers(sums.columns())


_FILES: dict[str, Any] = {
    "f": np.int32,
    "kind": np.uint8,
    "bin": np.uint8,
    "n": np.uint32,
    "bytes": np.int64,
    "us": np.int64,
    "extent": np.int64,
}
_TIMES: dict[str, Any] = {"t": np.int64, **{name: _FILES[name] for name in ("kind", "n", "bytes", "us")}}


def _typed(types: dict[str, Any], columns: tuple[Ints, ...]) -> tuple[npt.NDArray[Any], ...]:
    return tuple(np.ascontiguousarray(c.astype(t)) for t, c in zip(types.values(), columns, strict=True))


class FileSums:
    """The same of a whole process."""

    def __init__(self) -> None:
        self._sums = CallSums()
        self._any = False

    def add(self, calls: Calls, renumbered: Callable[[Any], Any]) -> None:
        """`renumbered`: from the numbers of files in `calls` to those of the process."""
        file, *rest = calls.by_file
        self._sums.add((np.ascontiguousarray(renumbered(file), np.int32), *rest), calls.by_time)
        self._any = True

    def frames(self, paths: list[str]) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
        """By file, which `paths` names, and over time; nothing if there were no calls."""
        if not self._any:
            return None, None
        calls = Calls.of_buffers(self._sums.columns())
        files = pl.DataFrame(dict(zip(_FILES, calls.by_file, strict=True)))
        names = pl.DataFrame(
            {"f": np.arange(len(paths), dtype=np.int32), "path": paths},
            schema={"f": pl.Int32, "path": pl.String},
        )
        named: pl.DataFrame = files.join(names, on="f", how="left").select(
            pl.col("path").fill_null("(unknown)"), "kind", "bin", "n", "bytes", "us", "extent"
        )
        return named, pl.DataFrame(dict(zip(_TIMES, calls.by_time, strict=True)))


class NameSums:
    """Events and their self time by kind (`pair`) and duration."""

    def __init__(self) -> None:
        self._sums = DurationSums()

    def add(
        self, pair: npt.NDArray[np.int32], dur: Ints, own: Ints, n: npt.NDArray[Any] | None = None
    ) -> None:
        counts = None if n is None else n.astype(np.int64)
        self._sums.add(np.ascontiguousarray(pair, np.int32), np.ascontiguousarray(dur), own, counts)

    def frame(self) -> pl.DataFrame:
        pair, dur, n, own = self._sums.columns()
        return pl.DataFrame(
            {
                "pair": int32s(pair),
                "dur": int64s(dur),
                "n": uint32s(n),
                "self": int64s(own),
            }
        )
