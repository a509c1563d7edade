"""Delimiting events (steps, items, epochs, evaluations), and the steps and phases derived from them."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from dftracer.analyze.folded import Rows
from dftracer.analyze.intervals import EMPTY, Intervals, measure, union
from dftracer.analyze.phases import Marks, without_evaluation_loops
from dftracer.analyze.steps import (
    MARKS,
    Bools,
    StepTable,
    steps_from_bodies,
    steps_from_loop,
    steps_from_profiler,
    steps_from_replays,
    steps_from_step_ends,
)
from dftracer.analyze.thresholds import FEW_STEPS, MAJORITY
from dftracer.load.chunk import Chunk, Ints

__all__ = ["Checkpoint", "MarkTables", "ai_span", "find_steps", "phase_marks", "read_checkpoints"]


_REPLAYS = 3  # times as many replays as other steps: those are the warm-up before the capture


# Of these it matters where they are, not how many are at the very same place.
_MANY = 1 << 19
_PLACES = frozenset({"forward", "learn", "train", "evaluate", "transfer"})


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
    """Marks of one process by kind; the rows of a table are those of `steps.MARKS`."""

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

        A step that has been updated is done, even if its loop has not come round yet.
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


def ai_span(known: tuple[int, int] | None, mine: Bools, ts: Ints, end: Ints) -> tuple[int, int] | None:
    """The first and the last time of an annotated event, including those of one more chunk."""
    if not mine.any():
        return known
    first = int(np.min(ts, where=mine, initial=np.iinfo(np.int64).max))
    last = int(np.max(end, where=mine, initial=0))
    return (first, last) if known is None else (min(first, known[0]), max(last, known[1]))


def phase_marks(tables: MarkTables, tid: int, span: tuple[int, int], cut: bool = False) -> Marks:
    """The marks that tell phases apart, for steps on thread `tid`."""
    learn = [tables.spans(k) for k in ("learn", "compute_step")]
    loading = [tables.spans(k, tid) for k in ("wait", "item", "transfer")]
    return Marks(
        train=tables.spans("train"),
        evaluate=tables.spans("evaluate"),
        forward=tables.spans("forward", tid),
        learn=_joined(learn),
        waits=tables.spans("wait", tid),
        loading=_joined(loading),
        profiler=tables.spans("profiler"),
        compile=tables.spans("compile", tid),
        optimizers=tables.of("optimizer")[1],
        first_us=span[0],
        last_us=span[1],
        cut=cut,
    )


def _joined(spans: list[Intervals]) -> Intervals:
    start, end = (np.concatenate([s[i] for s in spans]) for i in (0, 1))
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def find_steps(tables: MarkTables) -> tuple[StepTable, Intervals]:
    """The training steps of the thread that has the most, and the loops that only evaluate."""
    best, loops = StepTable.none(), EMPTY
    found = 0
    for tid in np.unique(tables.of("wait")[0]).tolist():
        table = steps_from_loop(tables.of("wait", tid), tables.of("body", tid))
        table.tid = tid
        table, evaluations = without_evaluation_loops(table, phase_marks(tables, tid, (0, 0)))
        found += len(table)
        if len(table) > len(best):
            best, loops = table, evaluations
    best.elsewhere = found - len(best)
    makers = (
        ("body", steps_from_bodies),
        ("profiler", steps_from_profiler),
        ("compute_step", steps_from_step_ends),
    )
    for kind, maker in makers:
        if len(best):
            break
        for tid in np.unique(tables.of(kind)[0]).tolist():
            table = maker(tables.of(kind, tid))
            if len(table) > len(best):
                best, best.tid = table, tid
    replays = _replays(tables, best)
    return (best, loops) if replays is None else (replays, EMPTY)


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
    table = steps_from_replays(mine, blocked)
    table.tid = tid
    return table
