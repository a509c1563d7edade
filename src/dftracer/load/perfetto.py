"""What every Chrome/Perfetto file of ours has: lanes without crossing spans, small ids, names, arrows.

Viewers draw the spans of a lane nested and silently hide those that cross. They also truncate process and
thread ids to 32 bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK = 1 << 16
_LARGEST_ID = 1 << 31

Row = dict[str, Any]


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


class TrackIds:
    """A unique 32-bit id for each key, counted from `first`; the wished one, if it is still free."""

    def __init__(self, first: int = 1) -> None:
        self._ids: dict[Hashable, int] = {}
        self._taken: set[int] = {0}
        self._next = first

    def get(self, key: Hashable, wish: int | None = None) -> int:
        found = self._ids.get(key)
        if found is not None:
            return found
        if wish is None or not 0 < wish < _LARGEST_ID or wish in self._taken:
            while self._next in self._taken:
                self._next += 1
            wish = self._next
        self._taken.add(wish)
        self._ids[key] = wish
        return wish


def process_names(pid: int, name: str, sort_index: int | None = None) -> list[Row]:
    """The name of a process, and its place among the others."""
    rows = [_metadata("process_name", pid, 0, {"name": name})]
    if sort_index is not None:
        rows.append(_metadata("process_sort_index", pid, 0, {"sort_index": sort_index}))
    return rows


def thread_name(pid: int, tid: int, name: str) -> Row:
    return _metadata("thread_name", pid, tid, {"name": name})


def _metadata(kind: str, pid: int, tid: int, args: Row) -> Row:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def arrow_phase(turn: int, turns: int) -> str:
    """The phase of one of the ends of an arrow, in the order in which it visits them."""
    return "s" if turn == 0 else "f" if turn == turns - 1 else "t"
