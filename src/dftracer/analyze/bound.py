"""What the run is bound by: the part that wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dftracer.analyze.device_bound import exact_device
from dftracer.analyze.parts import Part, View, candidates, repeats
from dftracer.analyze.thresholds import (
    BOUND_SHARE,
    COMPUTE_ALONE,
    FEW_STEPS,
    MAJORITY,
    MENTION_SHARE,
    SHORT_RUN,
)

__all__ = ["Bound", "find_bound"]


@dataclass(frozen=True)
class Bound:
    """The winner, and the others worth mentioning."""

    part: Part
    beside: tuple[Part, ...]
    compute_share: float  # all of compute, of the steady steps
    steady_steps: int

    @property
    def alone(self) -> bool:
        """Compute takes nearly all of the run: nothing else is worth mentioning."""
        # Start-up is not a bottleneck of the steady steps, however long it is.
        others = any(not p.is_compute and p.id != "startup" for p in self.beside)
        return self.part.is_compute and self.compute_share >= COMPUTE_ALONE and not others

    def to_json(self) -> dict[str, Any]:
        p = self.part
        return {
            "id": p.id,
            "stage": p.stage,
            "rank": p.rank,
            "share": round(p.share, 4),
            "seconds": round(p.seconds, 6),
        }


def _may_win(v: View, p: Part) -> bool:
    """What cannot be seen is the answer only if it is most of the time.

    Start-up that happens once is the answer only in a short run.
    """
    if p.id == "startup":
        return len(v.rank.main.steps) < SHORT_RUN or repeats(v.rank)
    return p.id != "unseen" or p.share > MAJORITY


def find_bound(v: View | None) -> Bound | None:
    """None if there are too few steps to judge; a profiler's account of the device is exact with any."""
    if v is None or (len(v.rank.main.steps) < FEW_STEPS and not exact_device(v.rank)):
        return None
    parts = candidates(v)
    able = [p for p in parts if _may_win(v, p)]
    # A straggler competes only if it is the largest loss of the other ranks.
    first = next((p for p in able if p.id == "straggler"), able[0])
    if first.id == "straggler" and any(p.of_run and p.seconds > first.seconds for p in able):
        first = able[0]
    if first.is_compute:
        first = next((p for p in able if not p.is_compute and p.share >= BOUND_SHARE), first)
    beside = tuple(p for p in parts if p is not first and p.share >= MENTION_SHARE)
    return Bound(first, beside, v.share(v.compute_s), int(v.rank.main.steps.steady.sum()))
