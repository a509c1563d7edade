"""A profiler window becomes events of the trace: category `PP`, the trace's clock, real lanes."""

from __future__ import annotations

import time
from typing import Any

from dftracer import _core
from dftracer.python.torch._getters import Recorded, open_window

__all__ = ["CATEGORY", "clock_offset_ns", "device_lane", "write_window"]

CATEGORY = "PP"
# Above every thread id Linux hands out (2**22), so that a stream never shares a lane with a thread.
_LANE_BASE = 1 << 24


def device_lane(device: int, stream: int) -> int:
    """The `tid` of a device's stream."""
    return (device + 1) * _LANE_BASE + (stream & (_LANE_BASE - 1))


def clock_offset_ns() -> int:
    """Trace clock minus system clock, with which Kineto stamps; it may have been slewed since the start."""
    best: tuple[int, int] | None = None
    for _ in range(5):
        before = _core.time_ns()
        system = time.time_ns()
        after = _core.time_ns()
        width = after - before
        if best is None or width < best[0]:
            best = (width, (before + after) // 2 - system)
    return best[1] if best else 0


def write_window(results: Any, recorded: Recorded, hurry: bytearray) -> int:
    """Write every activity of `results`; `hurry[0]` is 0 as long as the program may need the lock."""
    # torch creates an object for each activity in one go.
    _core.wait_for_turn(hurry)
    window = open_window(results, recorded)
    if window is None:
        return 0
    count = len(window.activities)
    lanes = _core.write_profiler_window(
        CATEGORY,
        window.activities,
        window.getters,
        window.flops,
        int(results.trace_start_ns()),
        clock_offset_ns(),
        hurry,
    )
    for lane, device, stream in lanes:
        _core.log_metadata("CM", f"lane.{lane}", f"GPU {device} stream {stream}")
    return count
