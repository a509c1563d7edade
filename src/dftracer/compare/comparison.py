"""Two runs, or two groups of runs, side by side: what changed by more than their own steps vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer.analyze.stages import STAGES
from dftracer.compare.figures import Figure, device_figures, findings_change, io_figures, throughput_figures
from dftracer.compare.side import Side
from dftracer.compare.statistics import (
    FEWEST_STEPS,
    Center,
    Change,
    Floats,
    block_length,
    blocks,
    change_of,
    mean_of,
    median_of,
    of_runs,
)

FALSE_ALARMS = 0.05  # of whole comparisons of equal runs
LEAST_MOVE = 0.01  # of the step: a smaller change is not worth mentioning
SAME_WITHIN = 0.05  # runs are called the same if, with 95 % confidence, they differ by no more than this
_BURST = 2.0  # a mean this many times the median: the stage takes its time in only a few of the steps
# A run has its evaluations and pauses once, so how much they vary is not known: only a clear change counts.
_PART_MOVE = 0.05  # of the run without its start-up
_PART_CHANGE = 0.25  # of the part itself
# What the run does outside its steps, as the report names it, and in words.
PARTS: Mapping[str, str] = {"evaluation": "evaluation", "outside": "between steps"}
# A stage that automatic tracing did not see in a run did not happen in it, if it cannot be overlooked.
_NOT_OVERLOOKED = ("transfer", "sync", "comm", "checkpoint")


@dataclass(frozen=True)
class RunPart:
    """What the run did outside its steps, in seconds per step."""

    a: float
    b: float
    changed: bool


@dataclass
class Comparison:
    """What changed from run a to run b."""

    a: Side
    b: Side
    step: Change
    stages: dict[str, Change]
    bursts: dict[str, Change]  # means, for stages that take their time in only a few steps
    step_mean: Change
    device_busy: Change | None
    unseen: dict[str, str]  # stage -> the run that could not see it
    step_alone: Change = field(default_factory=lambda: change_of(None, None, (0.0, 0.0), FALSE_ALARMS))
    block: int = 1  # consecutive steps that make up for each other
    whole: RunPart | None = None  # all but the start-up
    parts: dict[str, RunPart] = field(default_factory=dict)
    device: list[Figure] = field(default_factory=list)
    io: list[Figure] = field(default_factory=list)
    throughput: list[Figure] = field(default_factory=list)
    findings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """Whether there are enough steps to say anything."""
        return self.step.interval_s is not None

    @property
    def changed(self) -> list[str]:
        """The stages that changed, starting with the one that changes the step most."""
        found = [s for s, c in self.stages.items() if c.told and abs(self.moves(s)) >= LEAST_MOVE]
        return sorted(found, key=lambda s: -abs(self.moves(s)))

    @property
    def changed_in_bursts(self) -> list[str]:
        """Stages that changed in the few steps where they take their time."""
        least = LEAST_MOVE * self.step_mean.a
        found = [s for s, c in self.bursts.items() if c.told and abs(c.difference) >= least]
        return sorted(found, key=lambda s: -abs(self.bursts[s].difference))

    @property
    def changed_parts(self) -> list[str]:
        """What changed outside the steps, starting with the largest change."""
        found = [p for p, x in self.parts.items() if x.changed]
        return sorted(found, key=lambda p: -abs(self.parts[p].b - self.parts[p].a))

    @property
    def step_changed(self) -> bool:
        return self.step.told and abs(self.step.difference) >= LEAST_MOVE * self.step.a

    @property
    def difference(self) -> bool:
        return bool(self.step_changed or self.changed or self.changed_in_bursts or self.changed_parts)

    @property
    def answer(self) -> str:
        """`same`, `different` or `cannot_tell`."""
        if self.difference:
            return "different"
        return "same" if self.enough and self.reach <= SAME_WITHIN else "cannot_tell"

    @property
    def reach(self) -> float:
        """How far the step may have changed, either way, with 95 % confidence."""
        ends = self.step_alone.interval
        return max(abs(e) for e in ends) if ends is not None else math.inf

    def steps_needed(self, limit: float = SAME_WITHIN) -> int | None:
        """How many steps each run would need to tell; None if more steps would hardly help, but more runs."""
        least = min(self.a.wall.size, self.b.wall.size)
        if not self.enough:
            return max(FEWEST_STEPS * 4, 2 * least)
        times = (self.reach / limit) ** 2
        return math.ceil(least * times / 10) * 10 if times <= _HOPELESS else None

    def moves(self, stage: str) -> float:
        """The change of a stage as a share of a's step."""
        return self.stages[stage].difference / self.step.a if self.step.a > 0 else 0.0


_HOPELESS = 50.0


def compare_all(sides: list[Side]) -> list[Comparison]:
    """Every run against the first; together they raise no more false alarms than a single comparison may."""
    return [compare(sides[0], other, FALSE_ALARMS / (len(sides) - 1)) for other in sides[1:]]


def compare(a: Side, b: Side, alpha: float = FALSE_ALARMS) -> Comparison:
    """`alpha` is the share of false alarms over all stages together."""
    names = [s for s in (*STAGES, *_others(a, b)) if s in a.stages or s in b.stages]
    seen = {s: (_times(a, s), _times(b, s)) for s in names}
    unseen = {s: side.name for s in names for side, x in zip((a, b), seen[s], strict=True) if x is None}
    pairs = {s: (x, y) for s, (x, y) in seen.items() if x is not None and y is not None}
    block = _common_block(a, b)
    step = _middle(a.wall), _middle(b.wall)
    bursty = [s for s, (x, y) in pairs.items() if _in_bursts(a, x, block) or _in_bursts(b, y, block)]
    # Only stages long enough to change the step can raise an alarm.
    long = [s for s, p in pairs.items() if max(map(_middle, p)) >= LEAST_MOVE * step[0]]
    each = alpha / (1 + len(long) + len(bursty) + (1 if bursty else 0))
    busy = _device_busy(a), _device_busy(b)
    one = len(a.members) == len(b.members) == 1

    def median(x: Floats, y: Floats, most_alarms: float = each) -> Change:
        return _change(median_of, (a, x), (b, y), block, most_alarms)

    def mean(x: Floats, y: Floats) -> Change:
        return _change(mean_of, (a, x), (b, y), 1, each)

    return Comparison(
        a,
        b,
        median(a.wall, b.wall),
        {s: median(x, y) for s, (x, y) in pairs.items()},
        {s: mean(*pairs[s]) for s in bursty},
        mean(a.wall, b.wall),
        _change(median_of, (a, busy[0]), (b, busy[1]), 1, each)
        if one and busy[0].size and busy[1].size
        else None,
        unseen,
        median(a.wall, b.wall, alpha),
        block,
        *_whole_run(a, b),
        device_figures(a.told, b.told),
        io_figures(a, b),
        throughput_figures(a.told, b.told),
        findings_change(a.told, b.told),
    )


def _others(a: Side, b: Side) -> list[str]:
    """Stages of a later version, in the order in which they appear."""
    return [s for s in dict.fromkeys([*a.stages, *b.stages]) if s not in STAGES]


def _times(side: Side, stage: str) -> Floats | None:
    """The times of a stage; None if the run could not see it."""
    found = side.stage(stage)
    return np.zeros(side.wall.size) if found is None and stage in _NOT_OVERLOOKED else found


def _common_block(a: Side, b: Side) -> int:
    """A number of steps that make up for each other in both runs."""
    lengths = [block_length(m.wall) for side in (a, b) for m in side.members if m.wall.size]
    common = math.lcm(*lengths) if lengths else 1
    fewest = min((m.wall.size for side in (a, b) for m in side.members), default=0)
    return common if fewest // common >= FEWEST_STEPS else max(lengths, default=1)


def _middle(x: Floats) -> float:
    return float(np.median(x)) if x.size else 0.0


def _in_bursts(side: Side, x: Floats, block: int) -> bool:
    """Whether a stage takes its time in a few steps only, and not at the loader's own rhythm."""
    if x.size < FEWEST_STEPS * block:
        return False
    x = blocks(x, block)
    mean = float(np.sort(x)[: -max(1, x.size // 100)].mean())  # an outlier or two is not a burst
    return mean > _BURST * _middle(x) and mean >= LEAST_MOVE * float(np.median(side.wall))


def _change(
    center: Callable[[Floats], Center],
    a: tuple[Side, Floats],
    b: tuple[Side, Floats],
    block: int,
    alpha: float,
) -> Change:
    parts = [[blocks(x, block) for x in side.apart(series)] for side, series in (a, b)]
    few = any(p.size < FEWEST_STEPS for ps in parts for p in ps)
    if few:
        values = [float(np.median(series)) if series.size else 0.0 for _, series in (a, b)]
        return change_of(None, None, (values[0], values[1]), alpha)
    centers = [[center(p) for p in ps] for ps in parts]
    x, y = _joined(centers)
    return change_of(x, y, (x.value, y.value), alpha)


def _joined(sides: list[list[Center]]) -> tuple[Center, Center]:
    """One center a side; the spread between runs, relative to their size, is taken from both sides."""
    if all(len(s) == 1 for s in sides):
        return sides[0][0], sides[1][0]
    freedom = sum(len(s) - 1 for s in sides)
    squares = 0.0
    for centers in sides:
        middle = sum(c.value for c in centers) / len(centers)
        if middle > 0:
            squares += sum((c.value / middle - 1) ** 2 for c in centers)
    relative = squares / freedom
    first, second = (
        of_runs(s, relative * (sum(c.value for c in s) / len(s)) ** 2, freedom / 2) for s in sides
    )
    return first, second


def _whole_run(a: Side, b: Side) -> tuple[RunPart | None, dict[str, RunPart]]:
    """What the runs do outside their steps: an evaluation more often, a checkpoint between epochs."""
    first, second = _outside(a), _outside(b)
    if first is None or second is None:
        return None, {}
    wholes = [sum(s.values()) for s in (first, second)]
    least = min(wholes)
    parts = {}
    for part in PARTS:
        x, y = first[part], second[part]
        moved = abs(y - x)
        if x or y:
            parts[part] = RunPart(x, y, moved >= _PART_MOVE * least and moved >= _PART_CHANGE * max(x, y))
    return RunPart(wholes[0], wholes[1], any(p.changed for p in parts.values())), parts


def _outside(side: Side) -> dict[str, float] | None:
    """Seconds per step of each part of the run but its start-up, averaged over the runs of a side."""
    each = []
    for member in side.members:
        seconds = {p: (member.told.get(p) or {}).get("seconds") for p in ("steady", *PARTS)}
        if not member.all_steps or any(v is None for v in seconds.values()):
            return None
        each.append({p: float(v) / member.all_steps for p, v in seconds.items() if v is not None})
    return {p: sum(e[p] for e in each) / len(each) for p in each[0]} if each else None


def _device_busy(side: Side) -> Floats:
    """The longest busy time of all ranks' devices, per step, without the first step."""
    longest: dict[int, float] = {}
    for row in (side.told.get("device") or {}).get("steps", []):
        step = row["step"]
        longest[step] = max(longest.get(step, 0.0), row["busy_s"])
    return np.array([longest[s] for s in sorted(longest)][1:], float)
