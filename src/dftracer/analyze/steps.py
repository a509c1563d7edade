"""Which spans of a thread are training steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dftracer.load.chunk import MISSING, Ints

__all__ = ["StepTable", "steps_from_loop", "steps_from_profiler", "steps_from_step_ends"]


@dataclass
class StepTable:
    """The steps of one thread, in order: start, when the body began, end, and the labels the program gave."""

    start: Ints
    body: Ints
    end: Ints
    step: Ints
    epoch: Ints
    source: str
    tid: int = 0

    def __len__(self) -> int:
        return int(self.start.size)

    @staticmethod
    def none() -> StepTable:
        nothing = np.empty(0, np.int64)
        return StepTable(nothing, nothing, nothing, nothing, nothing, "none")


def steps_from_loop(
    wait_ts: Ints, wait_dur: Ints, body_ts: Ints, body_dur: Ints, step: Ints, epoch: Ints
) -> StepTable:
    """`fetch.iter` + `fetch.block` pairs of one thread; each body goes with the last wait before it."""
    if wait_ts.size == 0 or body_ts.size == 0:
        return StepTable.none()
    w = np.argsort(wait_ts, kind="stable")
    wait_ts, wait_dur = wait_ts[w], wait_dur[w]
    b = np.argsort(body_ts, kind="stable")
    body_ts, body_dur, step, epoch = body_ts[b], body_dur[b], step[b], epoch[b]
    at = np.searchsorted(wait_ts, body_ts, side="right") - 1
    keep = at >= 0
    # A wait belongs to one body only: of two bodies after one wait the first is the pair.
    keep[1:] &= at[1:] != at[:-1]
    at = at[keep]
    start, body, end = wait_ts[at], body_ts[keep], (body_ts + body_dur)[keep]
    outer = np.ones(start.size, dtype=bool)
    if start.size > 1:  # a loop inside a step (an evaluation, say) is part of that step
        reach = np.maximum.accumulate(end)
        outer[1:] = start[1:] >= reach[:-1] - 1
    return StepTable(start[outer], body[outer], end[outer], step[keep][outer], epoch[keep][outer], "fetch")


def steps_from_profiler(ts: Ints, dur: Ints, number: Ints) -> StepTable:
    """`ProfilerStep#n` spans."""
    order = np.argsort(ts, kind="stable")
    ts, dur, number = ts[order], dur[order], number[order]
    return StepTable(ts, ts, ts + dur, number, np.full(ts.size, MISSING), "profiler")


def steps_from_step_ends(ts: Ints, dur: Ints, step: Ints, epoch: Ints) -> StepTable:
    """The spans between the ends of `ai.compute.step`."""
    if ts.size < 2:
        return StepTable.none()
    order = np.argsort(ts + dur, kind="stable")
    end = (ts + dur)[order]
    return StepTable(end[:-1], end[:-1], end[1:], step[order][1:], epoch[order][1:], "compute.step")
