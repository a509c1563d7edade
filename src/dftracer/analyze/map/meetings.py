"""Where a process meets its peers: the collectives it came to, and the time it stood still for them.

Only collectives that were followed inside gloo are known that exactly. Between two of them lies the work by
which their ranks differ, by stage; it is kept so that a late arrival can be explained without the events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import EMPTY, Intervals, account, intersection, measure
from dftracer.analyze.stages import NONE, STAGES
from dftracer.load._scan import arg_numbers, arg_texts
from dftracer.load.chunk import MISSING, Chunk, Ints, int64s

# What a rank can be late by: the stages, and evaluation, which is no part of a step.
CAUSES: Final = (*STAGES, "evaluation")
_EVALUATION = CAUSES.index("evaluation")

# All ranks leave these together; of the others, some do not wait for all.
_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_WAIT: Final = -1  # instead of a group: a wait, of whichever collective


@dataclass
class MeetingRows:
    """Collectives and waits of a part of a trace."""

    names: list[str] = field(default_factory=list)  # of groups
    rows: Ints = field(default_factory=lambda: np.empty((7, 0), np.int64))  # tid, ts, dur, see rows_of_chunk
    _parts: list[MeetingRows] = field(default_factory=list)

    def add(self, more: MeetingRows | None) -> None:
        if more is not None:
            self._parts.append(more)

    def joined(self) -> MeetingRows:
        """All that was added, in order."""
        numbers: dict[str, int] = {}
        tables = []
        for part in self._parts:
            number = np.array([*(numbers.setdefault(n, len(numbers)) for n in part.names), _WAIT], np.int64)
            table = part.rows.copy()
            table[3] = number[table[3]]
            tables.append(table)
        return MeetingRows([*numbers], np.concatenate(tables, axis=1)) if tables else MeetingRows()


def is_meeting(cat: str) -> bool:
    """Whether an event may be a collective or a wait for one."""
    return cat == "comm"


def rows_of_chunk(
    chunk: Chunk, place: npt.NDArray[np.intp], names: list[str], times: tuple[Ints, Ints, Ints]
) -> MeetingRows | None:
    """Of the events of communication at `place`, those that were followed inside gloo."""
    ends, text = chunk.args_of(place)
    ends = ends.astype(np.int64)
    queued, followed = (int64s(arg_numbers(ends, text, k)) for k in (b'"queued_us":', b'"followed":'))
    below, seq = (int64s(arg_numbers(ends, text, k)) for k in (b'"below_python":', b'"seq":'))
    waits = (below == 1) & np.array([n == "wait" for n in names], bool)
    raw, groups = arg_texts(ends, text, b'"group":"')
    group = np.where(waits, _WAIT, int64s(raw))
    keep = np.flatnonzero((((queued != MISSING) | (followed == 1)) & (group != _WAIT)) | waits)
    if not keep.size:
        return None
    together = np.array([n in _TOGETHER for n in names], np.int64)
    waited = np.where(queued == MISSING, _WAIT, queued)  # of a call, which waits on its own thread
    rows = np.stack([*times, group, seq, waited, together])
    return MeetingRows(groups, rows[:, keep])


@dataclass
class Meetings:
    """Of one process: collectives in the order in which it came to them, and when it stood still."""

    groups: list[str] = field(default_factory=list)
    group: Ints = field(default_factory=lambda: EMPTY[0])
    seq: Ints = field(default_factory=lambda: EMPTY[0])
    arrived: Ints = field(default_factory=lambda: EMPTY[0])
    ended: Ints = field(default_factory=lambda: EMPTY[0])
    together: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    blocked: Intervals = EMPTY
    blocked_in: Ints = field(default_factory=lambda: EMPTY[0])  # the stage that each blocked time lies in
    # By cause, since tracing began: its work up to its arrival at each.
    worked: Ints = field(default_factory=lambda: np.empty((0, len(CAUSES)), np.int64))

    def __len__(self) -> int:
        return int(self.arrived.size)

    @property
    def stops(self) -> npt.NDArray[np.bool_]:
        """Whether it stood still between its arrival at each and that at the next."""
        until = np.append(self.arrived[1:], np.iinfo(np.int64).max)
        stood: npt.NDArray[np.bool_] = measure(self.blocked, self.arrived, until) > 0
        return stood


def find_meetings(
    found: MeetingRows, tid: int, timeline: tuple[Ints, Ints, Ints], aside: Intervals, rest: int
) -> Meetings:
    """`timeline`: of the thread that trains; `rest`: the stage of time that nothing covers."""
    thread, ts, dur, group, seq, queued, together = found.rows
    is_wait = group == _WAIT
    calls = ~is_wait
    order = np.flatnonzero(calls)
    arrived = ts - np.maximum(queued, 0)
    order = order[np.argsort(arrived[order], kind="stable")]
    if not order.size:
        return Meetings()
    stands = np.flatnonzero((thread == tid) & (is_wait | (queued == _WAIT)))
    blocked = _in_order(ts[stands], (ts + dur)[stands])
    blocked_in = _stage_at(timeline, blocked[0], rest)
    at = arrived[order]
    return Meetings(
        found.names,
        group[order],
        seq[order],
        at,
        (ts + dur)[order],
        together[order].astype(bool),
        blocked,
        blocked_in,
        _worked(timeline, at, (*blocked, blocked_in), aside, rest),
    )


def _in_order(start: Ints, end: Ints) -> Intervals:
    """Disjoint: what lies inside another is part of it."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], end[:-1])))
    start = np.maximum(start, reached) if start.size else start
    keep = end > start
    return start[keep], end[keep]


def _stage_at(timeline: tuple[Ints, Ints, Ints], at: Ints, rest: int) -> Ints:
    start, end, stage = timeline
    if not start.size:
        return np.full(at.size, rest, np.int64)
    i = np.maximum(np.searchsorted(start, at, side="right") - 1, 0)
    inside = (start[i] <= at) & (at < end[i]) & (stage[i] != NONE)
    return np.where(inside, stage[i], rest).astype(np.int64)


def _worked(
    timeline: tuple[Ints, Ints, Ints],
    arrived: Ints,
    blocked: tuple[Ints, Ints, Ints],
    aside: Intervals,
    rest: int,
) -> Ints:
    first, last = np.concatenate((arrived[:1], arrived[:-1])), arrived
    out = np.zeros((arrived.size, len(CAUSES)), np.int64)
    out[:, : len(STAGES)] = account(*timeline, len(STAGES), first, last)
    out[:, NONE] = 0
    out[:, rest] += last - first - out.sum(axis=1)
    still = account(*blocked, len(STAGES), first, last)
    out[:, : len(STAGES)] -= np.minimum(still, out[:, : len(STAGES)])
    inner = intersection((first, last), aside) if aside[0].size else EMPTY
    if inner[0].size:
        window = np.searchsorted(first, inner[0], side="right") - 1
        inside = account(*timeline, len(STAGES), *inner)
        inside[:, NONE] = 0
        inside[:, rest] += inner[1] - inner[0] - inside.sum(axis=1)
        taken = np.zeros((arrived.size, len(STAGES)), np.int64)
        np.add.at(taken, window, inside)
        taken = np.minimum(taken, out[:, : len(STAGES)])
        out[:, : len(STAGES)] -= taken
        out[:, _EVALUATION] = taken.sum(axis=1)
    return np.cumsum(out, axis=0)
