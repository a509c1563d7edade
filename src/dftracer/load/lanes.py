"""Lanes of a thread on which no span crosses another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["assign_lanes"]

_BLOCK = 1 << 16


def assign_lanes(tid: Any, ts: Any, dur: Any) -> npt.NDArray[np.uint32]:
    """For each span the lane of its thread (0 is the first) on which it nests cleanly."""
    order = np.lexsort((-dur, ts, tid))
    lanes = np.zeros(order.size, np.uint32)
    open_ends: list[list[int]] = []
    last_tid: int | None = None
    for block in range(0, order.size, _BLOCK):
        rows = order[block : block + _BLOCK]
        columns = (tid[rows].tolist(), ts[rows].tolist(), (ts[rows] + dur[rows]).tolist())
        for i, t, start, end in zip(rows.tolist(), *columns, strict=True):
            if t != last_tid:
                open_ends, last_tid = [], t
            for number in range(len(open_ends) + 1):
                if number == len(open_ends):
                    open_ends.append([])
                stack = open_ends[number]
                while stack and stack[-1] <= start:
                    stack.pop()
                if not stack or end <= stack[-1]:
                    stack.append(end)
                    if number:
                        lanes[i] = number
                    break
    return lanes
