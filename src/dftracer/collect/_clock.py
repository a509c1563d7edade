"""Pairs of the wall clock and the monotonic clock, for laying traces of several processes side by side."""

from __future__ import annotations

import time
from typing import Any

__all__ = ["anchor"]

_TRIES = 8


def anchor() -> dict[str, Any]:
    """Epoch and CLOCK_MONOTONIC at one moment, and how far apart the two readings can be, in ns."""
    best: tuple[int, int, int] | None = None
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        epoch = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if best is None or after - before < best[0]:
            best = (after - before, epoch, (before + after) // 2)
    assert best is not None
    return {"epoch_us": best[1] / 1000, "epoch_ns": best[1], "monotonic_ns": best[2], "error_ns": best[0]}
