"""What is known about a step while it is in progress."""

from __future__ import annotations

from dftracer._core import StepFields
from dftracer.auto._passes import Pass

__all__ = ["Step"]


class Step(StepFields):
    """A step in progress."""

    __slots__ = ()
    passes: list[Pass]
    next_fetch: tuple[int, int, Pass] | None

    def __init__(self, start: int, body: int, of: Pass | None) -> None:
        self.start = start
        self.body = body
        self.passes = [] if of is None else [of]
        self.backward = False
        self.stepped = False
        self.stepped_by = {}  # optimizer -> how many backwards there had been
        self.last_end = 0  # of its latest optimizer step
        # The first fetch from a loader of which it is not known yet whether it trains: start, end, pass.
        self.next_fetch = None

    @property
    def opener(self) -> Pass | None:
        """The pass whose batch began it."""
        return self.passes[0] if self.passes else None
