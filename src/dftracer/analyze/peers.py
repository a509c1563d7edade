"""Where ranks meet, and what they lose by waiting for each other.

Ranks that synchronise finish each step together, so step times do not show who is late. The rank that arrives
last waits least.

Where collectives were followed inside gloo, a process knows which ones it reached, when, and how long it was
blocked in them. Each is matched across the ranks by its group and number: a rank waits for the last one to
arrive for as long as it is blocked, and what the last one did since they last met says why it was late. That
work, by stage, is kept for each collective, so that a late arrival can be explained without the events.

NCCL's are put into a stream: the host does not wait for them, and when the device came to one is not known.
But none can end before its last rank has put it into its stream. A host that its device blocks meanwhile
waits for that rank, unless its own device is busy for as long. What remains is known at least.

Where collectives are visible as calls only, a rank's waiting is how much longer it took for each than the
last rank: all leave a collective together, whatever their clocks say. Where they are hidden in the backward
pass, it is, in each step, its backward and communication time beyond the least that any rank spent there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import EMPTY, Bools, Floats, Intervals, account, intersection, key_at, measure
from dftracer.analyze.stages import COMPUTE_STAGES, NONE, STAGE_INDEX, STAGES
from dftracer.analyze.thresholds import CHRONIC_SHARE, FEW_STEPS, LATE_STEP, MAJORITY, ONE_SIDED
from dftracer.load._scan import arg_numbers, arg_texts
from dftracer.load.chunk import MISSING, Chunk, Ints, int64s

if TYPE_CHECKING:
    from dftracer.analyze.job import Rank


# What a rank can be late by: the stages, and evaluation, which is no part of a step.
CAUSES: Final = (*STAGES, "evaluation")
_EVALUATION = CAUSES.index("evaluation")

# All ranks leave these together; of the others, some do not wait for all.
_FOR_ALL: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_WAIT: Final = -1  # in place of a group: a wait, for any collective
_IN_STREAM: Final = -2  # in place of a time in a queue: NCCL's
# Late in one of these, a rank's device may have been busy all the time, and so may that of who waits.
_LAUNCHING: Final = [STAGE_INDEX[s] for s in (*COMPUTE_STAGES, "transfer", "comm", "sync", "unexplained")]

_MEETING = ("comm", "backward")  # where ranks meet; waiting is taken from the first as far as it goes
_TOGETHER = 0.05  # step times of ranks that synchronise differ by less
_NEVER = np.iinfo(np.int64).min // 4  # before every moment
_ALIGNED, _MAX_PARTS = 64, 256  # collectives that clocks are compared over, and how often at most


@dataclass
class MeetingRows:
    """Collectives and waits of a part of a trace."""

    names: list[str] = field(default_factory=list)  # of groups
    rows: Ints = field(
        default_factory=lambda: np.empty((7, 0), np.int64)
    )  # tid, ts, dur, see meetings_of_chunk
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


def meetings_of_chunk(
    chunk: Chunk, place: npt.NDArray[np.intp], names: list[str], times: tuple[Ints, Ints, Ints]
) -> MeetingRows | None:
    """Of the events of communication at `place`, those that were followed inside gloo, and NCCL's."""
    ends, text = chunk.args_of(place)
    ends = ends.astype(np.int64)
    queued, followed = (int64s(arg_numbers(ends, text, k)) for k in (b'"queued_us":', b'"followed":'))
    below, seq = (int64s(arg_numbers(ends, text, k)) for k in (b'"below_python":', b'"seq":'))
    waits = (below == 1) & np.array([n == "wait" for n in names], bool)
    raw, groups = arg_texts(ends, text, b'"group":"')
    group = np.where(waits, _WAIT, int64s(raw))
    together = np.array([n in _FOR_ALL for n in names], np.int64)
    raw, communicators = arg_texts(ends, text, b'"comm":"')
    in_stream = (below == 1) & (int64s(raw) >= 0) & (seq != MISSING) & (together == 1) & (group == _WAIT)
    group = np.where(in_stream, int64s(raw) + len(groups), group)
    keep = np.flatnonzero((((queued != MISSING) | (followed == 1)) & (group != _WAIT)) | waits | in_stream)
    if not keep.size:
        return None
    waited = np.where(queued == MISSING, _WAIT, queued)  # of a call, which waits on its own thread
    waited[in_stream] = _IN_STREAM
    rows = np.stack([*times, group, seq, waited, together])
    return MeetingRows([*groups, *(f"nccl {name}" for name in communicators)], rows[:, keep])


@dataclass
class Meetings:
    """The collectives of one process in the order in which it reached them, and when it was blocked."""

    groups: list[str] = field(default_factory=list)
    group: Ints = field(default_factory=lambda: EMPTY[0])
    seq: Ints = field(default_factory=lambda: EMPTY[0])
    arrived: Ints = field(default_factory=lambda: EMPTY[0])
    ended: Ints = field(default_factory=lambda: EMPTY[0])
    together: Bools = field(default_factory=lambda: np.empty(0, bool))
    blocked: Intervals = EMPTY
    blocked_in: Ints = field(default_factory=lambda: EMPTY[0])  # the stage that each blocked time lies in
    # By cause, since tracing began: its work up to its arrival at each.
    worked: Ints = field(default_factory=lambda: np.empty((0, len(CAUSES)), np.int64))

    def __len__(self) -> int:
        return int(self.arrived.size)

    @property
    def stops(self) -> Bools:
        """Whether it was blocked between arriving at each and at the next."""
        until = np.append(self.arrived[1:], np.iinfo(np.int64).max)
        stood: Bools = measure(self.blocked, self.arrived, until) > 0
        return stood


def find_meetings(
    found: MeetingRows, tid: int, timeline: tuple[Ints, Ints, Ints], aside: Intervals, rest: int
) -> Meetings:
    """`timeline`: of the thread that trains; `rest`: the stage of time that nothing covers."""
    thread, ts, dur, group, seq, queued, together = found.rows
    is_wait = group == _WAIT
    order = np.flatnonzero(~is_wait & (queued != _IN_STREAM))
    arrived = ts - np.maximum(queued, 0)
    order = order[np.argsort(arrived[order], kind="stable")]
    if not order.size:
        return Meetings()
    stands = np.flatnonzero((thread == tid) & (is_wait | (queued == _WAIT)))
    blocked = _disjoint(ts[stands], (ts + dur)[stands])
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


def find_nccl_meetings(
    found: MeetingRows,
    synchronised: Ints,
    timeline: tuple[Ints, Ints, Ints],
    aside: Intervals,
    rest: int,
) -> Meetings:
    """NCCL's; `synchronised`: (tid, start, duration ...) of calls that blocked the thread that trains.

    They are put into the stream by whatever thread runs the backward pass. When they end is not known.
    """
    _, ts, _, group, seq, queued, together = found.rows
    order = np.flatnonzero(queued == _IN_STREAM)
    order = order[np.argsort(ts[order], kind="stable")]
    if not order.size:
        return Meetings()
    blocked = _disjoint(synchronised[1], synchronised[1] + synchronised[2])
    blocked_in = _stage_at(timeline, blocked[0], rest)
    at = ts[order]
    return Meetings(
        found.names,
        group[order],
        seq[order],
        at,
        at,
        together[order].astype(bool),
        blocked,
        blocked_in,
        _worked(timeline, at, (*blocked, blocked_in), aside, rest),
    )


def _disjoint(start: Ints, end: Ints) -> Intervals:
    """Disjoint: what lies inside another is part of it."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(np.concatenate(([np.iinfo(np.int64).min], end[:-1])))
    start = np.maximum(start, reached) if start.size else start
    keep = end > start
    return start[keep], end[keep]


def _stage_at(timeline: tuple[Ints, Ints, Ints], at: Ints, rest: int) -> Ints:
    stage = key_at(*timeline, at, NONE)
    return np.where(stage == NONE, rest, stage)


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


def _with_steps(ranks: list[Rank]) -> list[Rank]:
    return [r for r in ranks if len(r.main.steps) >= FEW_STEPS]


@dataclass
class Peers:
    """What a rank has to do with the others: its waiting, and the waiting it caused, in us."""

    waiting: Ints  # by step and stage
    between: Ints  # by stage: in no step, but among those that the account covers
    apart: Ints  # by stage: in no step at all
    caused: Ints  # by step and cause; what all others waited for it together
    caused_apart: Ints  # by cause, in no step
    exact: bool = False  # its collectives were matched with those of the others
    at_least: bool = False  # they were NCCL's: it waited for so long at least
    offset_us: int = 0  # of its clock, against that of the first rank
    error_us: int | None = None  # the offset is right within this; None: nothing tells

    @classmethod
    def none(cls, steps: int) -> Peers:
        stages, causes = len(STAGES), len(CAUSES)
        return cls(
            np.zeros((steps, stages), np.int64),
            np.zeros(stages, np.int64),
            np.zeros(stages, np.int64),
            np.zeros((steps, causes), np.int64),
            np.zeros(causes, np.int64),
        )

    @property
    def waiting_s(self) -> dict[str, float]:
        """By the stage in which it waited."""
        sums = self.waiting.sum(axis=0) + self.apart
        return {STAGES[i]: round(float(v) / 1e6, 6) for i, v in enumerate(sums) if v}

    @property
    def caused_s(self) -> dict[str, float]:
        """By what made it late."""
        sums = self.caused.sum(axis=0) + self.caused_apart
        return {CAUSES[i]: round(float(v) / 1e6, 6) for i, v in enumerate(sums) if v}


def mark_waiting(ranks: list[Rank]) -> None:
    """Tell every rank, per step, how long it waited for others; nothing where ranks run apart."""
    known = _with_steps(ranks)
    if len(known) < 2:
        return
    matched = _match(known)
    if _match_nccl(known) or matched:
        return
    n = min(len(r.main.steps) for r in known)
    steady = np.logical_and.reduce([r.main.steps.steady[:n] for r in known])
    wall = np.array([float(r.wall_us[:n][steady].sum()) for r in known])
    if wall.max() > (1 + _TOGETHER) * wall.min():
        return
    meeting = np.stack([sum(r.stage_us(s)[:n] for s in _MEETING) for r in known])
    waiting = meeting - meeting.min(axis=0)
    seen = _arrival_skew(known, n)
    if seen[:, steady].sum() >= waiting[:, steady].sum():
        waiting = seen
    last = np.argmin(waiting, axis=0)
    for i, (rank, mine) in enumerate(zip(known, waiting, strict=True)):
        left = mine.copy()
        for stage in _MEETING:
            taken = np.minimum(left, rank.stage_us(stage)[:n])
            rank.peers.waiting[:n, STAGE_INDEX[stage]] = taken
            left -= taken
        rank.peers.caused[:n, NONE] = np.where(last == i, waiting.sum(axis=0), 0)


@dataclass
class _Matched:
    """Collectives that several ranks came to; one column for each."""

    rows: Ints  # [rank, column]: which of the rank's meetings it is; -1: it is no member
    arrived: Ints  # [rank, column], on the clock of the first rank
    ended: Ints
    together: Bools


def _match(ranks: list[Rank]) -> bool:
    """The same from matched collectives; False where some rank's are not known."""
    meetings = [r.main.meetings for r in ranks]
    if not all(len(m) for m in meetings):
        return False
    rows = _matching_rows(meetings)
    if not rows.shape[1]:
        return False
    found = _on_one_clock(ranks, meetings, rows)
    stops = [m.stops for m in meetings]
    stopped = np.zeros(rows.shape[1], bool)
    for i, stop in enumerate(stops):
        member = found.rows[i] >= 0
        stopped[member] |= stop[found.rows[i][member]]
    for i, rank in enumerate(ranks):
        rank.peers.exact = True
        _wait_of(i, ranks, found, stopped)
    return True


def _match_nccl(ranks: list[Rank]) -> bool:
    """The same for NCCL's; False where some rank has none, or none ever waits for its device."""
    meetings = [r.main.in_stream for r in ranks]
    if not all(len(m) for m in meetings) or not any(m.blocked[0].size for m in meetings):
        return False
    rows = _matching_rows(meetings)
    if not rows.shape[1]:
        return False
    arrived = np.stack([m.arrived[np.maximum(r, 0)] for m, r in zip(meetings, rows, strict=True)])
    order = np.argsort(np.where(rows >= 0, arrived, np.iinfo(np.int64).max).min(axis=0), kind="stable")
    rows, arrived = rows[:, order], np.where(rows >= 0, arrived, _NEVER)[:, order]
    stopped = np.zeros(rows.shape[1], bool)
    for m, row in zip(meetings, rows, strict=True):
        stopped |= (row >= 0) & m.stops[np.maximum(row, 0)]
    hosts = [r.main.process.host for r in ranks]
    for i, rank in enumerate(ranks):
        rank.peers.exact = rank.peers.at_least = True
        if hosts[i] == hosts[0]:
            rank.peers.error_us = 0 if rank.peers.error_us is None else rank.peers.error_us
        # Clocks of one host are one; those of others are not compared, so that nothing is claimed of them.
        comparable = np.array([host == hosts[i] for host in hosts])
        _book_nccl_waiting(i, ranks, rows, np.where(comparable[:, None], arrived, _NEVER), stopped)
    return True


def _book_nccl_waiting(i: int, ranks: list[Rank], rows: Ints, arrived: Ints, stopped: Bools) -> None:
    """Book the waiting of one rank that is certain.

    The call in which it was blocked may be over only after the last rank came: if it ended before, it did not
    wait for this collective. What its own device had to do is not known; but the last rank, which waited for
    nobody, was done this soon after it came, and so would be this one: the rest is waiting. All of it is if
    the last one came later to launching, since then its device began later.
    """
    own = ranks[i].main.in_stream
    mine = np.flatnonzero(rows[i] >= 0)
    last = np.argmax(arrived[:, mine], axis=0)
    until = arrived[last, mine]
    begin, end = own.blocked
    if not begin.size:
        return
    call = np.searchsorted(begin, until, side="left") - 1
    since = np.maximum(begin[np.maximum(call, 0)], arrived[i, mine])
    keep = np.flatnonzero((call >= 0) & (last != i) & (until <= end[np.maximum(call, 0)]) & (until > since))
    keep = keep[np.lexsort((until[keep], call[keep]))]
    if not keep.size:
        return
    keep = keep[np.append(call[keep][1:] != call[keep][:-1], True)]  # of each call, what came last
    column, last, since, until, call = mine[keep], last[keep], since[keep], until[keep], call[keep]
    before = _last_stop(rows[i], mine, stopped)[column]
    longer = np.zeros((column.size, len(CAUSES)), np.int64)
    for j in np.unique(last).tolist():
        his = last == j
        longer[his] = _worked_longer(
            ranks[i].main.in_stream, ranks[j].main.in_stream, rows[[i, j]], (column[his], before[his])
        )
    began_later = np.delete(longer, _LAUNCHING, axis=1).sum(axis=1)
    amount = np.clip(np.maximum(until - since - (end[call] - until), began_later), 0, until - since)
    stood = np.zeros((column.size, len(STAGES)), np.int64)
    stood[np.arange(column.size), own.blocked_in[call]] = amount
    _book_waiting(ranks[i], since, stood)
    for j in np.unique(last).tolist():
        his = np.flatnonzero((last == j) & (amount > 0))
        when = arrived[j, column[his]]
        _book_cause((ranks[i], ranks[j]), (since[his], when), longer[his], amount[his])


def _matching_rows(meetings: list[Meetings]) -> Ints:
    columns = []
    for name in sorted({n for m in meetings for n in m.groups}):
        numbers: list[tuple[Ints, Ints] | None] = []
        for m in meetings:
            mine = np.flatnonzero(m.group == m.groups.index(name)) if name in m.groups else EMPTY[0]
            seq, first = np.unique(m.seq[mine], return_index=True)
            numbers.append((seq, mine[first]) if seq.size else None)
        members = [n for n in numbers if n is not None]
        if len(members) < 2:
            continue
        common = members[0][0]
        for seq, _ in members[1:]:
            common = np.intersect1d(common, seq, assume_unique=True)
        table = np.full((len(meetings), common.size), -1, np.int64)
        for i, known in enumerate(numbers):
            if known is not None:
                table[i] = known[1][np.searchsorted(known[0], common)]
        columns.append(table)
    return np.concatenate(columns, axis=1) if columns else np.empty((len(meetings), 0), np.int64)


def _on_one_clock(ranks: list[Rank], meetings: list[Meetings], rows: Ints) -> _Matched:
    """No rank leaves before the last has come: that bounds how far two clocks are apart.

    Where they may be equal they are taken to be, otherwise the middle of the bounds is.
    """
    absent = rows < 0
    pairs = [*zip(meetings, rows, strict=True)]
    arrived: Ints = np.stack([m.arrived[np.maximum(r, 0)] for m, r in pairs])
    ended: Ints = np.stack([m.ended[np.maximum(r, 0)] for m, r in pairs])
    together = np.zeros(rows.shape[1], bool)
    for m, r in pairs:
        together |= (r >= 0) & m.together[np.maximum(r, 0)]
    order = np.argsort(arrived[0], kind="stable")
    rows, absent = rows[:, order], absent[:, order]
    arrived, ended, together = arrived[:, order], ended[:, order], together[order]
    for i in range(1, len(ranks)):
        both = np.flatnonzero(~absent[0] & ~absent[i] & together)
        if not both.size:
            continue
        parts = both[:: max(_ALIGNED, -(-both.size // _MAX_PARTS))]
        edges = np.searchsorted(both, parts)
        high = np.minimum.reduceat(ended[i][both] - arrived[0][both], edges)
        low = np.maximum.reduceat(arrived[i][both] - ended[0][both], edges)
        middle = np.where((low <= 0) & (high >= 0), 0, (low + high) // 2)
        part = np.maximum(np.searchsorted(parts, np.arange(rows.shape[1]), side="right") - 1, 0)
        arrived[i] -= middle[part]
        ended[i] -= middle[part]
        ranks[i].peers.offset_us = int(np.median(middle))
        ranks[i].peers.error_us = int(np.maximum(high - middle, middle - low).max())
    return _Matched(rows, arrived, ended, together)


def _wait_of(i: int, ranks: list[Rank], found: _Matched, stopped: Bools) -> None:
    """Book the waiting of one rank on its own steps, and on those of the ranks that caused it."""
    mine = np.flatnonzero(found.rows[i] >= 0)
    own = ranks[i].main.meetings
    arrived, ended = found.arrived[i][mine], found.ended[i][mine]
    others = np.where(found.rows[:, mine] >= 0, found.arrived[:, mine], _NEVER)
    # Of those that do not wait for all, who comes after it has left is not waited for.
    others[:, ~found.together[mine]] = np.where(
        others[:, ~found.together[mine]] <= ended[~found.together[mine]],
        others[:, ~found.together[mine]],
        _NEVER,
    )
    last = np.argmax(others, axis=0)
    until = np.minimum(others[last, np.arange(mine.size)], ended)
    order = np.argsort(until, kind="stable")
    reached = np.maximum.accumulate(np.concatenate(([_NEVER], until[order][:-1])))
    since = np.maximum(arrived[order], reached)
    keep = (until[order] > since) & (last[order] != i)
    order, since = order[keep], since[keep]
    column, until, last = mine[order], until[order], last[order]
    shift = own.arrived[found.rows[i][column]] - found.arrived[i][column]  # back to its own clock
    stood = account(*own.blocked, own.blocked_in, len(STAGES), since + shift, until + shift)
    amount = stood.sum(axis=1)
    some = amount > 0
    column, last, stood, amount, since = column[some], last[some], stood[some], amount[some], since[some]
    _book_waiting(ranks[i], since + shift[some], stood)
    before = _last_stop(found.rows[i], mine, stopped)[column]
    for j in np.unique(last).tolist():
        his = last == j
        late, both = ranks[j].main.meetings, found.rows[[i, j]]
        at = column[his]
        longer = _worked_longer(own, late, both, (at, before[his]))
        times = own.arrived[both[0][at]], late.arrived[both[1][at]]
        _book_cause((ranks[i], ranks[j]), times, longer, amount[his])


def _last_stop(rows: Ints, mine: Ints, stopped: Bools) -> Ints:
    """By column: the one before it, in the rank's own order, after which some rank stood still; -1: none."""
    order = mine[np.argsort(rows[mine], kind="stable")]
    latest = np.maximum.accumulate(np.where(stopped[order], np.arange(order.size), -1))
    previous = np.concatenate(([-1], latest[:-1]))
    out = np.full(rows.size, -1, np.int64)
    out[order] = np.where(previous >= 0, order[np.maximum(previous, 0)], -1)
    return out


def _step_of(rank: Rank, at: Ints) -> Ints:
    """The step at each moment; -1 in none."""
    steps = rank.main.steps
    step = np.searchsorted(steps.start, at, side="right") - 1
    inside = (step >= 0) & (at < steps.end[np.maximum(step, 0)])
    return np.where(inside, step, -1)


def _book_waiting(rank: Rank, at: Ints, stood: Ints) -> None:
    steps, peers = rank.main.steps, rank.peers
    step = _step_of(rank, at)
    inside = step >= 0
    np.add.at(peers.waiting, step[inside], stood[inside])
    first = int(steps.start[rank.main.spent.first])
    between = ~inside & (at >= first) & (at < steps.end[-1])
    peers.between += stood[between].sum(axis=0)
    peers.apart += stood[~inside & (at >= steps.start[0])].sum(axis=0)


def _worked_longer(waited: Meetings, late: Meetings, rows: Ints, columns: tuple[Ints, Ints]) -> Ints:
    """By cause: what the late one did longer than the waiting one since they last met."""
    at, before = columns
    done = np.zeros((at.size, len(CAUSES)), np.int64)
    for sign, m, row in ((1, late, rows[1]), (-1, waited, rows[0])):
        since = np.where((before >= 0) & (row[np.maximum(before, 0)] >= 0), row[before], -1)
        start = np.where((since >= 0)[:, None], m.worked[np.maximum(since, 0)], 0)
        done += sign * (m.worked[row[at]] - start)
    return done


def _book_cause(pair: tuple[Rank, Rank], times: tuple[Ints, Ints], done: Ints, amount: Ints) -> None:
    """What the second of a pair did longer explains what the first waited for it; `times`: of both."""
    longer = np.maximum(done, 0).astype(float)
    whole = longer.sum(axis=1)
    longer[whole <= 0, NONE] = 1.0
    share = longer / np.maximum(longer.sum(axis=1), 1.0)[:, None]
    caused = np.round(share * amount[:, None]).astype(np.int64)
    caused[np.arange(amount.size), np.argmax(share, axis=1)] += amount - caused.sum(axis=1)
    waits, rank = pair
    step = _step_of(rank, times[1])
    inside = step >= 0
    np.add.at(rank.peers.caused, step[inside], caused[inside])
    after = ~inside & (times[0] >= waits.main.steps.start[0])
    rank.peers.caused_apart += caused[after].sum(axis=0)


def _arrival_skew(ranks: list[Rank], n: int) -> Ints:
    """Per rank and step, how long before the last rank it came to the collectives of the step.

    The collectives of a step are matched by their order. Where ranks differ in their number, only the sums
    are compared; what other work hides is no waiting.
    """
    exposed = np.stack([r.stage_us("comm")[:n] for r in ranks])
    skew: Ints = exposed - exposed.min(axis=0)
    steps, durations = zip(*(_collectives(r, n) for r in ranks), strict=True)
    counts = np.stack([np.bincount(s, minlength=n) for s in steps])
    alike = (counts == counts[0]).all(axis=0)
    matched = np.stack([d[alike[s]] for s, d in zip(steps, durations, strict=True)])
    early = matched - matched.min(axis=0)
    step = steps[0][alike[steps[0]]]
    for i, mine in enumerate(early):
        skew[i, alike] = np.bincount(step, weights=mine, minlength=n)[alike]
    return np.minimum(skew, exposed)


def _collectives(rank: Rank, n: int) -> tuple[Ints, Ints]:
    """The step and the duration of each collective of the first `n` steps, in order."""
    start, end = rank.main.comm
    steps = rank.main.steps
    at = np.searchsorted(steps.start[:n], start, side="right") - 1
    inside = (at >= 0) & (start < steps.end[:n][np.maximum(at, 0)])
    return at[inside], (end - start)[inside]


@dataclass
class Straggler:
    """The rank that the others wait for."""

    rank: Rank
    stage: str
    own_s: float  # mean per late step in that stage, and that of the median rank
    median_s: float
    lost_s: float  # what the run would be shorter without it
    all_lost_s: float  # summed over the ranks that waited
    late: int  # steps in which it came last, by more than noise
    steps: int
    first: int
    chronic: bool
    work_s: dict[int, float]  # mean of each rank's own work per step


def find_straggler(ranks: list[Rank]) -> Straggler | None:
    """Who waits least and spends most elsewhere, if it is always the same one that others wait for."""
    known = _with_steps(ranks)
    if len(known) < 2:
        return None
    if all(r.peers.exact for r in known):
        return _last_to_come(known)
    n = min(len(r.main.steps) for r in known)
    steady = np.logical_and.reduce([r.main.steps.steady[:n] for r in known])
    wall = np.stack([r.wall_us[:n] for r in known]).astype(float)
    waiting = np.stack([r.waiting_us[:n] for r in known]).astype(float)
    together = waiting.any()
    # Ranks that run apart have no waiting to tell by; then communication is what is not their own work.
    away = waiting if together else np.stack([r.stage_us("comm")[:n] for r in known]).astype(float)
    work = wall - away
    i = int(np.argmax(np.round(work[:, steady].sum(axis=1), -3)))
    typical = np.median(np.delete(work, i, axis=0), axis=0)
    late = steady & (np.argmax(work, axis=0) == i) & (work[i] - typical > LATE_STEP * np.maximum(typical, 1))
    if not late.any():
        return None
    lost = _lost_waiting(waiting, i, late, steady) if together else _lost_apart(work, i, late, steady)
    if lost is None:
        return None
    accounts = np.stack([r.main.account[:n] for r in known]).astype(float)
    s, own_us, median_us = _stage_behind(accounts, away, i, late)
    share = float(late.sum()) / float(steady.sum())
    return Straggler(
        known[i],
        STAGES[s],
        own_us / 1e6,
        median_us / 1e6,
        lost[0] / 1e6,
        lost[1] / 1e6,
        int(late.sum()),
        n,
        int(np.flatnonzero(late)[0]),
        share >= CHRONIC_SHARE,
        {r.number: float(w[steady].mean()) / 1e6 for r, w in zip(known, work, strict=True)},
    )


def _last_to_come(ranks: list[Rank]) -> Straggler | None:
    """The rank that caused most of the waiting, where collectives were matched."""
    n = min(len(r.main.steps) for r in ranks)
    steady = np.logical_and.reduce([r.main.steps.steady[:n] for r in ranks])
    caused = np.stack([r.peers.caused[:n].sum(axis=1) for r in ranks]).astype(float)
    waiting = np.stack([r.waiting_us[:n] for r in ranks]).astype(float)
    wall = np.stack([r.wall_us[:n] for r in ranks]).astype(float)
    whole = caused[:, steady].sum(axis=1)
    i = int(np.argmax(np.round(whole, -3)))
    work = wall - waiting
    usual = np.median(np.delete(work, i, axis=0), axis=0)
    # Per waiting rank: what one of them lost to it.
    each = caused[i] / (len(ranks) - 1)
    late = steady & (each > LATE_STEP * np.maximum(usual, 1))
    if not late.any() or whole[i] <= MAJORITY * whole.sum():
        return None
    lost = _lost_waiting(waiting, i, late, steady)
    if lost is None:
        return None
    causes = ranks[i].peers.caused[:n][late].sum(axis=0)
    cause = int(np.argmax(causes))
    if cause < len(STAGES):
        accounts = np.stack([r.main.account[:n] - r.peers.waiting[:n] for r in ranks]).astype(float)
        own = float(accounts[i][late, cause].mean())
        median = float(np.median(np.delete(accounts, i, axis=0), axis=0)[late, cause].mean())
    else:
        own, median = float(causes[cause]) / int(late.sum()) / (len(ranks) - 1), 0.0
    return Straggler(
        ranks[i],
        CAUSES[cause],
        own / 1e6,
        median / 1e6,
        lost[0] / 1e6,
        lost[1] / 1e6,
        int(late.sum()),
        n,
        int(np.flatnonzero(late)[0]),
        float(late.sum()) / float(steady.sum()) >= CHRONIC_SHARE,
        {r.number: float(w[steady].mean()) / 1e6 for r, w in zip(ranks, work, strict=True)},
    )


def _lost_waiting(waiting: Floats, i: int, late: Bools, steady: Bools) -> tuple[float, float] | None:
    """What the others waited for rank `i` when it was late: the median of them, and all together.

    None where it waits for them about as much.
    """
    others = np.delete(waiting, i, axis=0)
    if float(waiting[i][steady].sum()) > ONE_SIDED * float(np.median(others[:, steady].sum(axis=1))):
        return None
    lost_by = others[:, late].sum(axis=1)
    return float(np.median(lost_by)), float(lost_by.sum())


def _lost_apart(work: Floats, i: int, late: Bools, steady: Bools) -> tuple[float, float] | None:
    """The same by their work alone, for ranks that run apart."""
    others = np.delete(work, i, axis=0)
    lost = float((work[i] - np.median(others, axis=0))[late].sum())
    before = np.maximum(others - work[i], 0)[:, steady].sum(axis=1)
    if float(np.median(before)) > ONE_SIDED * lost:
        return None
    return lost, lost * len(others)


def _stage_behind(accounts: Floats, away: Floats, i: int, late: Bools) -> tuple[int, float, float]:
    """The stage in which rank `i` spends most more than the median rank when it is late, with both times."""
    backward, comm = STAGE_INDEX["backward"], STAGE_INDEX["comm"]
    # Waiting beyond what communication accounts for is hidden in backward.
    hidden = np.maximum(away - accounts[:, :, comm], 0)
    accounts[:, :, backward] -= np.minimum(hidden, accounts[:, :, backward])
    own = accounts[i][late].mean(axis=0)
    median = np.median(np.delete(accounts, i, axis=0), axis=0)[late].mean(axis=0)
    difference = own - median
    difference[comm] = -np.inf
    if difference[:NONE].max() >= MAJORITY * difference[NONE]:
        difference[NONE] = -np.inf  # a stage says more, if it explains enough
    s = int(np.argmax(difference))
    return s, float(own[s]), float(median[s])


def _median_stage(rank: Rank, rows: Ints) -> Floats:
    account = rank.main.account[rows].astype(float)
    account -= np.minimum(rank.peers.waiting[rows], account)
    result: Floats = np.median(account, axis=0) if len(account) else np.zeros(len(STAGES))
    return result


def scores(ranks: list[Rank]) -> dict[int, dict[str, dict[str, float | None]]]:
    """Per rank and stage, waiting taken out: `relative` to the best rank, `individual` to its own best time.

    1.0 is as fast as the best; 0.5 takes twice as long. The own best is the fastest tenth of the run.
    """
    usual = {r.number: _median_stage(r, np.flatnonzero(r.main.steps.steady)) for r in ranks}
    best = np.min(np.stack([*usual.values()]), axis=0) if usual else np.zeros(len(STAGES))
    out: dict[int, dict[str, dict[str, float | None]]] = {}
    for r in ranks:
        parts = np.array_split(np.flatnonzero(r.main.steps.steady), 10)
        tenths = [_median_stage(r, p) for p in parts if p.size] or [usual[r.number]]
        own = np.min(np.stack(tenths), axis=0)
        out[r.number] = {
            "relative": _ratios(best, usual[r.number]),
            "individual": _ratios(own, usual[r.number]),
        }
    return out


def _ratios(best: Floats, own: Floats) -> dict[str, float | None]:
    return {
        stage: None if own[i] <= 0 else round(float(best[i] / own[i]), 4)
        for i, stage in enumerate(STAGES)
        if i != NONE
    }
