"""How the collection itself is doing: which parts have failed, and what it costs the training."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from typing import Any

from dftracer import _messages

# Failures -----------------------------------------------------------------------------------------


class Health:
    """Which parts have failed, and every warning of the run, for the manifest."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._off: set[str] = set()

    def warn(self, text: str) -> None:
        """Say something once on stderr and keep it for the report."""
        if text not in self.warnings:
            self.warnings.append(text)
            _messages.always(f"collect: {text}")

    def note(self, text: str) -> None:
        """Keep something for the report without a line on stderr."""
        if text not in self.warnings:
            self.warnings.append(text)

    def works(self, part: str) -> bool:
        """Whether this part has not failed yet."""
        return part not in self._off

    def fail(self, part: str, error: BaseException | str) -> None:
        """Switch a part off."""
        if part not in self._off:
            self._off.add(part)
            what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.warn(f"{part} is off from here on: {what}")

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """An error inside switches off `part` and nothing else."""
        try:
            yield
        except Exception as error:
            self.fail(part, error)


# Costs --------------------------------------------------------------------------------------------

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
