"""The phases of a rank's run: where it begins and ends, what is evaluation, which steps are steady.

Everything is derived from one process's own marks, so it is part of the map step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dftracer.analyze.intervals import EMPTY, Intervals, difference, intersection, measure, total, union
from dftracer.analyze.steps import Bools, StepTable
from dftracer.analyze.thresholds import (
    STEADY_STEPS,
    TRAINING_STEPS,
    UNUSED_BATCH_US,
    UNUSED_SHARE,
    WARM_UP_FACTOR,
    WARM_UP_STEPS,
)
from dftracer.load.chunk import MISSING, Ints

__all__ = ["Marks", "Phases", "evaluations_that_use_batches", "find_phases", "without_evaluation_loops"]

_SHORT_LOOP = 3  # loops with fewer steps than this (say, a new loader for each step) are not epochs


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
    cut: bool = False  # the process was killed
    failed: bool = False  # it ended with an exception or an exit code


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


def _holds_any(start: Ints, end: Ints, spans: Intervals) -> Bools:
    """Which of the windows have one of `spans` beginning in them."""
    at = np.sort(spans[0])
    result: Bools = np.searchsorted(at, end) > np.searchsorted(at, start)
    return result


def without_evaluation_loops(table: StepTable, marks: Marks) -> tuple[StepTable, Intervals]:
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
    asked = ~_holds_any(*spans, marks.forward) & (high - low >= _SHORT_LOOP)
    asked &= spans[0] < (table.start[0] if len(table) else 0)
    used = np.ones(spans[0].size, bool)
    for i in np.flatnonzero(asked).tolist():
        between = start[low[i] + 1 : high[i]] - end[low[i] : high[i] - 1]
        most = UNUSED_SHARE * (spans[1][i] - spans[0][i])
        used[i] = np.median(between) > UNUSED_BATCH_US or between.sum() > most
    return spans[0][used], spans[1][used]


def _nested(table: StepTable, marks: Marks) -> Intervals:
    """Loops inside steps that learn nothing, unless there are no annotations to tell by."""
    start, end = table.inner
    if not start.size:
        return EMPTY
    quiet = ~_holds_any(start, end, marks.learn)
    return start[quiet], end[quiet]


def _joined(a: Intervals, b: Intervals) -> Intervals:
    return np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))


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


def _plain_loops(table: StepTable, marks: Marks, gaps: Intervals) -> Intervals:
    """Forward passes outside steps, or after a step's last update: unannotated evaluation."""
    if not marks.learn[0].size or not marks.forward[0].size:
        return EMPTY
    starts, ends = [], []
    around = (
        np.concatenate([marks.forward[0], marks.loading[0]]),
        np.concatenate([marks.forward[1], marks.loading[1]]),
    )
    windows = [(a, b) for a, b in zip(*gaps, strict=True)]
    last_learn = np.maximum.accumulate(np.sort(marks.learn[1]))
    at = np.searchsorted(last_learn, table.end, side="right") - 1
    after = np.where(at >= 0, last_learn[np.maximum(at, 0)], table.end)
    late = (after > table.start) & (after < table.end)
    if table.source == "fetch":
        windows += [(a, b) for a, b in zip(after[late], table.end[late], strict=True)]
    order = np.argsort(marks.forward[0], kind="stable")
    forward = marks.forward[0][order]
    around_order = np.argsort(around[0], kind="stable")
    around = around[0][around_order], around[1][around_order]
    low, high = (np.searchsorted(forward, [w[i] for w in windows]) for i in (0, 1))
    unfinished = _unfinished(table, marks)
    for (a, b), i, j in zip(windows, low.tolist(), high.tolist(), strict=True):
        if i == j or a == unfinished or _holds_any(np.array([a]), np.array([b]), marks.learn)[0]:
            continue
        lo, hi = np.searchsorted(around[0], (a, b))
        starts.append(int(around[0][lo]))
        ends.append(min(int(around[1][lo:hi].max()), int(b)))
    return np.array(starts, np.int64), np.array(ends, np.int64)


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


def _warm_up(table: StepTable) -> int:
    """How many steps at the beginning take much longer than later ones: autotuning, caches, cold data."""
    wall = table.wall
    usual = np.median(wall[wall.size // 2 :])
    slow = wall > WARM_UP_FACTOR * usual
    return int(np.argmin(slow[: wall.size // 4])) if wall.size >= 4 * WARM_UP_STEPS else 0


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
    begins[: max(1, _warm_up(table))] = True
    for left_out in (begins | table.first | table.profiled, begins | table.first, begins):
        table.steady = ~left_out
        if int(table.steady.sum()) >= STEADY_STEPS:
            break
    else:
        table.steady = np.ones(n, bool)


def _span(table: StepTable, marks: Marks) -> tuple[int, int]:
    """From the first to the last `ai` event."""
    return min(int(table.start[0]), marks.first_us), max(int(table.end[-1]), marks.last_us)


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
    known = [loops, marks.evaluate, _nested(table, marks)]
    known.append(_plain_loops(table, marks, difference(whole, steps)))
    found = union(np.concatenate([k[0] for k in known]), np.concatenate([k[1] for k in known]))
    compilation = intersection(union(*marks.compile), whole)
    out.evaluation = difference(intersection(found, whole), compilation)
    out.aside = union(*(np.concatenate(both) for both in zip(out.evaluation, compilation, strict=True)))
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
        if _holds_any(*last, _joined(marks.waits, marks.learn))[0]:
            out.unfinished_us = total(intersection(out.gaps, last))
    rest = out.startup_us + out.restarts_us + out.profiled_us + out.evaluation_us + out.outside_us
    out.steady_us = out.run_us - rest - out.imports_us - out.compilation_us - out.tail_us
    return out
