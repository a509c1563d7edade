"""Sets of time as sorted, disjoint intervals: union, intersection, difference, and shares of windows.

An interval set is a pair of int64 arrays (start, end). Everything is one sweep in native code, so a million
intervals take milliseconds, and nothing is ever counted twice. Intervals may have a key each, such
as the stage in the timeline of a thread.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dftracer.load import _scan
from dftracer.load.chunk import Ints, int64s

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Intervals: TypeAlias = tuple[Ints, Ints]
EMPTY: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Ints, end: Ints) -> Intervals:
    """The disjoint intervals that cover the same time as the given ones."""
    if start.size == 0:
        return EMPTY
    first, last = _scan.union(_plain(start), _plain(end))
    return int64s(first), int64s(last)


def union_of_keys(start: Ints, end: Ints, key: npt.NDArray[np.uint8], wanted: Bools) -> Intervals:
    """The same for those of the intervals whose key is wanted."""
    table = np.zeros(256, dtype=np.uint8)
    table[: wanted.size] = wanted
    first, last = _scan.union(_plain(start), _plain(end), np.ascontiguousarray(key), table)
    return int64s(first), int64s(last)


def _plain(times: Ints) -> Ints:
    """As native code reads them."""
    return np.ascontiguousarray(times, dtype=np.int64)


def union_of(*sets: Intervals) -> Intervals:
    """The time in any of them."""
    if not sets:
        return EMPTY
    return union(np.concatenate([s[0] for s in sets]), np.concatenate([s[1] for s in sets]))


def total(a: Intervals) -> int:
    """The time covered."""
    return int((a[1] - a[0]).sum())


def measure(a: Intervals, start: Ints, end: Ints) -> Ints:
    """How much of `a` lies in each window [start, end)."""
    if a[0].size == 0:
        return np.zeros(start.shape, dtype=np.int64)
    first, last = _plain(a[0]), _plain(a[1])
    until, since = (int64s(_scan.covered_until(first, last, _plain(times))) for times in (end, start))
    result: Ints = until - since
    return result


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """The time in both."""
    start, end, _ = pieces(a, b)
    return start, end


def pieces(windows: Intervals, a: Intervals) -> tuple[Ints, Ints, Ints]:
    """The parts of `a` that lie in the windows, and which interval each piece comes from."""
    if a[0].size == 0 or windows[0].size == 0:
        return *EMPTY, EMPTY[0]
    found = _scan.pieces(*map(_plain, (*windows, *a)))
    start, end, which = map(int64s, found)
    return start, end, which


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
    if start.size == 0 or window_start.size == 0:
        return np.zeros((window_start.size, keys), dtype=np.int64)
    order: Any = slice(None)
    if (window_start[1:] < window_start[:-1]).any():
        order = np.argsort(window_start, kind="stable")
    windows = _plain(window_start[order]), _plain(window_end[order])
    key = np.ascontiguousarray(key, dtype=np.uint8)
    found = int64s(_scan.account(_plain(start), _plain(end), key, keys, *windows))
    out = np.empty((window_start.size, keys), dtype=np.int64)
    out[order] = found.reshape(-1, keys)
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
    parent = int64s(_scan.nest(np.zeros_like(start), start, end - start)[0])
    at: Ints = np.searchsorted(start, times, side="right").astype(np.int64) - 1
    while True:
        over = (at >= 0) & (end[np.maximum(at, 0)] <= times)
        if not over.any():
            return at
        at[over] = parent[at[over]]
