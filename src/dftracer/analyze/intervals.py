"""Sets of time as sorted, disjoint intervals: union, intersection, difference, and shares of windows.

An interval set is a pair of int64 arrays (start, end). Everything is a sort and a sweep, so a million
intervals take a fraction of a second, and nothing is ever counted twice. Intervals may have a key each, such
as the stage in the timeline of a thread.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dftracer.load._scan import nest
from dftracer.load.chunk import Ints, int64s

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Intervals: TypeAlias = tuple[Ints, Ints]
EMPTY: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """The disjoint intervals that cover the same time as the given ones."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    del keep
    if start.size == 0:
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    new = np.empty(start.size, dtype=bool)
    new[0] = True
    np.greater(start[1:], reach[:-1], out=new[1:])
    start = start[new]
    # An interval ends where the next begins: the last row of each is the one before a first.
    new[:-1] = new[1:]
    new[-1] = True
    return start, reach[new]


def union_of(*sets: Intervals) -> Intervals:
    """The time in any of them."""
    if not sets:
        return EMPTY
    return union(np.concatenate([s[0] for s in sets]), np.concatenate([s[1] for s in sets]))


def total(a: Intervals) -> int:
    """The time covered."""
    return int((a[1] - a[0]).sum())


def _covered_until(a: Intervals, t: Ints) -> Ints:
    """How much of `a` lies before each time of `t`."""
    if a[0].size == 0:
        return np.zeros(t.shape, dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(a[1] - a[0])))
    i = np.searchsorted(a[0], t, side="right") - 1
    inside = np.minimum(t, a[1][np.maximum(i, 0)]) - a[0][np.maximum(i, 0)]
    result: Ints = np.where(i < 0, 0, before[np.maximum(i, 0)] + inside)
    return result


def measure(a: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of `a` lies in each window [start, end)."""
    return _covered_until(a, end) - _covered_until(a, start)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The time in both."""
    start, end, _ = pieces(a, b)
    return start, end


def pieces(windows: Intervals, a: Intervals) -> tuple[Ints, Ints, Ints]:
    """The parts of `a` that lie in the windows, and which interval each piece comes from."""
    if a[0].size == 0 or windows[0].size == 0:
        return *EMPTY, EMPTY[0]
    # Each overlapping pair is found from the window's side: a[lo:hi] are the intervals it overlaps.
    lo = np.searchsorted(a[1], windows[0], side="right")
    hi = np.searchsorted(a[0], windows[1], side="left")
    n = np.maximum(hi - lo, 0)
    if n.sum() == 0:
        return *EMPTY, EMPTY[0]
    window = np.repeat(np.arange(windows[0].size), n)
    offset = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    which = np.repeat(lo, n) + offset
    return np.maximum(windows[0][window], a[0][which]), np.minimum(windows[1][window], a[1][which]), which


def difference(a: Intervals, b: Intervals) -> Intervals:
    """The time in `a` and not in `b`."""
    if a[0].size == 0 or b[0].size == 0:
        return a
    lowest = min(int(a[0][0]), int(b[0][0])) - 1
    highest = max(int(a[1][-1]), int(b[1][-1])) + 1
    outside = np.concatenate(([lowest], b[1])), np.concatenate((b[0], [highest]))
    return intersection(a, outside)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of `a` in [start, end)."""
    return intersection(a, (np.array([start]), np.array([end])))


def account(
    start: Ints, end: Ints, key: npt.NDArray[np.integer[Any]], keys: int, window_start: Ints, window_end: Ints
) -> Ints:
    """For disjoint keyed intervals: how much of each key lies in each window, as [window, key]."""
    out = np.zeros((window_start.size, keys), dtype=np.int64)
    present = np.zeros(keys, dtype=bool)
    present[key] = True
    for k in np.flatnonzero(present).tolist():
        mine = key == k
        out[:, k] = measure((start[mine], end[mine]), window_start, window_end)
    return out


def key_at(start: Ints, end: Ints, key: npt.NDArray[np.integer[Any]], times: Ints, otherwise: int) -> Ints:
    """For disjoint keyed intervals: the key of the one around each time."""
    if start.size == 0:
        return np.full(times.size, otherwise, np.int64)
    i = np.searchsorted(start, times, side="right") - 1
    inside = (i >= 0) & (times < end[np.maximum(i, 0)])
    return np.where(inside, key[np.maximum(i, 0)], otherwise).astype(np.int64)


def innermost(start: npt.NDArray[Any], end: npt.NDArray[Any], times: npt.NDArray[Any]) -> Ints:
    """For nested spans in order of their start: the innermost one around each time, -1 if there is none."""
    start, end = np.ascontiguousarray(start, np.int64), np.ascontiguousarray(end, np.int64)
    if start.size == 0:
        return np.full(len(times), -1, np.int64)
    parent = int64s(nest(np.zeros_like(start), start, end - start)[0])
    at: Ints = np.searchsorted(start, times, side="right").astype(np.int64) - 1
    while True:
        over = (at >= 0) & (end[np.maximum(at, 0)] <= times)
        if not over.any():
            return at
        at[over] = parent[at[over]]
