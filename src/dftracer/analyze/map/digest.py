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

from dftracer.analyze.device.busy_time import DeviceParts, device_parts
from dftracer.analyze.device.profiler_rows import HOST, TorchProcess
from dftracer.analyze.machine import CounterRow, read_counters
from dftracer.analyze.map.memory import Calls
from dftracer.analyze.map.own_code import LONG_US, NEITHER, Samples, kind_of, samples_of_chunk
from dftracer.analyze.map.steps import MARKS, Checkpoint, read_checkpoints
from dftracer.analyze.map.threads import read_lineage
from dftracer.analyze.peers import MeetingRows, is_meeting, meetings_of_chunk
from dftracer.analyze.stages import is_io
from dftracer.format.io_calls import is_close, is_open, is_read, is_write
from dftracer.format.records import COUNTER, interval_us, stream_lane
from dftracer.load._scan import Scanner, arg_numbers, digest_calls, pair_numbers, rows_of_pairs
from dftracer.load.chunk import MISSING, Chunk, Ints, int32s, int64s
from dftracer.load.process import MetaRow, ProcessInfo
from dftracer.load.rows import FORWARD_UNSEEN, INFERENCE
from dftracer.load.trace import Filter, scan_file

UNUSED = ("hhash", "level", "errno_")  # columns that no analysis needs
BIN_US_SHIFT = 17  # I/O over time is kept in bins of 2^17 us (0.131 s) and made coarser when drawn

_WAIT_CALLS = frozenset({"wait", "waitpid", "wait3", "wait4"})

# What an event is to the accounts of files; the native side knows the same (native/load/event_sums.hpp).
IO_NOT, IO_READ, IO_WRITE, IO_OPEN, IO_CLOSE, IO_META, IO_OPEN_TO_WRITE = range(7)

# The kinds of marks (`steps.MarkTables`), by category and name.
_MARKS = {
    ("dataloader", "fetch.iter"): "wait",
    ("dataloader", "fetch.block"): "body",
    ("data", "item"): "item",
    ("data", "collate"): "collate",
}
_COMPUTE = (("forward", "forward"), ("backward", "learn"), ("step", "compute_step"))
_PIPELINE = {"epoch": "epoch", "train": "train", "evaluate": "evaluate", "test": "evaluate"}
_CUDA = (("graphlaunch", "graph"), ("synchronize", "blocked"), ("memcpy", "copied"))
_FLAG_ARGUMENTS = {"copied": b'"bytes":', "transfer": b'"bytes":', "graph": b'"graph":'}
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
_LARGEST_TABLE = 4_000_000  # of pairs of a category and a name, by their codes
_KINDS = ("", *dict.fromkeys(kind for table in (*_TABLES, _ALONE.values()) for kind in table))

# The columns of sums by name.
_NAMED = {"pair": pl.Int32, "dur": pl.Int64, "n": pl.UInt32, "self": pl.Int64}


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
    calls: Calls | None = None


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
    calls: Calls | None = None  # I/O by file and over time
    io_rows: tuple[npt.NDArray[np.int32], Ints, Ints] | None = None  # file, ts, dur of each transfer
    marks: dict[str, Ints] = field(default_factory=dict)  # of delimiting events; rows as in steps.MARKS
    to_write: npt.NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))  # such opens
    auto: bool = False  # some of the steps were marked by automatic tracing
    lineage: dict[str, Ints] = field(default_factory=dict)  # waits and collations with their batches
    devices: DeviceParts | None = None  # profiler and device events
    counters: list[CounterRow] = field(default_factory=list)  # samples of the machine
    work: Ints | None = None  # long functions and I/O, as own_code.WorkRows has them
    left: dict[int, int] = field(default_factory=dict)  # children that were waited for: pid to wait status
    training_facts: dict[str, int] = field(default_factory=dict)  # when torch was imported, the rank
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


def digest_span(
    process: ProcessInfo, where: Filter, chunk_text: int, span: tuple[int, int] | None
) -> SpanDigest:
    """Digest some members of a file."""
    digester = Digester()
    out = SpanDigest([], [], {})
    process = replace(process, others={}, paths={}, strings={})
    for scanner, chunk in scan_file(process, where, 1, chunk_text, span, UNUSED):
        out.meta += chunk.meta
        for pid, rows in by_process(chunk):
            out.digests.append((pid, digester.digest(scanner, rows).own()))
    out.counts = process.counts
    return out


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


def digest_of(process: TorchProcess) -> Digest:
    """The events in the form of a trace's, for analysing a process without a trace."""
    rows = process.rows
    on = rows.on_device
    tid = np.where(on, stream_lane(rows.device, np.maximum(rows.stream, 0)), rows.tid)
    ts = rows.start // 1000
    dur = np.maximum(rows.end // 1000 - ts, 0)
    out = Digest(
        Source([("PP", name) for name in rows.names]),
        len(rows),
        rows.name.astype(np.int32),
        tid,
        ts,
        dur,
        None,
        devices=DeviceParts([rows]),
    )
    steps = [i for i, n in enumerate(rows.names) if n.startswith("ProfilerStep#")]
    at = np.flatnonzero(np.isin(rows.name, steps) & (rows.kind == HOST))
    if at.size:
        digits = [rows.names[n].rpartition("#")[2] for n in rows.name[at].tolist()]
        table = np.full((len(MARKS), at.size), MISSING)
        table[:4] = tid[at], ts[at], dur[at], [int(d) if d.isdigit() else MISSING for d in digits]
        out.marks["profiler"] = table
    return out


class Digester:
    """Digests the chunks of one scanner."""

    def __init__(self) -> None:
        self.source = Source()
        self.pairs = Pairs(self.source.keys)
        self.kinds: list[int] = []  # of mark, by pair
        self.work: list[int] = []  # kind of work, by pair

    def digest(self, scanner: Scanner, chunk: Chunk, long_us: int = 0) -> Digest:
        """`long_us`: shorter calls are not among the long ones of their process."""
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
            self._work(out, chunk, rows, max(long_us, LONG_US))
            self._children(out, chunk, rows)
            self._meetings(out, chunk, rows)
        return out

    def _meetings(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        keys = self.source.keys
        mine = [i for i, (cat, _) in enumerate(keys) if is_meeting(cat)]
        at = self._rows_of(out, mine)
        if at.size:
            names = [keys[p][1] for p in out.pair[at].tolist()]
            times = (out.tid[at], out.ts[at], out.dur[at])
            out.meetings = meetings_of_chunk(chunk, at if isinstance(rows, slice) else rows[at], names, times)

    def _rows_of(self, out: Digest, pairs: list[int]) -> Ints:
        """The events of some pairs."""
        if not pairs:
            return np.empty(0, np.int64)
        wanted = np.zeros(len(self.source.keys), np.uint8)
        wanted[pairs] = 1
        return int64s(rows_of_pairs(out.pair, wanted))

    def _children(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        """How children ended: a process that is killed cannot say so itself."""
        waiting = [
            i for i, (cat, name) in enumerate(self.source.keys) if cat == "POSIX" and name in _WAIT_CALLS
        ]
        at = self._rows_of(out, waiting)
        at = at[chunk.ints_at("ret", rows, at) > 0]
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
            record = _AggregatedCalls.of(chunk, row)
            number = int(pair[row])
            named += [(number, *each) for each in record.durations()]
            span[1] = max(span[1], record.start + record.interval)
            kind = int(self.pairs.io_kinds[number])
            if kind != IO_NOT:
                size = record.bytes if kind in (IO_READ, IO_WRITE) else 0
                size_bin = (size // record.calls).bit_length()
                file = int(chunk.codes("fhash")[row])
                for t, n, share, us in record.over_time(size):
                    moved.append((file, kind, size_bin, t, n, share, us))
        out.summed = Summed((span[0], span[1]), _frame(_NAMED, named))
        if moved:
            out.summed.calls = Calls.of(*np.array(moved, np.int64).T)

    def _work(self, out: Digest, chunk: Chunk, rows: Any, long_us: int) -> None:
        """Keep what can explain the time in which a device waits for the host."""
        keys = self.source.keys
        self.work += [kind_of(*key) for key in keys[len(self.work) :]]
        at = int64s(rows_of_pairs(out.pair, np.array(self.work, np.uint8) != NEITHER, out.dur, long_us))
        if at.size:
            out.work = np.empty((5, at.size), np.int64)
            columns: list[npt.NDArray[Any]] = [out.tid, out.ts, out.dur, out.pair, chunk.codes("fhash")[rows]]
            for row, column in zip(out.work, columns, strict=True):
                row[:] = column[at]

    def _io(self, out: Digest, scanner: Scanner, chunk: Chunk, rows: Any) -> None:
        files = self.source.files
        files += scanner.dictionary("fhash", len(files))
        kinds = self.pairs.io_kinds
        if not kinds.any():
            return
        args_end, args_text = chunk.args()
        to_write, calls, data = digest_calls(
            out.pair,
            kinds,
            self.pairs.returns_items,
            None if isinstance(rows, slice) else rows,
            chunk.rows,
            chunk.raw("ret"),
            chunk.raw("size"),
            chunk.raw("count"),
            chunk.raw("offset"),
            chunk.raw("fhash"),
            out.ts,
            out.dur,
            args_end,
            args_text,
            BIN_US_SHIFT,
        )
        out.to_write = int64s(to_write)
        found = Calls.of_buffers(calls)
        if not found.by_file[0].size:
            return
        out.calls = found
        out.io_rows = (int32s(data[0]), int64s(data[1]), int64s(data[2]))

    def _mark(self, out: Digest, chunk: Chunk, rows: Any) -> None:
        """Keep the events that delimit steps, items and epochs."""
        keys = self.source.keys
        for cat, name in keys[len(self.kinds) :]:
            kind = _mark_kind(cat, name)
            self.kinds.append(_KINDS.index(kind) if kind else 0)
        kinds = np.array(self.kinds, dtype=np.uint8)
        marked = int64s(rows_of_pairs(out.pair, kinds))
        of_row = kinds[out.pair[marked]]
        for number in np.flatnonzero(np.bincount(of_row)).tolist():  # cheaper than unique()
            kind, at = _KINDS[number], marked[of_row == number]
            label = chunk.ints_at("step", rows, at)
            if kind == "profiler":
                label = np.array(
                    [_trailing_number(keys[p][1]) for p in out.pair[at].tolist()], dtype=np.int64
                )
            counted = "image_idx" if kind == "item" else "count"
            labels = (label, chunk.ints_at("epoch", rows, at), chunk.ints_at(counted, rows, at))
            times = (out.tid[at], out.ts[at], out.dur[at])
            flags = np.zeros(at.size, np.int64)
            if kind == "optimizer":
                first = int(at[0] if isinstance(rows, slice) else rows[at[0]])
                found = re.findall(
                    r'"(imported_us|importing_us|rank|world_size)":\s*(\d+)', chunk.args_text(first)
                )
                out.training_facts = {key: int(value) for key, value in found}
            if kind in {"wait", "body", "collate"}:
                here = at if isinstance(rows, slice) else rows[at]
                automatic = '"auto":1' in chunk.args_text(int(here[0])).replace(" ", "")
                out.auto = out.auto or (automatic and kind != "collate")
                if automatic and kind == "body":
                    flags = _flags(chunk, here)
                elif automatic:
                    out.lineage[kind] = read_lineage(kind, chunk, here, times)
            key = _FLAG_ARGUMENTS.get(kind)
            if key:
                flags = _argument(chunk, at if isinstance(rows, slice) else rows[at], key)
            if kind == "sample":
                here = at if isinstance(rows, slice) else rows[at]
                out.samples = samples_of_chunk(chunk, here, out.ts[at], out.dur[at])
            elif kind in {"capture", "restart"}:
                here = at if isinstance(rows, slice) else rows[at]
                out.checkpoints += read_checkpoints(chunk, here, kind == "restart", times)
            elif kind != "collate":
                out.marks[kind] = np.stack((*times, *labels, flags))


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


def _flags(chunk: Chunk, rows: Any) -> Ints:
    """What automatic tracing says about some steps, see `StepTable.flags`."""
    out = np.zeros(len(rows), np.int64)
    for flag, key in ((FORWARD_UNSEEN, b'"forward_unseen":'), (INFERENCE, b'"inference":')):
        out[_argument(chunk, rows, key) > 0] |= flag
    return out


def _argument(chunk: Chunk, rows: Any, key: bytes) -> Ints:
    """A number among the arguments of some rows."""
    ends, text = chunk.args_of(np.asarray(rows))
    return int64s(arg_numbers(ends.astype(np.int64), text, key))


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
            interval_us({"args": args}) or chunk.interval_us(int(chunk.ints("pid")[row])),
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


def _frame(schema: dict[str, Any], rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row")


class Pairs:
    """Every (category, name) of a file as a small number, with what the analysis must know about it.

    They are numbered in order of appearance; the numbers stay valid across the chunks of a file.
    """

    def __init__(self, keys: list[tuple[str, str]]) -> None:
        self.keys = keys
        self._known: dict[tuple[str, str], int] = {}
        self._number: dict[tuple[int, int], int] = {}  # by the codes of the current scanner
        self._io: list[int] = []
        self._items: list[bool] = []
        self._names: list[str] = []
        self._cats: list[str] = []
        self._table = np.empty((0, 0), dtype=np.int32)  # `_number` by category and name

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
        width, cats = len(self._names) + 1, len(self._cats) + 1
        if width * cats > _LARGEST_TABLE:
            key = (chunk.codes("cat").astype(np.int64) + 1) * width + (chunk.codes("name") + 1)
            present, inverse = np.unique(key, return_inverse=True)
            numbers = np.array([self._number_of(*divmod(int(k), width)) for k in present], dtype=np.int32)
            result: npt.NDArray[np.int32] = numbers[inverse]
            return result
        if self._table.shape != (cats, width):
            self._table = np.full((cats, width), -1, dtype=np.int32)
            for cell, number in self._number.items():
                self._table[cell] = number
        codes = chunk.codes("cat"), chunk.codes("name")
        pair, unknown = pair_numbers(*codes, self._table, width)
        if int64s(unknown).size:
            for flat in int64s(unknown).tolist():
                self._table[divmod(flat, width)] = self._number_of(*divmod(flat, width))
            pair, _ = pair_numbers(*codes, self._table, width)
        return int32s(pair)

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
