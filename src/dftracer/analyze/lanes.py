"""The threads (and device streams) of a process as exclusive timelines, and their drawing data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import EMPTY, Intervals, account, measure, union
from dftracer.analyze.lineage import Batches
from dftracer.analyze.stages import COMPUTE, NONE, STAGE_INDEX, STAGES
from dftracer.load.chunk import Ints

__all__ = ["Lane", "Lanes", "by_stage", "overlay", "packed", "profile", "strip", "unpacked"]

_PROFILE = 4096
_STRIP = 1536
_FETCH_WAIT = STAGE_INDEX["fetch_wait"]


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
        mine = self.stage != NONE
        return union(self.start[mine], self.end[mine])


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


def _offsets(times: Ints, base: int) -> npt.NDArray[Any]:
    """Times as offsets from `base`, in half the memory if they fit (71 minutes)."""
    if times.size and (int(times.min()) < base or int(times.max()) - base >= 1 << 32):
        return times - base
    return (times - base).astype(np.uint32)


def _times(offsets: npt.NDArray[Any], base: int) -> Ints:
    return offsets.astype(np.int64) + base


def packed(lanes: Lanes, base: int) -> Lanes:
    """The same in less memory: times are relative to `base`."""
    return replace(_changed(lanes, lambda times: _offsets(times, base)), io_dur=_offsets(lanes.io_dur, 0))


def unpacked(lanes: Lanes, base: int) -> Lanes:
    """The inverse of `packed`."""
    return replace(_changed(lanes, lambda offsets: _times(offsets, base)), io_dur=_times(lanes.io_dur, 0))


def _changed(lanes: Lanes, change: Callable[[Any], Any]) -> Lanes:
    changed = [replace(each, start=change(each.start), end=change(each.end)) for each in lanes.lanes]
    io = (change(lanes.io[0]), change(lanes.io[1]))
    return replace(lanes, lanes=changed, io_ts=change(lanes.io_ts), io=io)


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
        pieces = [lane.of(s) for lane in others]
        time = union(np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces]))
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
    length = lane.end - lane.start
    sums = np.bincount(lane.stage, weights=length, minlength=len(STAGES)).astype(np.int64)
    return {STAGES[i]: int(v) for i, v in enumerate(sums) if v and i != NONE}


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
