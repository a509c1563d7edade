"""What ranks lose by waiting for each other.

Ranks that synchronise finish each step together, so who is late cannot be read off their step times. The one
that comes last waits least. Where collectives are visible, a rank's waiting is how long before the last rank
it came to each: all leave a collective together, so that is how much longer it took than on the last rank,
whatever their clocks say. Where they are hidden in the backward pass (DDP), it is, in each step, its
backward and communication time beyond the least that any rank spent there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dftracer.analyze.stages import NONE, STAGE_INDEX, STAGES
from dftracer.analyze.thresholds import CHRONIC_SHARE, FEW_STEPS, LATE_STEP, MAJORITY, ONE_SIDED
from dftracer.load.chunk import Ints

if TYPE_CHECKING:
    from dftracer.analyze.job import Rank

__all__ = ["Straggler", "find_straggler", "mark_waiting", "scores"]

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_MEETING = ("comm", "backward")  # where ranks meet; waiting is taken from the first as far as it goes
_TOGETHER = 0.05  # step times of ranks that synchronise differ by less


def _with_steps(ranks: list[Rank]) -> list[Rank]:
    return [r for r in ranks if len(r.main.steps) >= FEW_STEPS]


def mark_waiting(ranks: list[Rank]) -> None:
    """Tell every rank, per step, how long it waited for others; nothing where ranks run apart."""
    known = _with_steps(ranks)
    if len(known) < 2:
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
    for rank, mine in zip(known, waiting, strict=True):
        rank.waiting_us = np.zeros(len(rank.main.steps), np.int64)
        rank.waiting_us[:n] = mine


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


def _lost_waiting(waiting: Floats, i: int, late: Flags, steady: Flags) -> tuple[float, float] | None:
    """What the others waited for rank `i` when it was late: the median of them, and all together.

    None where it waits for them about as much.
    """
    others = np.delete(waiting, i, axis=0)
    if float(waiting[i][steady].sum()) > ONE_SIDED * float(np.median(others[:, steady].sum(axis=1))):
        return None
    lost_by = others[:, late].sum(axis=1)
    return float(np.median(lost_by)), float(lost_by.sum())


def _lost_apart(work: Floats, i: int, late: Flags, steady: Flags) -> tuple[float, float] | None:
    """The same by their work alone, for ranks that run apart."""
    others = np.delete(work, i, axis=0)
    lost = float((work[i] - np.median(others, axis=0))[late].sum())
    before = np.maximum(others - work[i], 0)[:, steady].sum(axis=1)
    if float(np.median(before)) > ONE_SIDED * lost:
        return None
    return lost, lost * len(others)


def _stage_behind(accounts: Floats, away: Floats, i: int, late: Flags) -> tuple[int, float, float]:
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
    away = rank.waiting_us[rows].astype(float)
    for stage in _MEETING:
        column = account[:, STAGE_INDEX[stage]]
        taken = np.minimum(away, column)
        column -= taken
        away -= taken
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
