"""What collecting costs the training, beside what its steps take."""

from __future__ import annotations

import statistics
from typing import Any

__all__ = ["Costs"]

_KEPT_STEPS = 10_000


class Costs:
    """Seconds by what they were spent on, and the duration of steps by phase."""

    def __init__(self) -> None:
        names = ("start_s", "stop_s", "export_s", "step_s", "finish_s", "finish_cpu_s")
        self._spent = dict.fromkeys(names, 0.0)
        self._step_ns: dict[str, list[int]] = {}

    def add(self, name: str, seconds: float) -> None:
        """Seconds spent once more."""
        self._spent[name] += seconds

    def step(self, phase: str, ns: int) -> None:
        """A step of the loop took this long."""
        times = self._step_ns.setdefault(phase, [])
        if len(times) < _KEPT_STEPS:
            times.append(ns)

    def told(self) -> dict[str, Any]:
        """For the manifest."""
        medians = {phase: statistics.median(times) / 1e9 for phase, times in self._step_ns.items()}
        return {**{k: round(v, 6) for k, v in self._spent.items()}, "median_step_s": medians}
