"""The first half of the map step: chunks of events to the few columns that the analysis needs.

It needs no other part of the file, so the members of one file can be digested in different places; joined
in file order, the digests give the same result as reading the file in one piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dftracer.analyze.device_parts import DeviceParts, device_parts
from dftracer.analyze.host_work import LONG_US, NEITHER, kind_of
from dftracer.analyze.lineage import read_lineage
from dftracer.analyze.machine import Row, read_counters
from dftracer.analyze.marks import Checkpoint, read_checkpoints
from dftracer.analyze.meetings import MeetingRows, is_meeting, rows_of_chunk
from dftracer.analyze.pairs import (
    IO_NOT,
    IO_OPEN,
    IO_OPEN_TO_WRITE,
    IO_READ,
    IO_WRITE,
    Pairs,
    opens_to_write,
)
from dftracer.analyze.samples import Samples, samples_of_chunk
from dftracer.analyze.steps import FORWARD_UNSEEN, INFERENCE
from dftracer.format.records import COUNTER, interval_us
from dftracer.load._scan import Scanner, arg_numbers
from dftracer.load.chunk import MISSING, Chunk, Ints, int64s
from dftracer.load.process import MetaRow, ProcessInfo
from dftracer.load.trace import Filter, scan_file

__all__ = [
    "BIN_US_SHIFT",
    "Digest",
    "Digester",
    "SpanDigest",
    "Summed",
    "by_process",
    "bytes_moved",
    "digest_span",
]

_WAITS = frozenset({"wait", "waitpid", "wait3", "wait4"})
BIN_US_SHIFT = 17  # I/O over time is kept in bins of 2^17 us (0.131 s) and made coarser when drawn


@dataclass
class Source:
    """What the codes of a digest mean; grows while its file is read."""

    keys: list[tuple[str, str]] = field(default_factory=list)  # (category, name) by pair
    files: list[str] = field(default_factory=list)  # file hash by file number


@dataclass
class Summed:
    """Calls that were recorded as sums: by name, by file, and over time as far as the sums say."""

    span: tuple[int, int]
    names: pl.DataFrame  # pair, dur, n, self
    files: pl.DataFrame | None = None  # as in a digest
    io_time: pl.DataFrame | None = None


@dataclass
class Digest:
    """The complete events of a chunk, and what can be summed up already."""

    source: Source
    rows: int  # events of all kinds
    pair: npt.NDArray[np.int32]
    tid: Ints
    ts: Ints
    dur: Ints
    ids: tuple[Ints, Ints] | None  # id and parent id, if the dialect has them
    files: pl.DataFrame | None = None  # f, kind, bin, n, bytes, us, extent
    io_time: pl.DataFrame | None = None  # t, kind, n, bytes, us
    io_rows: tuple[npt.NDArray[np.int32], Ints, Ints] | None = None  # file, ts, dur of each transfer
    marks: dict[str, Ints] = field(default_factory=dict)  # of delimiting events; rows as in steps.MARKS
    to_write: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # such opens
    auto: bool = False  # some of the steps were marked by automatic tracing
    lineage: dict[str, Ints] = field(default_factory=dict)  # waits and collations with their batches
    devices: DeviceParts | None = None  # profiler and device events
    counters: list[Row] = field(default_factory=list)  # samples of the machine
    work: Ints | None = None  # long functions and I/O, as host_work.WorkRows has them
    left: dict[int, int] = field(default_factory=dict)  # children that were waited for: pid to wait status
    told: dict[str, int] = field(default_factory=dict)  # with an optimizer: when torch was imported, the rank
    samples: Samples | None = None  # of the program's own code
    summed: Summed | None = None  # aggregated records
    checkpoints: list[Checkpoint] = field(default_factory=list)
    meetings: MeetingRows | None = None  # with other ranks

    def own(self) -> Digest:
        """The same without keeping the chunk's memory alive."""
        ids = None if self.ids is None else (self.ids[0].copy(), self.ids[1].copy())
        return replace(
            self, pair=self.pair.copy(), tid=self.tid.copy(), ts=self.ts.copy(), dur=self.dur.copy(), ids=ids
        )


@dataclass
class SpanDigest:
    """The digests of a section of a file, in order, each with its process."""

    digests: list[tuple[int, Digest]]
    meta: list[MetaRow]
    counts: dict[str, Any]


class Digester:
    """Digests the chunks of one scanner."""

    def __init__(self) -> None:
        self.source = Source()
        self.pairs = Pairs(self.source.keys)
        self.kinds: list[int] = []  # of mark, by pair
        self.work: list[int] = []  # kind of work, by pair

    def digest(self, scanner: Scanner, chunk: Chunk) -> Digest:
        pair = self.pairs.of(scanner, chunk)
        tid = chunk.ints("tid") if chunk.has("tid") else chunk.ints("pid")
        all_pairs = pair
        complete = chunk.ph() == ord("X")
        rows: Any = slice(None) if complete.all() else np.flatnonzero(complete)
        pair, ts, dur, tid = (
            np.ascontiguousarray(c[rows]) for c in (pair, chunk.ints("ts"), chunk.ints("dur"), tid)
        )
        ids = None
        if chunk.has("p_idx") and chunk.has("id"):
            ids = (
                np.ascontiguousarray(chunk.ints("id")[rows]),
                np.ascontiguousarray(chunk.ints("p_idx")[rows]),
            )
        out = Digest(self.source, chunk.rows, pair, tid, ts, dur, ids)
        if not isinstance(rows, slice):
            self._counters(out, chunk, all_pairs)
            self._sums(out, scanner, chunk, all_pairs)
        if ts.size:
            self._io(out, scanner, chunk, rows)
            self._mark(out, chunk, rows)
            out.devices = device_parts(chunk, rows, out.pair, self.source.keys)
            self._work(out, chunk, rows)
            self._children(out, chunk, rows)
            self._meetings(out, chunk, rows)
        return out

    def _meetings(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        keys = self.source.keys
        mine = [i for i, (cat, _) in enumerate(keys) if is_meeting(cat)]
        at = np.flatnonzero(np.isin(out.pair, mine)) if mine else np.empty(0, np.intp)
        if at.size:
            names = [keys[p][1] for p in out.pair[at].tolist()]
            times = (out.tid[at], out.ts[at], out.dur[at])
            out.meetings = rows_of_chunk(chunk, at if isinstance(rows, slice) else rows[at], names, times)

    def _children(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        """How children ended: a process that is killed cannot say so itself."""
        waiting = [i for i, (cat, name) in enumerate(self.source.keys) if cat == "POSIX" and name in _WAITS]
        if not waiting:
            return
        at = np.flatnonzero(np.isin(out.pair, waiting) & (chunk.ints("ret")[rows] > 0))
        for i in (at if isinstance(rows, slice) else rows[at]).tolist():
            status = re.search(r'"status":\s*(\d+)', chunk.args_text(i))
            if status:
                out.left[int(chunk.ints("ret")[i])] = int(status[1])

    def _counters(self, out: Digest, chunk: Chunk, pair: npt.NDArray[np.int32]) -> None:
        at = np.flatnonzero(chunk.ph() == ord("C"))
        keys = [self.source.keys[p] for p in pair[at].tolist()]
        ours = np.array([cat == COUNTER for cat, _ in keys], dtype=bool)
        out.counters = read_counters(chunk, at[ours], [name for cat, name in keys if cat == COUNTER])

    def _sums(self, out: Digest, scanner: Scanner, chunk: Chunk, pair: npt.NDArray[np.int32]) -> None:
        at = np.flatnonzero(chunk.ph() == ord("A"))
        if not at.size:
            return
        files = self.source.files
        files += scanner.dictionary("fhash", len(files))
        named: list[tuple[int, int, int, int]] = []
        moved: list[tuple[int, int, int, int, int, int, int]] = []
        span = [int(chunk.ints("ts")[at].min()), 0]
        for row in at.tolist():
            told = _AggregatedCalls.of(chunk, row)
            number = int(pair[row])
            named += [(number, *each) for each in told.durations()]
            span[1] = max(span[1], told.start + told.interval)
            kind = int(self.pairs.io_kinds[number])
            if kind != IO_NOT:
                size = told.bytes if kind in (IO_READ, IO_WRITE) else 0
                size_bin = (size // told.calls).bit_length()
                file = int(chunk.codes("fhash")[row])
                for t, n, share, us in told.over_time(size):
                    moved.append((file, kind, size_bin, t, n, share, us))
        out.summed = Summed((span[0], span[1]), _frame(_NAMED, named))
        if moved:
            frame = _frame(_MOVED, moved).with_columns(pl.lit(0, pl.Int64).alias("extent"))
            sums = [pl.col("n").sum(), pl.col("bytes").sum(), pl.col("us").sum()]
            out.summed.files = frame.group_by("f", "kind", "bin").agg(*sums, pl.col("extent").max())
            out.summed.io_time = frame.group_by("t", "kind").agg(*sums)

    def _work(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        """Keep what can explain the time in which a device waits for the host."""
        keys = self.source.keys
        self.work += [kind_of(*key) for key in keys[len(self.work) :]]
        at = np.flatnonzero(out.dur >= LONG_US)
        at = at[np.array(self.work, dtype=np.uint8)[out.pair[at]] != NEITHER]
        if at.size:
            file = chunk.codes("fhash")[rows][at]
            out.work = np.stack(
                [c[at].astype(np.int64) for c in (out.tid, out.ts, out.dur, out.pair)]
                + [file.astype(np.int64)]
            )

    def _io(self, out: Digest, scanner: Scanner, chunk: Chunk, rows: Any) -> None:
        kind = self.pairs.io_kinds[out.pair]
        at = np.flatnonzero(kind != IO_NOT)
        files = self.source.files
        files += scanner.dictionary("fhash", len(files))
        if at.size == 0:
            return
        file = chunk.codes("fhash")[rows][at]
        kind = kind[at]
        opens = np.flatnonzero(kind == IO_OPEN)
        if opens.size:
            place = at[opens] if isinstance(rows, slice) else rows[at[opens]]
            kind[opens[opens_to_write(chunk, place)]] = IO_OPEN_TO_WRITE
        out.to_write = at[kind == IO_OPEN_TO_WRITE]
        moved = bytes_moved(chunk, rows, at, kind, self.pairs.returns_items[out.pair[at]])
        size_bin = np.zeros(at.size, dtype=np.uint8)
        some = moved > 0
        size_bin[some] = np.floor(np.log2(moved[some])).astype(np.uint8) + 1
        start, dur = out.ts[at], out.dur[at]
        extent = np.maximum(chunk.ints("offset")[rows][at], 0) + moved
        frame = pl.DataFrame(
            {
                "f": file,
                "kind": kind,
                "bin": size_bin,
                "bytes": moved,
                "us": dur,
                "extent": extent,
                "t": start >> BIN_US_SHIFT,
            }
        )
        sums = [pl.len().alias("n"), pl.col("bytes").sum(), pl.col("us").sum()]
        out.files = frame.group_by("f", "kind", "bin").agg(*sums, pl.col("extent").max())
        out.io_time = frame.group_by("t", "kind").agg(*sums)
        data = (kind == IO_READ) | (kind == IO_WRITE)
        out.io_rows = (file[data], start[data], dur[data])

    def _mark(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        """Keep the events that delimit steps, items and epochs."""
        keys = self.source.keys
        for cat, name in keys[len(self.kinds) :]:
            kind = _mark_kind(cat, name)
            self.kinds.append(_KINDS.index(kind) if kind else 0)
        of_row = np.array(self.kinds, dtype=np.uint8)[out.pair]
        marked = np.flatnonzero(of_row)
        of_row = of_row[marked]
        for number in np.unique(of_row).tolist():
            kind, at = _KINDS[number], marked[of_row == number]
            label = chunk.ints("step")[rows][at]
            if kind == "profiler":
                label = np.array(
                    [_trailing_number(keys[p][1]) for p in out.pair[at].tolist()], dtype=np.int64
                )
            counted = "image_idx" if kind == "item" else "count"
            labels = (label, chunk.ints("epoch")[rows][at], chunk.ints(counted)[rows][at])
            times = (out.tid[at], out.ts[at], out.dur[at])
            flags = np.zeros(at.size, np.int64)
            if kind == "optimizer":
                place = int(at[0] if isinstance(rows, slice) else rows[at[0]])
                found = re.findall(r'"(imported_us|rank|world_size)":\s*(\d+)', chunk.args_text(place))
                out.told = {key: int(value) for key, value in found}
            if kind in {"wait", "body", "collate"}:
                place = at if isinstance(rows, slice) else rows[at]
                automatic = '"auto":1' in chunk.args_text(int(place[0])).replace(" ", "")
                out.auto = out.auto or (automatic and kind != "collate")
                if automatic and kind == "body":
                    flags = _flags(chunk, place)
                elif automatic:
                    out.lineage[kind] = read_lineage(kind, chunk, place, times)
            if kind in {"copied", "transfer"}:
                flags = _argument(chunk, at if isinstance(rows, slice) else rows[at], b'"bytes":')
            if kind == "sample":
                place = at if isinstance(rows, slice) else rows[at]
                out.samples = samples_of_chunk(chunk, place, out.ts[at], out.dur[at])
            elif kind in {"capture", "restart"}:
                place = at if isinstance(rows, slice) else rows[at]
                out.checkpoints += read_checkpoints(chunk, place, kind == "restart", times)
            elif kind != "collate":
                out.marks[kind] = np.stack((*times, *labels, flags))


_NAMED = {"pair": pl.Int32, "dur": pl.Int64, "n": pl.UInt32, "self": pl.Int64}
_MOVED = {
    "f": pl.Int32,
    "kind": pl.UInt8,
    "bin": pl.UInt8,
    "t": pl.Int64,
    "n": pl.UInt32,
    "bytes": pl.Int64,
    "us": pl.Int64,
}


def _frame(schema: dict[str, Any], rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


@dataclass
class _AggregatedCalls:
    """What one aggregated record says of its calls."""

    start: int
    interval: int
    calls: int
    us: int
    shortest: int
    longest: int
    bytes: int
    histogram: dict[int, int]  # from how many us on: how many calls

    @classmethod
    def of(cls, chunk: Chunk, row: int) -> _AggregatedCalls:
        try:
            args = json.loads(chunk.args_text(row) or "{}")
        except ValueError:
            args = {}

        def summed(name: str) -> int:
            """A value that all calls have in common is written as it is."""
            whole, each = args.get(f"{name}_sum"), args.get(name)
            if each is None and name in ("ret", "size", "count"):
                lifted = int(chunk.ints(name)[row])
                each = None if lifted == MISSING else lifted
            return _whole(whole) if whole is not None else _whole(each) * calls

        calls = max(_whole(args.get("dft_cnt")), 1)
        moved = args.get("bytes")
        if moved is None:
            moved = next((n for name in ("ret", "size", "count") if (n := summed(name)) > 0), 0)
        multiply, divide = chunk.unit
        us, shortest, longest = (
            max(value, 0) * multiply // divide
            for value in (summed("dur"), _whole(args.get("dur_min")), _whole(args.get("dur_max")))
        )
        listed = args.get("dur_hist")
        histogram = {_whole(k): _whole(n) for k, n in listed.items()} if isinstance(listed, dict) else {}
        return cls(
            int(chunk.ints("ts")[row]),
            interval_us({"args": args}),
            calls,
            us,
            shortest,
            longest,
            max(_whole(moved), 0),
            histogram if sum(histogram.values()) == calls else {},
        )

    def durations(self) -> Iterator[tuple[int, int, int]]:
        """Durations, how many calls took that long, and their time: together exactly what was recorded."""
        rest, calls, buckets = self.us, self.calls, dict(self.histogram)
        # The shortest and the longest are known; what is left must have room between them.
        if calls > 2 and self.shortest * (calls - 1) + self.longest <= rest <= self.longest * calls:
            for us in (self.longest, self.shortest):
                yield us, 1, us
                rest, calls = rest - us, calls - 1
                low = 1 << us.bit_length() - 1 if us else 0
                buckets[low] = buckets.get(low, 1) - 1
        # Within a bucket the calls are taken to be alike; the heaviest one makes up the difference.
        typical = {low + low // 2: n for low, n in buckets.items() if n > 0}
        heaviest = max(typical, key=lambda us: us * typical[us], default=None)
        for us, n in typical.items():
            if us != heaviest and us * n <= rest and n < calls:
                yield us, n, us * n
                rest, calls = rest - us * n, calls - n
        each, more = divmod(rest, calls)
        for us, n in ((each, calls - more), (each + 1, more)):
            if n:
                yield us, n, us * n

    def over_time(self, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Bins of time, each with its share of calls, bytes and time."""
        first, last = self.start >> BIN_US_SHIFT, (self.start + self.interval - 1) >> BIN_US_SHIFT
        n = last - first + 1
        for i in range(n):
            calls, moved, us = (
                whole * (i + 1) // n - whole * i // n for whole in (self.calls, size, self.us)
            )
            if calls or moved or us:
                yield first + i, calls, moved, us


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _flags(chunk: Chunk, rows: Any) -> Ints:
    """What automatic tracing says about some steps, see `steps.StepTable.flags`."""
    out = np.zeros(len(rows), np.int64)
    for flag, key in ((FORWARD_UNSEEN, b'"forward_unseen":'), (INFERENCE, b'"inference":')):
        out[_argument(chunk, rows, key) > 0] |= flag
    return out


def _argument(chunk: Chunk, rows: Any, key: bytes) -> Ints:
    """A number among the arguments of some rows."""
    ends, text = chunk.args_of(np.asarray(rows))
    return int64s(arg_numbers(ends.astype(np.int64), text, key))


def by_process(chunk: Chunk) -> Iterator[tuple[int, Chunk]]:
    """The rows of each process; nearly always there is one."""
    if chunk.rows == 0:
        return
    pids = chunk.ints("pid")
    if (pids[0] == pids).all():
        yield int(pids[0]), chunk
        return
    for pid in np.unique(pids).tolist():
        yield pid, chunk.select(np.flatnonzero(pids == pid))


def digest_span(
    process: ProcessInfo, where: Filter, chunk_text: int, span: tuple[int, int] | None
) -> SpanDigest:
    """Digest some members of a file."""
    digester = Digester()
    out = SpanDigest([], [], {})
    process = replace(process, others={}, paths={}, strings={})
    for scanner, chunk in scan_file(process, where, 1, chunk_text, span):
        out.meta += chunk.meta
        for pid, rows in by_process(chunk):
            out.digests.append((pid, digester.digest(scanner, rows).own()))
    out.counts = process.counts
    return out


_MARKS = {
    ("dataloader", "fetch.iter"): "wait",
    ("dataloader", "fetch.block"): "body",
    ("data", "item"): "item",
    ("data", "collate"): "collate",
}
_COMPUTE = (("forward", "forward"), ("backward", "learn"), ("step", "compute_step"))
_PIPELINE = {"epoch": "epoch", "train": "train", "evaluate": "evaluate", "test": "evaluate"}
_CUDA = (("graphlaunch", "graph"), ("synchronize", "blocked"), ("memcpy", "copied"))
_TABLES = (
    _MARKS.values(),
    (kind for _, kind in _COMPUTE),
    _PIPELINE.values(),
    ("transfer", "profiler", "sample"),
    (kind for _, kind in _CUDA),
)
_ALONE = {
    ("dynamo", "compile"): "compile",
    ("dynamo", "recompile"): "compile",
    ("dftracer", "optimizer"): "optimizer",
    ("checkpoint", "capture"): "capture",
    ("checkpoint", "restart"): "restart",
}
_KINDS = ("", *dict.fromkeys(kind for table in (*_TABLES, _ALONE.values()) for kind in table))


def _mark_kind(cat: str, name: str) -> str:
    if cat == "compute" and not name.endswith(".init"):
        return next((kind for word, kind in _COMPUTE if name.startswith(word)), "")
    if cat == "pipeline":
        return _PIPELINE.get(name.removesuffix(".block"), "")
    if name.startswith("ProfilerStep"):
        return "profiler"
    if cat == "CUDA":
        return next((kind for word, kind in _CUDA if word in name.lower()), "")
    if cat == "sample":
        return "sample"
    return "transfer" if cat == "device" else _MARKS.get((cat, name)) or _ALONE.get((cat, name), "")


def _trailing_number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdigit() else MISSING


def bytes_moved(
    chunk: Chunk, rows: Any, at: Any, kind: npt.NDArray[np.uint8], items: npt.NDArray[np.bool_]
) -> Ints:
    """Bytes a call moved: what it returned, otherwise what was requested."""
    ret = chunk.ints("ret")[rows][at]
    size, count = (chunk.ints(c)[rows][at] for c in ("size", "count"))
    asked = np.where(size == MISSING, count, size)
    moved = np.where(ret == MISSING, asked, ret)
    if items.any():
        moved = np.where(items & (ret > 0) & (size > 0) & (count > 0), ret * np.maximum(size, 1), moved)
    data = (kind == IO_READ) | (kind == IO_WRITE)
    result: Ints = np.where(data & (moved > 0), moved, 0)
    return result
