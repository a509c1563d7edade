"""What a process was doing while its rank waited: the second map step, again one process at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import EMPTY, Intervals, intersection, measure, pieces, total, union
from dftracer.analyze.lanes import Lanes
from dftracer.analyze.lineage import Awaited, trace_batches
from dftracer.analyze.stages import NONE, STAGES
from dftracer.load.chunk import Ints

__all__ = ["Asked", "Explanation", "explain"]

_TOP_FILES = 50


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


@dataclass
class Asked:
    """What a process is asked: when its rank waited and computed, and its steps."""

    waits: Intervals
    compute: Intervals
    steps: Intervals
    steady: Intervals
    skip_tid: int | None  # the main thread, which is the one that waits
    awaited: list[Awaited] = field(default_factory=list)  # batches that this process made


def _by_stage(stage: npt.NDArray[np.uint8], us: Ints) -> Ints:
    sums: Ints = np.bincount(stage, weights=us, minlength=len(STAGES)).astype(np.int64)
    return sums


def explain(lanes: Lanes, asked: Asked) -> Explanation:
    """Look at all lanes except the one that waits."""
    out = Explanation()
    out.io_us = total(lanes.io)
    out.io_hidden_us = total(intersection(lanes.io, asked.compute))
    out.waited_for = trace_batches(
        lanes.batches, (lanes.io_file, lanes.io_ts, lanes.io_us), lanes.paths, asked.awaited
    )
    waits = union(*asked.waits)
    starts, ends = asked.steps
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
        if lane.tid == asked.skip_tid:
            continue
        start, end, which = pieces(waits, (lane.start, lane.end))
        stage = lane.stage[which]
        working = stage != NONE
        start, end, stage = start[working], end[working], stage[working]
        out.stages_us += _by_stage(stage, end - start)
        out.steady_us += _by_stage(stage, measure(asked.steady, start, end))
        busy.append((start, end))
    if busy:
        out.busy = union(np.concatenate([b[0] for b in busy]), np.concatenate([b[1] for b in busy]))
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
