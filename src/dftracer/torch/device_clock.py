"""Device time on the trace's clock, without ever waiting for the device.

CUDA only reports how far apart two events are. The position of the first one on the host's clock follows from
what is known about every later one: the device cannot pass an event before the host records it, and has
passed it by the time the host learns so. The two bounds narrow down the moment; the gap between them is the
error.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["DeviceClock"]

# `elapsed_time` is a 32-bit float of ms: 0.12 us fine up to here, 0.25 ms coarse after an hour.
_REANCHOR_NS = 2_000_000_000
_DRIFT = 20e-6  # how far two clocks may drift apart, allowed for each time the anchor moves


class DeviceClock:
    """The clock of one device. Times are ns of the trace's clock."""

    __slots__ = ("high", "likely", "low", "reference")

    def __init__(self, reference: Any, recorded_ns: int, seen_ns: int) -> None:
        self.reference = reference
        self.low = self.likely = recorded_ns
        self.high = seen_ns

    @property
    def error_ns(self) -> int:
        """The distance between the bounds: the true time is no further than this from what `passed` says."""
        return self.high - self.low

    def passed(self, event: Any, recorded_ns: int, seen_ns: int) -> tuple[int, Any]:
        """When the device passed `event`, and a reference that is no longer needed (or None).

        `recorded_ns` is before the host recorded the event, `seen_ns` after it was told that it is done.
        """
        away = int(self.reference.elapsed_time(event) * 1e6)
        earliest, latest = recorded_ns - away, seen_ns - away
        if earliest > self.high or latest < self.low:  # the clocks have drifted apart: the newest is right
            self.low, self.high = earliest, latest
        else:
            self.low, self.high = max(self.low, earliest), min(self.high, latest)
        self.likely = min(max(self.likely, self.low), self.high)
        when = self.likely + away
        if away < _REANCHOR_NS:
            return when, None
        slack = int(away * _DRIFT) + 1000
        self.low, self.likely, self.high = self.low + away - slack, when, self.high + away + slack
        old, self.reference = self.reference, event
        return when, old
