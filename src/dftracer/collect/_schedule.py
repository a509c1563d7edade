"""Which phase of which window a step belongs to; the numbers mean what they do in torch.profiler.schedule."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OFF", "Place", "Schedule"]


@dataclass(frozen=True)
class Place:
    """Where a step lies: `wait`, `warmup`, `active` or, after the last window, `done`."""

    phase: str
    window: int
    last: bool = False  # of the active steps of its window


OFF = Place("done", -1)


class Schedule:
    """`skip_first` steps, then `repeat` cycles (0: forever) of wait, warmup and active steps."""

    def __init__(self, wait: int, warmup: int, active: int, repeat: int, skip_first: int) -> None:
        self._wait, self._warmup, self._active = wait, warmup, active
        self._repeat, self._skip = repeat, skip_first

    def at(self, step: int) -> Place:
        """The place of a step, counted from 0."""
        if step < self._skip:
            return Place("wait", 0)
        cycle = self._wait + self._warmup + self._active
        window, within = divmod(step - self._skip, cycle)
        if self._repeat and window >= self._repeat:
            return OFF
        if within < self._wait:
            return Place("wait", window)
        if within < self._wait + self._warmup:
            return Place("warmup", window)
        return Place("active", window, within == cycle - 1)
