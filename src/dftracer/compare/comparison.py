"""Two runs side by side: what changed by more than their own steps vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer.analyze.stages import STAGES
from dftracer.compare.figures import Figure, device_figures, findings_change, io_figures, throughput_figures
from dftracer.compare.side import Side
from dftracer.compare.statistics import FEWEST_STEPS, Center, Change, Floats, change_of, mean_of, median_of

__all__ = ["FALSE_ALARMS", "LEAST_MOVE", "Comparison", "compare", "compare_all"]

FALSE_ALARMS = 0.05  # of whole comparisons of equal runs
LEAST_MOVE = 0.01  # of the step: a smaller change is not worth mentioning
_BURST = 2.0  # a mean this many times the median: the stage takes its time in only a few of the steps


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
    def step_changed(self) -> bool:
        return self.step.told and abs(self.step.difference) >= LEAST_MOVE * self.step.a

    @property
    def difference(self) -> bool:
        return bool(self.step_changed or self.changed or self.changed_in_bursts)

    def moves(self, stage: str) -> float:
        """The change of a stage as a share of a's step."""
        return self.stages[stage].difference / self.step.a if self.step.a > 0 else 0.0


def compare_all(sides: list[Side]) -> list[Comparison]:
    """Every run against the first; together they raise no more false alarms than a single comparison may."""
    return [compare(sides[0], other, FALSE_ALARMS / (len(sides) - 1)) for other in sides[1:]]


def compare(a: Side, b: Side, alpha: float = FALSE_ALARMS) -> Comparison:
    """`alpha` is the share of false alarms over all stages together."""
    names = [s for s in (*STAGES, *_others(a, b)) if s in a.stages or s in b.stages]
    unseen = {s: side.name for s in names for side in (a, b) if side.stage(s) is None}
    pairs = {s: (x, y) for s in names if (x := a.stage(s)) is not None and (y := b.stage(s)) is not None}
    step = _middle(a.wall), _middle(b.wall)
    bursty = [s for s, (x, y) in pairs.items() if _in_bursts(x, a.wall) or _in_bursts(y, b.wall)]
    # Only stages long enough to change the step can raise an alarm.
    long = [s for s, p in pairs.items() if max(map(_middle, p)) >= LEAST_MOVE * step[0]]
    each = alpha / (1 + len(long) + len(bursty) + (1 if bursty else 0))
    busy = _device_busy(a), _device_busy(b)
    return Comparison(
        a,
        b,
        _median_change(a.wall, b.wall, each),
        {s: _median_change(x, y, each) for s, (x, y) in pairs.items()},
        {s: _mean_change(*pairs[s], each) for s in bursty},
        _mean_change(a.wall, b.wall, each),
        _median_change(*busy, each) if busy[0].size and busy[1].size else None,
        unseen,
        device_figures(a.told, b.told),
        io_figures(a, b),
        throughput_figures(a.told, b.told),
        findings_change(a.told, b.told),
    )


def _others(a: Side, b: Side) -> list[str]:
    """Stages of a later version, in the order in which they appear."""
    return [s for s in dict.fromkeys([*a.stages, *b.stages]) if s not in STAGES]


def _middle(x: Floats) -> float:
    return float(np.median(x)) if x.size else 0.0


def _in_bursts(x: Floats, wall: Floats) -> bool:
    if x.size < FEWEST_STEPS:
        return False
    mean = float(np.sort(x)[: -max(1, x.size // 100)].mean())  # an outlier or two is not a burst
    return mean > _BURST * _middle(x) and mean >= LEAST_MOVE * float(np.median(wall))


def _median_change(x: Floats, y: Floats, alpha: float) -> Change:
    return _change(median_of, (_middle(x), _middle(y)), x, y, alpha)


def _mean_change(x: Floats, y: Floats, alpha: float) -> Change:
    values = (float(x.mean()) if x.size else 0.0, float(y.mean()) if y.size else 0.0)
    return _change(mean_of, values, x, y, alpha)


def _change(
    center: Callable[[Floats], Center], values: tuple[float, float], x: Floats, y: Floats, alpha: float
) -> Change:
    if min(x.size, y.size) < FEWEST_STEPS:
        return change_of(None, None, values, alpha)
    return change_of(center(x), center(y), values, alpha)


def _device_busy(side: Side) -> Floats:
    """The longest busy time of all ranks' devices, per step, without the first step."""
    longest: dict[int, float] = {}
    for row in (side.told.get("device") or {}).get("steps", []):
        step = row["step"]
        longest[step] = max(longest.get(step, 0.0), row["busy_s"])
    return np.array([longest[s] for s in sorted(longest)][1:], float)
