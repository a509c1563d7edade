"""One account of a rank's time: every moment from its first steady step to its last belongs to one line.

The host's ledger of all steps says where the time went; figures of the device only decide, inside the stages
in which the host launches work or is blocked, which part is the device's. An event on the device says how far
behind the host it was at a boundary. Until it has caught up, the time is the device's; so is the time in
which the host launched what the device was behind with. What remains is the stage's own.

Where the device was only observed in some steps, the shares found there apply to each stage's time in the
others: the host's ledger stays the control total.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dftracer.analyze.intervals import (
    EMPTY,
    Bools,
    Floats,
    Intervals,
    account,
    difference,
    intersection,
    measure,
    pieces,
    union,
)
from dftracer.analyze.map.steps import StepTable
from dftracer.analyze.stages import COMPUTE, COMPUTE_STAGES, INPUT_STAGES, NONE, STAGE_INDEX, STAGES
from dftracer.load.chunk import Ints

LINES: Final = (
    "input",
    "transfer",
    "device",
    "host",
    "comm",
    "peers",
    "checkpoint",
    "evaluation",
    "own_code",
    "unexplained",
)
_LINE_OF: Final = {
    **dict.fromkeys(INPUT_STAGES, "input"),
    **dict.fromkeys(COMPUTE_STAGES, "host"),
    "transfer": "transfer",
    "comm": "comm",
    "checkpoint": "checkpoint",
    "sync": "device",
    "own_code": "own_code",
    "other": "own_code",
    "unexplained": "unexplained",
}
LINE_OF_STAGE: Final = {s: _LINE_OF[s] for s in STAGES}

# Where the device's backlog decides: while the host launches, waits for data, copies or saves, or does
# something unknown. The program's own code stays its own, even if the device works meanwhile.
_DECIDED: Final = frozenset(
    STAGE_INDEX[s] for s in (*INPUT_STAGES, *COMPUTE_STAGES, "transfer", "checkpoint", "unexplained")
)
_SYNC = STAGE_INDEX["sync"]
NO_LAG_US = 50.0  # a device this little behind is not behind: a launch takes as long
_FILLS = 0.1  # of a step: if the device falls behind by more in one, the host runs ahead
_SLOW_COPY = 1000.0  # bytes per us; what a copy takes beyond that is waiting for queued work
_SLOW_LAUNCH = 2  # times the fastest launch of the same graph; what it takes beyond that is the same


@dataclass
class Backlog:
    """When the device was behind the host, on the host's clock, in us."""

    behind: Intervals = EMPTY  # from a boundary until the device reached it
    launching: Intervals = EMPTY  # before a boundary, as long as the device was behind at it
    source: str = ""  # `profiler`, `events`, or `calls`: only calls that blocked the host are known
    boundaries: Ints = field(default_factory=lambda: EMPTY[0])  # with events
    windows: Intervals = EMPTY  # where everything is known: with a profiler, and with calls
    lag: Floats = field(default_factory=lambda: np.empty(0))  # at the last boundary of each step, else NaN

    def observed_in(self, steps: StepTable) -> bool:
        """Whether the device was observed in these steps: it may have been in a warm-up only."""
        first, last = steps.start[:1], steps.end[-1:]
        inside = (self.boundaries >= first) & (self.boundaries < last)
        return bool(self.source and (inside.any() or measure(self.windows, first, last).any()))

    def observed(self, timeline: tuple[Ints, Ints, Ints], steps: StepTable) -> Intervals:
        """When it is known whether the device was behind.

        From one event of a step to the next; from its last one until the host launches again.
        """
        if not self.boundaries.size:
            return self.windows
        at = self.boundaries
        # One step's, if no other begins between them.
        begun, begins = (np.searchsorted(steps.start, at, side=side) for side in ("right", "left"))
        same = np.append(begins[1:] <= begun[:-1], False)
        launches = timeline[0][np.isin(timeline[2], COMPUTE)]
        end = np.append(launches, steps.end[-1])[np.searchsorted(launches, at)]
        following = np.append(at[1:], at[-1:])
        return union(at, np.where(same, following, np.maximum(at, end)))


def backlog_of_boundaries(host: Floats, lag: Floats, steps: StepTable, slack: float = 0.0) -> Backlog:
    """From how far behind the device was at some moments of the host, in chronological order."""
    last = np.searchsorted(host, steps.end, side="right") - 1
    inside = (last >= 0) & (host[np.maximum(last, 0)] >= steps.start)
    at_end = np.where(inside, lag[np.maximum(last, 0)], np.nan)
    late = lag > max(NO_LAG_US, slack)
    before = np.concatenate(([-np.inf], host[:-1]))
    at, length, before = host[late], lag[late], before[late]
    return Backlog(
        union(at.astype(np.int64), (at + length).astype(np.int64)),
        union(np.maximum(before, at - length).astype(np.int64), at.astype(np.int64)),
        boundaries=host.astype(np.int64),
        lag=at_end,
    )


def backlog_of_calls(copies: Ints, launches: Ints, steps: StepTable) -> Backlog:
    """The part of copies that cannot be copying, and of launches of graphs that cannot be launching.

    Both are tables of marks: thread, start, duration, ..., and the bytes copied or the graph launched. Where
    the queue is full, a launch waits until the device has taken one from it.
    """
    if not copies.shape[1] and not launches.shape[1]:
        return Backlog()
    takes = [np.maximum(copies[-1], 0) / _SLOW_COPY, _SLOW_LAUNCH * _fastest(launches)]
    start, dur = (np.concatenate((copies[row], launches[row])) for row in (1, 2))
    waited = dur - np.concatenate(takes).astype(np.int64)
    late = waited > NO_LAG_US
    everything = steps.start[:1], steps.end[-1:]
    return Backlog(union(start[late], (start + waited)[late]), source="calls", windows=everything)


def _fastest(launches: Ints) -> Ints:
    """Of each launch, how long the fastest of its graph took; where the graph is not known, its own time."""
    out: Ints = launches[2].copy()
    for graph in np.unique(launches[-1]).tolist():
        if graph > 0:
            out[launches[-1] == graph] = launches[2][launches[-1] == graph].min()
    return out


@dataclass
class Spent:
    """What the account needs of one process: small, and made where its trace is read."""

    first: int = 0  # the first steady step: the account begins with it
    between: Ints = field(default_factory=lambda: np.zeros(len(STAGES), np.int64))  # outside steps, by stage
    device: Ints = field(default_factory=lambda: np.empty((0, len(STAGES)), np.int64))  # of each step
    device_between: Ints = field(default_factory=lambda: np.zeros(len(STAGES), np.int64))
    seen: Ints = field(default_factory=lambda: np.empty((0, len(STAGES)), np.int64))  # where that is known
    source: str = ""  # of what is known about the device
    lag: Floats = field(default_factory=lambda: np.empty(0))  # of the device at the end of each step, in us
    size: Ints = field(default_factory=lambda: EMPTY[0])  # of each step's batch, in bytes or items
    evaluation_us: int = 0

    @property
    def knows_device(self) -> bool:
        return self.source in {"profiler", "events"} and bool(self.seen.any())

    def queue_fills(self, ledger: Ints, wall: Ints) -> Bools:
        """The steps in which the host runs ahead: they are short because the queue takes their work."""
        out = np.zeros(wall.size, bool)
        if self.lag.size == wall.size:
            known = np.flatnonzero(np.isfinite(self.lag))
            grows = np.diff(self.lag[known]) > _FILLS * wall[known[1:]]
            out[known[1:]] = grows
            # From the first step on: the device has not been waited for yet.
            first = int(np.argmax(~grows)) if known.size > 1 and not grows.all() else grows.size
            out[: known[first] + 1 if grows.size and first else 0] = True
        if not ledger[:, _SYNC].any():
            return out
        waits = ledger[:, _SYNC] + (self.device.sum(axis=1) if self.device.size else 0)
        blocked = np.flatnonzero(2 * waits > wall)
        if 2 * blocked.size > wall.size:  # the host waits for the device in most steps, not in these
            out[: blocked[0]] = True
        return out


def spent(
    timeline: tuple[Ints, Ints, Ints],
    steps: StepTable,
    evaluation: Intervals,
    backlog: Backlog,
    rest: int,
) -> Spent:
    """`rest`: the stage of time between steps that nothing covers."""
    start, end, stage = timeline
    out = Spent(int(np.flatnonzero(steps.steady)[0]) if steps.steady.any() else 0)
    window = steps.start[out.first :][:1], steps.end[-1:]
    out.evaluation_us = int(measure(evaluation, *window)[0])
    gaps = difference(difference(window, union(steps.start, steps.end)), evaluation)
    if gaps[0].size:
        out.between = account(start, end, stage, len(STAGES), *gaps).sum(axis=0)
        out.between[NONE] = 0
        out.between[rest] += int((gaps[1] - gaps[0]).sum()) - int(out.between.sum())
    if not backlog.source:
        return out
    out.device = np.zeros((len(steps), len(STAGES)), np.int64)
    out.source, out.lag = backlog.source, backlog.lag
    known = backlog.observed(timeline, steps)
    out.seen = _in_steps(timeline, known, steps, evaluation)
    both = union(*(np.concatenate((backlog.behind[i], backlog.launching[i])) for i in (0, 1)))
    for behind, stages in ((both, [*COMPUTE]), (backlog.behind, sorted(_DECIDED - {*COMPUTE}))):
        mine = np.isin(stage, stages)
        decided = start[mine], end[mine], stage[mine]
        time = intersection(behind, known)
        out.device += _in_steps(decided, time, steps, evaluation)
        if gaps[0].size:
            a, b, which = pieces(behind, decided[:2])
            out.device_between += account(a, b, decided[2][which], len(STAGES), *gaps).sum(axis=0)
    return out


def _in_steps(
    timeline: tuple[Ints, Ints, Ints], time: Intervals, steps: StepTable, evaluation: Intervals
) -> Ints:
    """How much of each stage lies in some time, by step; evaluation inside steps left out."""
    start, end, which = pieces(time, timeline[:2])
    parts = start, end, timeline[2][which]
    out = account(*parts, len(STAGES), steps.start, steps.end)
    inner = intersection((steps.start, steps.end), evaluation)
    if inner[0].size:
        step = np.searchsorted(steps.start, inner[0], side="right") - 1
        np.subtract.at(out, step, account(*parts, len(STAGES), *inner))
    return out


@dataclass
class Account:
    """Seconds by line, and what stands behind some of them."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LINES, 0.0))
    host: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COMPUTE_STAGES, 0.0))
    device: dict[str, float] = field(default_factory=dict)  # of that line, by the host's stage
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))  # the host's own
    annotated_s: float = 0.0  # of own code: in the user's own annotations
    between: dict[str, float] = field(default_factory=dict)  # by stage, between steps
    restarts: dict[str, float] = field(default_factory=dict)  # by line, what first steps of epochs add
    steps: int = 0
    step_s: float = 0.0  # the mean step
    knows_device: bool = False

    @property
    def whole_s(self) -> float:
        return sum(self.seconds.values())

    def share(self, line: str) -> float:
        whole = self.whole_s
        return self.seconds[line] / whole if whole > 0 else 0.0

    def between_of(self, line: str) -> float:
        """The part of `own_code` or `unexplained` that lies between steps."""
        return self.between.get(line, 0.0)

    @property
    def largest(self) -> str:
        return max(LINES, key=lambda line: (round(self.seconds[line], 6), -LINES.index(line)))

    def to_json(self) -> dict[str, Any]:
        return {
            line: {"seconds": round(s, 6), "share": round(self.share(line), 6)}
            for line, s in self.seconds.items()
        }


def account_of(ledger: Ints, waiting: Ints, between: Ints, spent: Spent, steps: StepTable) -> Account:
    """`ledger`: us by step and stage; `waiting`: the same for other ranks, and between steps by stage."""
    rows = slice(spent.first, None)
    own = ledger[rows].astype(float)
    device = _device_time(ledger, spent)[rows]
    n = own.shape[0]
    out = Account(steps=n, step_s=float(own.sum()) / 1e6 / max(1, n), knows_device=spent.knows_device)
    taken = np.minimum(waiting[rows], own)
    device *= np.where(own > 0, 1 - taken / np.maximum(own, 1), 1.0)
    own -= taken
    apart = np.minimum(between, spent.between)
    out.seconds["peers"] = float(taken.sum() + apart.sum()) / 1e6
    by_stage = own.sum(axis=0) + spent.between - apart
    of_device = device.sum(axis=0) + spent.device_between
    for s, stage in enumerate(STAGES):
        theirs = min(float(of_device[s]), float(by_stage[s])) / 1e6
        mine = float(by_stage[s]) / 1e6 - theirs
        if theirs > 0:
            out.device[stage] = theirs
        out.seconds["device"] += theirs
        out.seconds[LINE_OF_STAGE[stage]] += mine
        out.stages[stage] = mine
        if stage in out.host:
            out.host[stage] = mine
    out.device["sync"] = float(by_stage[_SYNC]) / 1e6
    again = np.flatnonzero((steps.first & ~steps.steady)[rows])
    if again.size and steps.steady.any():
        # By line: a loader's first batch may be loading in another stage than the others.
        for line in dict.fromkeys(LINE_OF_STAGE[stage] for stage in STAGES):
            of_line = [s for s, stage in enumerate(STAGES) if LINE_OF_STAGE[stage] == line]
            usual = np.median(ledger[steps.steady][:, of_line].sum(axis=1))
            out.restarts[line] = float(np.maximum(own[again][:, of_line].sum(axis=1) - usual, 0).sum()) / 1e6
    out.seconds["evaluation"] = spent.evaluation_us / 1e6
    out.annotated_s = float(by_stage[STAGE_INDEX["other"]]) / 1e6
    unmet = spent.between - apart
    out.between = {s: float(unmet[i]) / 1e6 for i, s in enumerate(STAGES) if unmet[i]}
    return out


def _device_time(ledger: Ints, spent: Spent) -> Floats:
    """By step and stage: as observed, and otherwise the share that was observed for the stage."""
    if not spent.seen.any():
        return np.zeros(ledger.shape)
    out = np.minimum(spent.device, ledger).astype(float)
    unseen = np.maximum(ledger - spent.seen, 0)
    steady = slice(spent.first, None)
    rows = steady if spent.seen[steady].any() else slice(None)
    whole = spent.seen[rows].sum(axis=0).astype(float)
    behind = out[rows].sum(axis=0)
    named = ledger[:, _SYNC] > 0
    observed = spent.seen.any(axis=1)
    if named.any() and not named[~observed].any() and not observed.all():
        # Calls that block have a name in the observed steps only: in the others nothing covers them.
        whole[NONE] += ledger[observed, _SYNC].sum()
        behind[NONE] += ledger[observed, _SYNC].sum()
    ratio = np.divide(behind, whole, out=np.zeros(len(STAGES)), where=whole > 0)
    if spent.source != "calls":
        out += unseen * ratio
    return out
