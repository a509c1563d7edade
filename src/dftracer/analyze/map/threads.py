"""The threads (and device streams) of a process as exclusive timelines, and what is asked of them.

They are as large as the trace, so they stay where they were read, in memory or in a file. The second map step
asks them what the process was doing while its rank waited, and for which batch: automatic tracing writes the
loader's own batch number on the wait (with the worker's pid) and on the batch's collation in the worker. The
items of a batch are those of that thread since the previous collation.
"""

from __future__ import annotations

import mmap
import pickle
import re
import tempfile
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import (
    EMPTY,
    Intervals,
    account,
    intersection,
    measure,
    pieces,
    total,
    union,
    union_of,
    union_of_keys,
)
from dftracer.analyze.stages import COMPUTE, NONE, STAGE_INDEX, STAGES
from dftracer.load._scan import pack_intervals, unpack_intervals
from dftracer.load.chunk import MISSING, Chunk, Ints, int64s

# The rows of a table of waits for batches, and of one of collations.
AWAITED = ("ts", "dur", "batch", "worker", "pid")
MADE = ("tid", "ts", "dur", "batch")
_FACTS = {name: re.compile(rf'"{key}":\s*(\d+)') for name, key in
          (("batch", "batch"), ("worker", "worker"), ("pid", "worker_pid"))}  # fmt: skip
_FETCH_WAIT = STAGE_INDEX["fetch_wait"]
_PROFILE, _STRIP = 4096, 1536  # how finely a thread is drawn
_MIN = 0.01  # of a step's time: shorter waits are ignored
_MAX_ITEMS, _MAX_FILES = 5, 5  # of a batch that was waited for
_TOP_FILES = 50  # of a process, while its rank waited


@dataclass
class Lane:
    """One thread (or device stream) of a process: its exclusive timeline."""

    tid: int
    start: Ints
    end: Ints
    stage: npt.NDArray[np.uint8]
    events: int

    def of(self, *stages: int) -> Intervals:
        mine = np.isin(self.stage, stages)
        return self.start[mine], self.end[mine]

    def busy(self) -> Intervals:
        return union_of_keys(self.start, self.end, self.stage, np.arange(len(STAGES)) != NONE)


@dataclass
class Batches:
    """What a process made: items and collations, in chronological order; it stays where it was read."""

    made: Ints = field(default_factory=lambda: np.empty((len(MADE), 0), np.int64))
    item_tid: Ints = field(default_factory=lambda: EMPTY[0])
    item_ts: Ints = field(default_factory=lambda: EMPTY[0])
    item_dur: Ints = field(default_factory=lambda: EMPTY[0])
    item_index: Ints = field(default_factory=lambda: EMPTY[0])

    @property
    def nbytes(self) -> int:
        arrays = (self.made, self.item_tid, self.item_ts, self.item_dur, self.item_index)
        return sum(a.nbytes for a in arrays)


@dataclass
class Lanes:
    """Data that stays on the node that read the file: its size grows with the trace."""

    lanes: list[Lane] = field(default_factory=list)
    io_file: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    io_ts: Ints = field(default_factory=lambda: EMPTY[0])
    io_dur: Ints = field(default_factory=lambda: EMPTY[0])
    io: Intervals = EMPTY  # all I/O and item reading, as one set of time
    paths: list[str] = field(default_factory=list)
    batches: Batches = field(default_factory=Batches)
    read: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))  # which paths were read
    io_n: Ints | None = None  # how often each transfer occurred, if not all occurred once

    @property
    def io_us(self) -> Ints:
        """The time of each transfer, including repeats."""
        return self.io_dur if self.io_n is None else self.io_dur * self.io_n

    @property
    def nbytes(self) -> int:
        """The memory of the arrays."""
        columns: list[npt.NDArray[Any]] = [self.io_file, self.io_ts, self.io_dur, *self.io]
        columns += [] if self.io_n is None else [self.io_n]
        columns += [c for lane in self.lanes for c in (lane.start, lane.end, lane.stage)]
        return sum(c.nbytes for c in columns) + self.batches.nbytes


def overlay(main: Lane, others: list[Lane], auto: bool = False) -> tuple[Ints, Ints, Ints]:
    """The main thread's timeline, with other lanes of the process explaining time that it cannot.

    Compute elsewhere (a device, a helper thread) also counts while the main thread waits for its loader: that
    wait costs nothing. Communication and the like only fill unexplained time. With automatic tracing there is
    none: the main thread runs code of the program, whatever a thread in the background does meanwhile.
    """
    start, end, stage = main.start, main.end, main.stage.astype(np.int64)
    if not others:
        return start, end, stage
    fills: list[tuple[int, Intervals, tuple[int, ...]]] = []
    order = [
        "forward",
        "backward",
        "optimizer",
        "comm",
        "transfer",
        "checkpoint",
        "collate",
        "preprocess",
        "read",
    ]
    for name in order:
        s = STAGE_INDEX[name]
        time = union_of(*(lane.of(s) for lane in others))
        if time[0].size:
            over: tuple[int, ...] = (NONE, _FETCH_WAIT) if s in COMPUTE else (NONE,)
            fills.append((s, time, tuple(o for o in over if o != NONE or not auto)))
    if not fills:
        return start, end, stage
    # Cut everything at every boundary, then decide each piece once.
    edges = np.unique(np.concatenate([start, end, *(e for _, t, _ in fills for e in t)]))
    left, right = edges[:-1], edges[1:]
    i = np.searchsorted(start, left, side="right") - 1
    inside = (i >= 0) & (left < end[np.maximum(i, 0)])
    piece = np.where(inside, stage[np.maximum(i, 0)], NONE)
    taken = np.zeros(piece.size, dtype=bool)
    for s, time, over in fills:
        hit = (measure(time, left, right) > 0) & np.isin(piece, over) & ~taken
        piece[hit] = s
        taken |= hit
    keep = inside | taken
    return left[keep], right[keep], piece[keep]


def by_stage(lane: Lane) -> dict[str, int]:
    sums = account(lane.start, lane.end, lane.stage, len(STAGES), lane.start[:1], lane.end[-1:]).sum(axis=0)
    return {STAGES[i]: v for i, v in enumerate(sums.tolist()) if v and i != NONE}


def profile(busy: Intervals) -> tuple[Ints, Ints]:
    """Busy time up to each of at most a few thousand moments: enough for drawing, whatever the length."""
    if busy[0].size == 0:
        return EMPTY
    if busy[0].size <= _PROFILE // 2:
        times = np.stack(busy, axis=1).reshape(-1)
    else:
        times = np.linspace(busy[0][0], busy[1][-1], _PROFILE).astype(np.int64)
    return times, measure(busy, np.full(times.size, times[0]), times)


def strip(lane: Lane) -> dict[str, Any] | None:
    """The lane in a fixed number of pieces, for drawing: the main stage of each, and how full it is."""
    if lane.start.size == 0:
        return None
    first, last = int(lane.start[0]), int(lane.end[-1])
    edges = np.linspace(first, last, _STRIP + 1).astype(np.int64)
    table = account(lane.start, lane.end, lane.stage, len(STAGES), edges[:-1], edges[1:])
    table[:, NONE] = 0
    width = np.maximum(np.diff(edges), 1)
    fill = np.minimum(table.sum(axis=1) / width, 1.0)
    return {
        "first_us": first,
        "last_us": last,
        "stage": np.where(fill > 0, table.argmax(axis=1), NONE).astype(np.uint8),
        "fill": (fill * 9 + 0.5).astype(np.uint8),
    }


@dataclass
class PackedIntervals:
    """Intervals in order, or nearly so, in a few bytes each."""

    packed: bytes
    n: int

    @classmethod
    def of(cls, start: Ints, end: Ints) -> PackedIntervals:
        start, end = (np.ascontiguousarray(times, dtype=np.int64) for times in (start, end))
        return cls(pack_intervals(start, end), start.size)

    def unpack(self) -> Intervals:
        start, end = unpack_intervals(self.packed, self.n)
        return int64s(start), int64s(end)


@dataclass
class PackedLanes:
    """Lanes packed into a third of the memory until they are needed."""

    rest: Lanes  # all but the times
    lanes: list[PackedIntervals]
    io: PackedIntervals
    io_rows: PackedIntervals

    @classmethod
    def of(cls, lanes: Lanes) -> PackedLanes:
        none = EMPTY[0]
        file = lanes.io_file
        if file.size and file.max() < np.iinfo(np.int16).max:
            file = file.astype(np.int16)
        return cls(
            replace(
                lanes,
                lanes=[replace(each, start=none, end=none) for each in lanes.lanes],
                io=EMPTY,
                io_file=file,
                io_ts=none,
                io_dur=none,
            ),
            [PackedIntervals.of(each.start, each.end) for each in lanes.lanes],
            PackedIntervals.of(*lanes.io),
            PackedIntervals.of(lanes.io_ts, lanes.io_ts + lanes.io_dur),
        )

    def unpack(self) -> Lanes:
        whole = []
        for lane, times in zip(self.rest.lanes, self.lanes, strict=True):
            start, end = times.unpack()
            whole.append(replace(lane, start=start, end=end))
        ts, end = self.io_rows.unpack()
        file = self.rest.io_file.astype(np.int32, copy=False)
        return replace(self.rest, lanes=whole, io=self.io.unpack(), io_file=file, io_ts=ts, io_dur=end - ts)


class LaneStore:
    """The lanes of every process: in memory while they are small, the rest in an unnamed file."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._stored: dict[int, mmap.mmap | int] = {}  # the lanes, or where they begin in the file
        self._file: IO[bytes] | None = None

    def __enter__(self) -> LaneStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, key: int, lanes: Lanes) -> None:
        packed = pickle.dumps(PackedLanes.of(lanes), protocol=5)
        if self._held + len(packed) <= self._limit:
            self._held += len(packed)
            # Not from the heap, where it would lie between pieces of memory that the next process needs.
            self._stored[key] = stored = mmap.mmap(-1, len(packed))
            stored[:] = packed
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="dftracer-")  # noqa: SIM115 - lives as long as self
        self._file.seek(0, 2)
        self._stored[key] = self._file.tell()
        self._file.write(packed)

    def take(self, key: int) -> Lanes:
        """The lanes stored under `key`, which are removed from the store."""
        stored = self._stored.pop(key)
        packed: PackedLanes
        if isinstance(stored, int):
            assert self._file is not None
            self._file.seek(stored)
            packed = pickle.load(self._file)
        else:
            self._held -= len(stored)
            packed = pickle.loads(stored)
            stored.close()
        return packed.unpack()


def read_lineage(kind: str, chunk: Chunk, rows: Ints, times: tuple[Ints, Ints, Ints]) -> Ints:
    """The table of some waits (AWAITED) or collations (MADE), from their arguments."""
    texts = [chunk.args_text(int(row)) for row in rows.tolist()]
    names = AWAITED[2:] if kind == "wait" else MADE[3:]
    facts = [np.array([_fact(text, name) for text in texts], np.int64) for name in names]
    tid, ts, dur = times
    table = np.stack((ts, dur, *facts) if kind == "wait" else (tid, ts, dur, *facts))
    kept: Ints = table[:, facts[0] != MISSING]
    return kept


def _fact(text: str, name: str) -> int:
    found = _FACTS[name].search(text)
    return MISSING if found is None else int(found.group(1))


@dataclass
class Awaited:
    """A batch that a step waited for, as a question to the process that made it."""

    step: int
    batch: int
    worker: int | None
    pid: int
    start_us: int
    end_us: int


def find_awaited(waits: Ints, starts: Ints, ends: Ints, main_pid: int) -> list[Awaited]:
    """The longest wait of each step, unless it was negligible."""
    found: dict[int, Awaited] = {}
    for i in np.argsort(waits[1], kind="stable").tolist():  # the longest comes last and is kept
        ts, dur, batch, worker, pid = (int(v) for v in waits[:, i])
        step = int(np.searchsorted(starts, ts, side="right")) - 1
        if step < 0 or ts >= ends[step] or dur < _MIN * (ends[step] - starts[step]):
            continue
        found[step] = Awaited(
            step,
            batch,
            None if worker == MISSING else worker,
            main_pid if pid == MISSING else pid,
            ts,
            ts + dur,
        )
    return [found[step] for step in sorted(found)]


@dataclass
class Question:
    """What a process is asked about: when its rank waited and computed, and its steps."""

    waits: Intervals
    compute: Intervals
    steps: Intervals
    steady: Intervals
    skip_tid: int | None  # the main thread, which is the one that waits
    awaited: list[Awaited] = field(default_factory=list)  # batches that this process made


@dataclass
class Explanation:
    """The share of one process in its rank's waiting, and how much of its I/O was hidden by compute."""

    stages_us: Ints = field(default_factory=lambda: np.zeros(len(STAGES), np.int64))
    steady_us: Ints = field(default_factory=lambda: np.zeros(len(STAGES), np.int64))  # of steady steps only
    busy: Intervals = EMPTY  # when any lane of the process worked, within the waits
    step_io_us: Ints = field(default_factory=lambda: EMPTY[0])  # reads and writes that began in each step
    files_us: list[tuple[str, int]] = field(default_factory=list)
    io_us: int = 0
    io_hidden_us: int = 0
    waited_for: dict[int, dict[str, Any]] = field(default_factory=dict)  # step -> the batch this process made


def explain(lanes: Lanes, question: Question) -> Explanation:
    """Look at all lanes except the one that waits."""
    out = Explanation()
    out.io_us = total(lanes.io)
    out.io_hidden_us = total(intersection(lanes.io, question.compute))
    out.waited_for = _trace_batches(
        lanes.batches, (lanes.io_file, lanes.io_ts, lanes.io_us), lanes.paths, question.awaited
    )
    waits = union(*question.waits)
    starts, ends = question.steps
    out.step_io_us = np.zeros(starts.size, np.int64)
    if starts.size and lanes.io_ts.size:
        ts, dur = lanes.io_ts, lanes.io_us
        if (ts[1:] < ts[:-1]).any():  # events of several threads
            order = np.argsort(ts, kind="stable")
            ts, dur = ts[order], dur[order]
        before = np.concatenate(([0], np.cumsum(dur)))
        out.step_io_us = before[np.searchsorted(ts, ends)] - before[np.searchsorted(ts, starts)]
    if waits[0].size == 0:
        return out
    busy: list[Intervals] = []
    for lane in lanes.lanes:
        if lane.tid == question.skip_tid:
            continue
        start, end, which = pieces(waits, (lane.start, lane.end))
        stage = lane.stage[which]
        working = stage != NONE
        start, end, stage = start[working], end[working], stage[working]
        out.stages_us += _by_stage(stage, end - start)
        out.steady_us += _by_stage(stage, measure(question.steady, start, end))
        busy.append((start, end))
    out.busy = union_of(*busy)
    if lanes.io_ts.size:
        us = measure(waits, lanes.io_ts, lanes.io_ts + lanes.io_dur)
        if lanes.io_n is not None:
            us = us * lanes.io_n
        known = lanes.io_file >= 0
        sums = np.bincount(lanes.io_file[known], weights=us[known], minlength=len(lanes.paths))
        sums[~lanes.read] = 0
        # Among equal ones the first by name: files come in the order in which threads happened to read them.
        least = np.sort(sums)[-_TOP_FILES:][0] if sums.size else 0.0
        found = np.flatnonzero((sums > 0) & (sums >= least)).tolist()
        found.sort(key=lambda f: (-sums[f], lanes.paths[f]))
        out.files_us.extend((lanes.paths[f], int(sums[f])) for f in found[:_TOP_FILES])
    return out


def _by_stage(stage: npt.NDArray[np.uint8], us: Ints) -> Ints:
    sums: Ints = np.bincount(stage, weights=us, minlength=len(STAGES)).astype(np.int64)
    return sums


def _trace_batches(
    batches: Batches, io: tuple[Any, Ints, Ints], paths: list[str], asked: list[Awaited]
) -> dict[int, dict[str, Any]]:
    """For each step what it waited for, if this process made it."""
    out: dict[int, dict[str, Any]] = {}
    if not asked or not batches.made.shape[1]:
        return out
    made = batches.made[:, np.argsort(batches.made[1], kind="stable")]
    order = np.argsort(io[1], kind="stable")
    io_file, io_ts, io_dur = (column[order] for column in io)
    for each in asked:
        # Numbers start over with each pass: it is the latest with that number before the wait ended.
        at = np.flatnonzero((made[3] == each.batch) & (made[1] <= each.end_us))
        if not at.size:
            continue
        tid, ts, dur, _ = (int(v) for v in made[:, at[-1]])
        earlier = made[1][(made[0] == tid) & (made[1] < ts)]
        since = int(earlier[-1]) if earlier.size else 0
        mine = np.flatnonzero(
            (batches.item_tid == tid) & (batches.item_ts < ts + dur) & (batches.item_ts >= since)
        )
        start = int(batches.item_ts[mine].min()) if mine.size else ts
        slowest = mine[np.argsort(-batches.item_dur[mine], kind="stable")][:_MAX_ITEMS]
        lo, hi = np.searchsorted(io_ts, (start, ts + dur))
        known = io_file[lo:hi] >= 0
        sums = np.bincount(io_file[lo:hi][known], weights=io_dur[lo:hi][known], minlength=len(paths))
        read = [f for f in np.argsort(-sums, kind="stable")[:_MAX_FILES].tolist() if sums[f] > 0]
        out[each.step] = {
            "worker": each.worker,
            "pid": each.pid,
            "batch": each.batch,
            "seconds": round((each.end_us - each.start_us) / 1e6, 6),
            "made_in_s": round((ts + dur - start) / 1e6, 6),
            "items": [
                {
                    "index": None if batches.item_index[i] == MISSING else int(batches.item_index[i]),
                    "seconds": round(int(batches.item_dur[i]) / 1e6, 6),
                }
                for i in slowest.tolist()
            ],
            "files": [{"path": paths[f], "seconds": round(float(sums[f]) / 1e6, 6)} for f in read],
        }
    return out
