"""Which spans of a thread are training steps, and which loop they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import EMPTY, Intervals
from dftracer.load.chunk import MISSING, Ints

__all__ = [
    "FORWARD_UNSEEN",
    "INFERENCE",
    "MARKS",
    "Bools",
    "StepTable",
    "steps_from_bodies",
    "steps_from_loop",
    "steps_from_profiler",
    "steps_from_replays",
    "steps_from_step_ends",
]

Bools = npt.NDArray[np.bool_]

# The rows of a table of marks; `flags` is what automatic tracing says about a step.
MARKS = ("tid", "ts", "dur", "step", "epoch", "count", "flags")
_TS, _DUR, _STEP, _EPOCH, _COUNT, _FLAGS = (
    MARKS.index(m) for m in ("ts", "dur", "step", "epoch", "count", "flags")
)
FORWARD_UNSEEN, INFERENCE = 1, 2


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
    elsewhere: int = 0  # loops of other threads of the process have this many steps, which are left out
    loop: Ints = field(default_factory=lambda: EMPTY[0])  # which pass through a loader, from 0
    inner: Intervals = EMPTY  # loops inside a step, one span for each step that has any
    evaluation: Ints = field(
        default_factory=lambda: EMPTY[0]
    )  # us of evaluation and compilation in each step
    flags: Ints = field(default_factory=lambda: EMPTY[0])  # FORWARD_UNSEEN, INFERENCE
    first: Bools = field(default_factory=lambda: np.empty(0, bool))  # of its epoch or loop
    profiled: Bools = field(default_factory=lambda: np.empty(0, bool))
    steady: Bools = field(default_factory=lambda: np.empty(0, bool))  # used to judge the run
    training: Ints = field(default_factory=lambda: EMPTY[0])  # which of several in turn, from 0

    def __post_init__(self) -> None:
        n = self.start.size
        if self.loop.size != n:
            self.loop = np.zeros(n, np.int64)
        if self.evaluation.size != n:
            self.evaluation = np.zeros(n, np.int64)
        if self.flags.size != n:
            self.flags = np.zeros(n, np.int64)
        if self.training.size != n:
            self.training = np.zeros(n, np.int64)
        if self.steady.size != n:
            self.first, self.profiled = np.zeros(n, bool), np.zeros(n, bool)
            self.steady = np.ones(n, bool)

    def __len__(self) -> int:
        return int(self.start.size)

    @property
    def wall(self) -> Ints:
        """The training time of each step."""
        return self.end - self.start - self.evaluation

    @property
    def usual_us(self) -> float:
        """How long a step takes: the median of the steady ones, wherever a median step is told."""
        return float(np.median(self.wall[self.steady])) if self.steady.any() else 0.0

    @property
    def per_second(self) -> float | None:
        """The rate of the steady steps; None without any."""
        seconds = float(self.wall[self.steady].sum()) / 1e6
        return float(self.steady.sum()) / seconds if seconds > 0 else None

    @property
    def epochs(self) -> int:
        """The number of passes over the data, from labels or loops; 0 if there are neither."""
        labels = np.unique(self.epoch[self.epoch != MISSING])
        if labels.size:
            return int(labels.size)
        return int(np.unique(self.loop).size) if self.source == "fetch" else 0

    def keep(self, rows: Bools) -> StepTable:
        """Some of the steps."""
        start, body, end, step, epoch, loop = (
            c[rows] for c in (self.start, self.body, self.end, self.step, self.epoch, self.loop)
        )
        return StepTable(
            start,
            body,
            end,
            step,
            epoch,
            self.source,
            self.tid,
            self.elsewhere,
            loop,
            self.inner,
            flags=self.flags[rows],
        )

    @staticmethod
    def none() -> StepTable:
        nothing = np.empty(0, np.int64)
        return StepTable(nothing, nothing, nothing, nothing, nothing, "none")


def steps_from_loop(waits: Ints, bodies: Ints) -> StepTable:
    """`fetch.iter` + `fetch.block` pairs of one thread; a body goes with the last wait before it, if any."""
    if waits.shape[1] == 0 or bodies.shape[1] == 0:
        return StepTable.none()
    waits = waits[:, np.argsort(waits[_TS], kind="stable")]
    bodies = bodies[:, np.argsort(bodies[_TS], kind="stable")]
    at = np.searchsorted(waits[_TS], bodies[_TS], side="right") - 1
    bodies, at = bodies[:, at >= 0], at[at >= 0]  # before the first wait a trace may be cut
    # A wait belongs to one body only: of two bodies after one wait the first is the pair. The other's batch
    # was in hand already (a list of batches, itertools.cycle).
    waited = np.ones(at.size, bool)
    waited[1:] = at[1:] != at[:-1]
    start, end = np.where(waited, waits[_TS][at], bodies[_TS]), bodies[_TS] + bodies[_DUR]
    outer = np.ones(start.size, dtype=bool)
    if start.size > 1:
        reach = np.maximum.accumulate(end)
        outer[1:] = start[1:] >= reach[:-1] - 1
    table = StepTable(
        start[outer], bodies[_TS][outer], end[outer], bodies[_STEP][outer], bodies[_EPOCH][outer], "fetch"
    )
    table.loop = _loops(bodies[_COUNT][outer])
    table.flags = np.maximum(bodies[_FLAGS][outer], 0)
    if not outer.all():
        table.inner = _inner(table, start[~outer], end[~outer])
    return table


def _loops(count: Ints) -> Ints:
    """The number of the loop each step is in: a loop counts its items from 1."""
    again = np.zeros(count.size, dtype=bool)
    known = count != MISSING
    again[1:] = known[1:] & known[:-1] & (count[1:] <= count[:-1])
    return np.cumsum(again).astype(np.int64)


def _inner(table: StepTable, start: Ints, end: Ints) -> Intervals:
    """For each step with a loop inside, the span of what runs in that loop."""
    step = np.searchsorted(table.start, start, side="right") - 1
    found = np.unique(step)
    first = np.array([start[step == s].min() for s in found.tolist()], np.int64)
    last = np.array([end[step == s].max() for s in found.tolist()], np.int64)
    return first, last


def steps_from_bodies(bodies: Ints) -> StepTable:
    """`fetch.block` alone: training without a loader, its steps marked by automatic tracing."""
    bodies = bodies[:, np.argsort(bodies[_TS], kind="stable")]
    ts, end = bodies[_TS], bodies[_TS] + bodies[_DUR]
    flags = np.maximum(bodies[_FLAGS], 0)
    return StepTable(ts, ts, end, bodies[_STEP], bodies[_EPOCH], "block", flags=flags)


def steps_from_profiler(marks: Ints) -> StepTable:
    """`ProfilerStep#n` spans."""
    marks = marks[:, np.argsort(marks[_TS], kind="stable")]
    ts, dur = marks[_TS], marks[_DUR]
    return StepTable(ts, ts, ts + dur, marks[_STEP], np.full(ts.size, MISSING), "profiler")


def steps_from_replays(launches: Ints, blocked: Ints) -> StepTable:
    """From one launch of a CUDA graph to the next; the last one ends when the host no longer waits for it."""
    launches = launches[:, np.argsort(launches[_TS], kind="stable")]
    ts = launches[_TS]
    last = int(ts[-1] + launches[_DUR][-1])
    after = blocked[_TS] >= ts[-1]
    if after.any():
        last = max(last, int((blocked[_TS] + blocked[_DUR])[after].max()))
    end = np.append(ts[1:], last)
    return StepTable(ts, ts, end, launches[_STEP], launches[_EPOCH], "graph")


def steps_from_step_ends(marks: Ints) -> StepTable:
    """The spans between the ends of `ai.compute.step`."""
    if marks.shape[1] < 2:
        return StepTable.none()
    end = marks[_TS] + marks[_DUR]
    order = np.argsort(end, kind="stable")
    end, step, epoch = end[order], marks[_STEP][order], marks[_EPOCH][order]
    return StepTable(end[:-1], end[:-1], end[1:], step[1:], epoch[1:], "compute.step")
