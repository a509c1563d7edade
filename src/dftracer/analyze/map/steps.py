"""The training of one process: its steps, found by the events that delimit them, and the phases of its run.

A mark is such an event: a wait for a batch, the body of a loop, a forward pass, an update, an evaluation.
The thread with the most steps is the one that trains. Its phases say where the run begins and ends, what is
evaluation, and which steps are steady.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dftracer.analyze.intervals import (
    EMPTY,
    Bools,
    Intervals,
    difference,
    intersection,
    measure,
    total,
    union,
    union_of,
)
from dftracer.analyze.map.memory import Rows
from dftracer.analyze.thresholds import (
    FEW_STEPS,
    MAJORITY,
    STEADY_STEPS,
    TRAINING_STEPS,
    UNUSED_BATCH_US,
    UNUSED_SHARE,
    WARM_UP_FACTOR,
    WARM_UP_STEPS,
)
from dftracer.load.chunk import MISSING, Chunk, Ints
from dftracer.load.rows import INFERENCE

# The rows of a table of marks; `flags` is what automatic tracing says about a step, as in its row.
MARKS = ("tid", "ts", "dur", "step", "epoch", "count", "flags")
_TS, _DUR, _STEP, _EPOCH, _COUNT, _FLAGS = (
    MARKS.index(m) for m in ("ts", "dur", "step", "epoch", "count", "flags")
)

# Of these it matters where they are, not how many are at the very same place.
_PLACES = frozenset({"forward", "learn", "train", "evaluate", "transfer"})
_MANY = 1 << 19
_REPLAYS = 3  # times as many replays as other steps: those are the warm-up before the capture
_SHORT_LOOP = 3  # loops with fewer steps than this (say, a new loader for each step) are not epochs


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
    evaluation: Ints = field(default_factory=lambda: EMPTY[0])  # and compilation: us in each step
    flags: Ints = field(default_factory=lambda: EMPTY[0])  # FORWARD_UNSEEN, INFERENCE of `load.rows`
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
        """How long a step takes: the median of the steady ones, wherever a report names one."""
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


def _steps_from_loop(waits: Ints, bodies: Ints, evaluation: Intervals | None = None) -> StepTable:
    """`fetch.iter` + `fetch.block` pairs of one thread; a body goes with the last wait before it, if any.

    Automatic tracing marks every step, also those without a wait, and the `evaluation` whose waits are not
    theirs.
    """
    if evaluation is not None:
        waits = waits[:, measure(evaluation, waits[_TS], waits[_TS] + 1) == 0]
    if waits.shape[1] == 0 or bodies.shape[1] == 0:
        return StepTable.none()
    waits = waits[:, np.argsort(waits[_TS], kind="stable")]
    bodies = bodies[:, np.argsort(bodies[_TS], kind="stable")]
    at = np.searchsorted(waits[_TS], bodies[_TS], side="right") - 1
    if evaluation is None:
        bodies, at = bodies[:, at >= 0], at[at >= 0]  # before the first wait a trace may be cut
    # A wait belongs to one body only: of two bodies after one wait the first is the pair. The other's batch
    # was in hand already (a list of batches, itertools.cycle).
    waited = at >= 0
    waited[1:] &= at[1:] != at[:-1]
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


def _steps_from_bodies(bodies: Ints) -> StepTable:
    """`fetch.block` alone: training without a loader, its steps marked by automatic tracing."""
    bodies = bodies[:, np.argsort(bodies[_TS], kind="stable")]
    ts, end = bodies[_TS], bodies[_TS] + bodies[_DUR]
    flags = np.maximum(bodies[_FLAGS], 0)
    return StepTable(ts, ts, end, bodies[_STEP], bodies[_EPOCH], "block", flags=flags)


def _steps_from_profiler(marks: Ints) -> StepTable:
    """`ProfilerStep#n` spans."""
    marks = marks[:, np.argsort(marks[_TS], kind="stable")]
    ts, dur = marks[_TS], marks[_DUR]
    return StepTable(ts, ts, ts + dur, marks[_STEP], np.full(ts.size, MISSING), "profiler")


def _steps_from_replays(launches: Ints, blocked: Ints) -> StepTable:
    """From one launch of a CUDA graph to the next; the last one ends when the host no longer waits for it."""
    launches = launches[:, np.argsort(launches[_TS], kind="stable")]
    ts = launches[_TS]
    last = int(ts[-1] + launches[_DUR][-1])
    after = blocked[_TS] >= ts[-1]
    if after.any():
        last = max(last, int((blocked[_TS] + blocked[_DUR])[after].max()))
    end = np.append(ts[1:], last)
    return StepTable(ts, ts, end, launches[_STEP], launches[_EPOCH], "graph")


def _steps_from_step_ends(marks: Ints) -> StepTable:
    """The spans between the ends of `ai.compute.step`."""
    if marks.shape[1] < 2:
        return StepTable.none()
    end = marks[_TS] + marks[_DUR]
    order = np.argsort(end, kind="stable")
    end, step, epoch = end[order], marks[_STEP][order], marks[_EPOCH][order]
    return StepTable(end[:-1], end[:-1], end[1:], step[1:], epoch[1:], "compute.step")


class Checkpoint(NamedTuple):
    """State that was saved, or restored."""

    tid: int
    start: int
    end: int
    restored: bool
    path: str | None  # as the program gave it
    counter: int | None  # the number of a step that is in it, if that could be seen
    failed: bool
    done: int = 0  # steps of this process that were finished by then


def read_checkpoints(
    chunk: Chunk, rows: Ints, restored: bool, times: tuple[Ints, Ints, Ints]
) -> list[Checkpoint]:
    """The checkpoints among some rows."""
    out = []
    for row, tid, ts, dur in zip(rows.tolist(), *(t.tolist() for t in times), strict=True):
        try:
            facts = json.loads(chunk.args_text(row) or "{}")
        except (ValueError, RecursionError):
            facts = {}
        path, counter = facts.get("path"), facts.get("counter")
        out.append(
            Checkpoint(
                tid,
                ts,
                ts + dur,
                restored,
                path if isinstance(path, str) else None,
                counter if isinstance(counter, int) else None,
                "error" in facts,
            )
        )
    return out


class MarkTables:
    """Marks of one process by kind; the rows of a table are those of MARKS."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Ints]] = {}
        self._growing: dict[str, Rows] = {}

    def add(self, tables: dict[str, Ints]) -> None:
        for kind, table in tables.items():
            if kind in _PLACES:
                self._growing.setdefault(kind, Rows(*MARKS, most=_MANY)).add(*table)
            else:
                self._parts.setdefault(kind, []).append(table)

    def of(self, kind: str, tid: int | None = None) -> Ints:
        if kind in self._growing:
            self._parts[kind] = [np.stack(self._growing.pop(kind).take()[0])]
        parts = self._parts.get(kind)
        if not parts:
            return np.empty((len(MARKS), 0), np.int64)
        if len(parts) > 1:
            parts[:] = [np.concatenate(parts, axis=1)]
        return parts[0] if tid is None else parts[0][:, parts[0][0] == tid]

    def spans(self, kind: str, tid: int | None = None) -> Intervals:
        table = self.of(kind, tid)
        order = np.argsort(table[1], kind="stable")
        return table[1][order], (table[1] + table[2])[order]

    def count_done(self, steps: StepTable, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """The same checkpoints, with how many steps had been finished before each.

        A step is done once its update was made, even if its loop has not fetched the next batch.
        """
        updates = self.spans("compute_step")
        ends = np.sort(updates[1] if updates[1].size else self.spans("learn")[1])
        out = []
        for each in checkpoints:
            done = int(np.searchsorted(steps.end, each.start, side="right"))
            since = int(steps.end[done - 1]) if done else 0
            updated = np.searchsorted(ends, each.start, side="right") > np.searchsorted(
                ends, since, side="right"
            )
            out.append(each._replace(done=done + int(updated)))
        return out

    def step_is_whole(self, steps: StepTable) -> bool:
        """Whether `compute.step` surrounds whole steps rather than just the optimizer."""
        marks = self.of("compute_step")
        if marks.shape[1] == 0:
            return False
        if any(self.of(kind).shape[1] for kind in ("forward", "learn")):
            return False  # the rest is the optimizer's, even if it calls the model (a closure)
        if len(steps) == 0 or steps.source == "compute.step":
            return False
        inside = measure(union(*self.spans("compute_step")), steps.body, steps.end).sum()
        return bool(inside > MAJORITY * (steps.end - steps.body).sum())


@dataclass
class Marks:
    """The spans of one process that define its phases."""

    train: Intervals = EMPTY  # `pipeline.train`, in chronological order
    evaluate: Intervals = EMPTY  # `pipeline.evaluate` and `pipeline.test`
    forward: Intervals = EMPTY  # of the thread with the steps
    learn: Intervals = EMPTY  # backward and optimizer, of any thread
    waits: Intervals = EMPTY  # for batches, of the thread with the steps
    loading: Intervals = EMPTY  # other annotations around a forward pass: fetching, items, transfers
    profiler: Intervals = EMPTY
    compile: Intervals = EMPTY  # of the thread with the steps
    optimizers: Ints = field(default_factory=lambda: EMPTY[0])  # when one was made
    first_us: int = 0  # the first and the last time of an `ai` event (of any event if there is none)
    last_us: int = 0
    born_us: int | None = None  # when the process began, and when it ended
    over_us: int | None = None
    imported_us: int | None = None  # when torch had been imported
    importing_us: int = 0  # what the first optimizer imported later
    part: bool = False  # of a run: a slice
    cut: bool = False  # the process was killed
    failed: bool = False  # it ended with an exception or an exit code


def phase_marks(tables: MarkTables, tid: int, span: tuple[int, int], cut: bool = False) -> Marks:
    """The marks that tell phases apart, for steps on thread `tid`."""
    learn = [tables.spans(k) for k in ("learn", "compute_step")]
    loading = [tables.spans(k, tid) for k in ("wait", "item", "transfer")]
    return Marks(
        train=tables.spans("train"),
        evaluate=tables.spans("evaluate"),
        forward=tables.spans("forward", tid),
        learn=_in_order(learn),
        waits=tables.spans("wait", tid),
        loading=_in_order(loading),
        profiler=tables.spans("profiler"),
        compile=tables.spans("compile", tid),
        optimizers=tables.of("optimizer")[1],
        first_us=span[0],
        last_us=span[1],
        cut=cut,
    )


def _in_order(spans: list[Intervals]) -> Intervals:
    """All of them, sorted by their start."""
    start, end = (np.concatenate([s[i] for s in spans]) for i in (0, 1))
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def find_steps(tables: MarkTables, auto: bool = False) -> tuple[StepTable, Intervals]:
    """The training steps of the thread that has the most, and the loops that only evaluate."""
    best, loops = StepTable.none(), EMPTY
    found = 0
    for tid in np.unique(tables.of("wait")[0]).tolist():
        evaluation = union(*tables.spans("evaluate", tid)) if auto else None
        table = _steps_from_loop(tables.of("wait", tid), tables.of("body", tid), evaluation)
        table.tid = tid
        table, evaluations = _without_evaluation_loops(table, phase_marks(tables, tid, (0, 0)))
        found += len(table)
        if len(table) > len(best):
            best, loops = table, evaluations
    best.elsewhere = found - len(best)
    makers = (
        ("body", _steps_from_bodies),
        ("profiler", _steps_from_profiler),
        ("compute_step", _steps_from_step_ends),
    )
    for kind, maker in makers:
        if len(best):
            break
        for tid in np.unique(tables.of(kind)[0]).tolist():
            table = maker(tables.of(kind, tid))
            if len(table) > len(best):
                best, best.tid = table, tid
    replays = _replays(tables, best)
    return _without_inference(best, loops) if replays is None else (replays, EMPTY)


def _without_inference(table: StepTable, loops: Intervals) -> tuple[StepTable, Intervals]:
    """In a program that trains, what looked like inference before it did was evaluation."""
    inference = (table.flags & INFERENCE) != 0
    if not inference.any() or inference.all():
        return table, loops
    at = np.flatnonzero(inference)
    first = np.diff(at, prepend=-2) > 1
    spans = table.start[at[first]], table.end[at[np.append(first[1:], True)]]
    return table.keep(~inference), union_of(loops, spans)


def _replays(tables: MarkTables, steps: StepTable) -> StepTable | None:
    """Replays of CUDA graphs as steps, if there are hardly any others; inside steps they are part of them."""
    launches = tables.of("graph")
    inside = measure((steps.start, steps.end), launches[1], launches[1] + 1) > 0
    tids, counts = np.unique(launches[0][~inside], return_counts=True)
    if not tids.size or counts.max() < max(FEW_STEPS, _REPLAYS * len(steps)):
        return None
    tid = int(tids[counts.argmax()])
    mine = launches[:, (launches[0] == tid) & ~inside]
    blocked = np.concatenate([tables.of(kind, tid) for kind in ("blocked", "copied")], axis=1)
    table = _steps_from_replays(mine, blocked)
    table.tid = tid
    return table


def _holds_any(start: Ints, end: Ints, spans: Intervals) -> Bools:
    """Which of the windows have one of `spans` beginning in them."""
    at = np.sort(spans[0])
    result: Bools = np.searchsorted(at, end) > np.searchsorted(at, start)
    return result


def _without_evaluation_loops(table: StepTable, marks: Marks) -> tuple[StepTable, Intervals]:
    """The training steps, and the spans of loops that are evaluations.

    A loop is an evaluation if it lies in `pipeline.evaluate`, or if other loops learn and it never does.
    """
    if not len(table) or table.source != "fetch":
        return table, EMPTY
    marked = measure(union(*marks.evaluate), table.start, table.end) >= table.end - table.start
    learns = _holds_any(table.start, table.end, marks.learn)
    loops = int(table.loop.max()) + 1
    trains = np.zeros(loops, bool)
    trains[np.unique(table.loop[learns])] = True
    idle = ~trains[table.loop] if trains.any() else np.zeros(len(table), bool)
    drop = marked | idle
    if not drop.any() or drop.all():
        return table, EMPTY
    spans = []
    for number in np.unique(table.loop[drop]).tolist():
        mine = drop & (table.loop == number)
        spans.append((table.start[mine].min(), table.end[mine].max()))
    found = np.array(spans, np.int64).T
    kept = table.keep(~drop)
    return kept, evaluations_that_use_batches(kept, (found[0], found[1]), marks)


def evaluations_that_use_batches(table: StepTable, spans: Intervals, marks: Marks) -> Intervals:
    """Without loops before the training that only take batches, such as `list(loader)`."""
    start, end = marks.waits
    low, high = (np.searchsorted(start, edge) for edge in spans)
    doubtful = ~_holds_any(*spans, marks.forward) & (high - low >= _SHORT_LOOP)
    doubtful &= spans[0] < (table.start[0] if len(table) else 0)
    used = np.ones(spans[0].size, bool)
    for i in np.flatnonzero(doubtful).tolist():
        between = start[low[i] + 1 : high[i]] - end[low[i] : high[i] - 1]
        most = UNUSED_SHARE * (spans[1][i] - spans[0][i])
        used[i] = np.median(between) > UNUSED_BATCH_US or between.sum() > most
    return spans[0][used], spans[1][used]


@dataclass
class Phases:
    """The parts of a run, which add up to it; times in us."""

    start: int = 0  # of what was recorded of the training
    end: int = 0
    born: int = 0  # of the process
    over: int = 0
    evaluation: Intervals = EMPTY
    aside: Intervals = EMPTY  # evaluation and compilation, which are no part of the steps they happen in
    imports_us: int = 0  # before anything of the training is known: imports, mostly
    compilation_us: int = 0
    after_us: int = 0  # after the last step
    warm_up: int = 0  # steps at the beginning that took much longer than later ones
    steady_us: int = 0  # the steps, at their usual length
    startup_us: int = 0  # before the first step, and the time by which it exceeded a usual one
    before_us: int = 0  # of that, before the first step
    importing_us: int = 0  # of that, importing what torch imports with the first optimizer
    unrecorded_us: int = 0  # of that, before anything of the training was recorded: set-up, and more imports
    restarts_us: int = 0  # the same for the first step of each later epoch
    restarts: int = 0  # how many of those took much longer than a usual step
    epoch_starts: int = 0  # later epochs
    profiled_us: int = 0  # the time by which the profiler lengthened its steps
    evaluation_us: int = 0
    outside_us: int = 0  # outside steps: between epochs, after the last step as far as it was recorded
    unfinished_us: int = 0  # of that, a last step that did not end
    gaps: Intervals = field(default_factory=lambda: EMPTY)  # that time
    tail_us: int = 0  # from there to the end of the process

    @property
    def run_us(self) -> int:
        """From the start of the process to its end."""
        return self.over - self.born


def find_phases(table: StepTable, marks: Marks, loops: Intervals) -> Phases:  # noqa: PLR0915 - one sum
    """Account for the whole run; also marks evaluation inside steps, and which steps are steady."""
    if not len(table):
        born = marks.first_us if marks.born_us is None else min(marks.born_us, marks.first_us)
        over = marks.last_us if marks.over_us is None else max(marks.over_us, marks.last_us)
        return Phases(marks.first_us, marks.last_us, born, over)
    out = Phases(*_span(table, marks))
    known_start = marks.imported_us if marks.imported_us is not None else out.start
    out.born = min(out.start, out.start if marks.born_us is None else marks.born_us)
    out.over = max(out.end, out.end if marks.over_us is None else marks.over_us)
    recorded = out.start
    out.start = min(out.start, max(known_start, out.born))
    out.unrecorded_us = recorded - out.start
    whole = (np.array([out.start]), np.array([out.end]))
    steps = union(table.start, table.end)
    unmarked = _plain_loops(table, marks, difference(whole, steps))
    found = union_of(loops, marks.evaluate, _nested(table, marks), unmarked)
    compilation = intersection(union(*marks.compile), whole)
    out.evaluation = difference(intersection(found, whole), compilation)
    out.aside = union_of(out.evaluation, compilation)
    table.evaluation = measure(out.aside, table.start, table.end)
    _number_trainings(table, marks)
    _choose_steady(table, marks)

    wall = table.wall
    usual = int(table.usual_us)
    beyond = np.maximum(wall - usual, 0)
    begin = np.cumsum(table.steady) == 0
    out.warm_up = int(begin.sum())
    again = table.first & ~table.steady & ~begin
    window = table.profiled & ~table.steady & ~begin & ~again
    before = (whole[0], np.array([int(table.start[0])]))
    outside = difference(difference(whole, steps), out.aside)
    out.gaps = difference(outside, before)
    out.before_us = total(intersection(outside, before))
    out.importing_us = min(marks.importing_us, out.before_us)
    out.startup_us = out.before_us + int(beyond[begin].sum())
    out.restarts_us = int(beyond[again].sum())
    out.epoch_starts = int(again.sum())
    out.restarts = int((beyond[again] > usual).sum())
    out.profiled_us = int(beyond[window].sum())
    out.evaluation_us = total(out.evaluation)
    out.compilation_us = total(compilation)
    out.outside_us = total(out.gaps)
    out.imports_us = out.start - out.born
    out.tail_us = out.over - out.end
    out.after_us = out.tail_us + int((out.gaps[1] - out.gaps[0])[out.gaps[0] >= table.end[-1]].sum())
    if _unfinished(table, marks) is not None and out.gaps[0].size:
        out.unfinished_us = int((out.gaps[1] - out.gaps[0])[-1])
    elif marks.failed or marks.cut:
        last = (table.end[-1:], whole[1])
        if _holds_any(*last, _in_order([marks.waits, marks.learn]))[0]:
            out.unfinished_us = total(intersection(out.gaps, last))
    rest = out.startup_us + out.restarts_us + out.profiled_us + out.evaluation_us + out.outside_us
    out.steady_us = out.run_us - rest - out.imports_us - out.compilation_us - out.tail_us
    return out


def _span(table: StepTable, marks: Marks) -> tuple[int, int]:
    """From the first to the last `ai` event."""
    return min(int(table.start[0]), marks.first_us), max(int(table.end[-1]), marks.last_us)


def _nested(table: StepTable, marks: Marks) -> Intervals:
    """Loops inside steps that learn nothing, unless there are no annotations to tell by."""
    start, end = table.inner
    if not start.size:
        return EMPTY
    quiet = ~_holds_any(start, end, marks.learn)
    return start[quiet], end[quiet]


def _plain_loops(table: StepTable, marks: Marks, gaps: Intervals) -> Intervals:
    """Forward passes outside steps, or after a step's last update: unannotated evaluation."""
    if not marks.learn[0].size or not marks.forward[0].size:
        return EMPTY
    starts, ends = [], []
    around = _in_order([marks.forward, marks.loading])
    begins, finishes = gaps
    last_learn = np.maximum.accumulate(np.sort(marks.learn[1]))
    at = np.searchsorted(last_learn, table.end, side="right") - 1
    after = np.where(at >= 0, last_learn[np.maximum(at, 0)], table.end)
    late = (after > table.start) & (after < table.end)
    if table.source == "fetch":
        begins = np.concatenate((begins, after[late]))
        finishes = np.concatenate((finishes, table.end[late]))
    forward = np.sort(marks.forward[0])
    holding = np.searchsorted(forward, begins) != np.searchsorted(forward, finishes)
    unfinished = _unfinished(table, marks)
    for a, b in zip(begins[holding].tolist(), finishes[holding].tolist(), strict=True):
        if a == unfinished or _holds_any(np.array([a]), np.array([b]), marks.learn)[0]:
            continue
        lo, hi = np.searchsorted(around[0], (a, b))
        starts.append(int(around[0][lo]))
        ends.append(min(int(around[1][lo:hi].max()), b))
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _number_trainings(table: StepTable, marks: Marks) -> None:
    """A process may train several models in turn: an optimizer made after steps begins another training."""
    # Where the forward pass of a step begins may be a guess: the optimizer was made before its end.
    made = np.searchsorted(np.sort(marks.optimizers), table.end)
    number = np.zeros(len(table), np.int64)
    number[1:] = np.cumsum(made[1:] > made[:-1])
    # A program that makes an optimizer for every few steps trains one model.
    if len(table) >= TRAINING_STEPS * (int(number[-1]) + 1):
        table.training = number


def _choose_steady(table: StepTable, marks: Marks) -> None:
    n = len(table)
    table.first = _first_of_epochs(table)
    table.first[1:] |= table.training[1:] != table.training[:-1]
    if table.source != "profiler" and marks.profiler[0].size:
        table.profiled = measure(union(*marks.profiler), table.start, table.end) > 0
    begins = np.zeros(n, bool)
    begins[: max(0 if marks.part and _had_earlier(table) else 1, _warm_up(table))] = True
    for left_out in (begins | table.first | table.profiled, begins | table.first, begins):
        table.steady = ~left_out
        if int(table.steady.sum()) >= STEADY_STEPS:
            break
    else:
        table.steady = np.ones(n, bool)


def _first_of_epochs(table: StepTable) -> Bools:
    first = np.zeros(len(table), bool)
    if len(table) < 2:
        return first
    loop_change = table.loop[1:] != table.loop[:-1]
    known = (table.epoch[1:] != MISSING) & (table.epoch[:-1] != MISSING)
    label_change = known & (table.epoch[1:] != table.epoch[:-1])
    for change in (loop_change, label_change):
        if change.any() and len(table) / (change.sum() + 1) >= _SHORT_LOOP:
            first[1:] |= change
    return first


def _had_earlier(table: StepTable) -> bool:
    """Whether the first step cannot have been the run's first, by its labels; those count from 0 or 1."""
    return bool(max(table.step[0], table.epoch[0]) > 1)


def _warm_up(table: StepTable) -> int:
    """How many steps at the beginning take much longer than later ones: autotuning, caches, cold data."""
    wall = table.wall
    usual = np.median(wall[wall.size // 2 :])
    slow = wall > WARM_UP_FACTOR * usual
    return int(np.argmin(slow[: wall.size // 4])) if wall.size >= 4 * WARM_UP_STEPS else 0


def _unfinished(table: StepTable, marks: Marks) -> int | None:
    """Where a last step begins that has no end: the process was killed in it, or it raised."""
    last = int(table.end[-1])
    after = marks.forward[0][marks.forward[0] >= last]
    if table.source != "fetch" or not after.size or (marks.loading[0] >= last).any():
        return None
    if (marks.learn[0] >= after[0]).any():
        return last
    usual = np.diff(np.searchsorted(np.sort(marks.forward[0]), np.append(table.start, last)))
    return last if marks.cut and after.size <= int(usual.max()) else None
