"""In which functions, and at which files, the host was while the device waited for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.device_rows import FUNCTION, HOST, LAUNCH, MODULE, DeviceRows
from dftracer.analyze.host_work import HostWork
from dftracer.analyze.intervals import Intervals
from dftracer.load._scan import nest
from dftracer.load.chunk import Ints, int64s

__all__ = ["functions_during", "innermost", "io_during"]

_MOST = 8


def functions_during(time: Intervals, rows: DeviceRows, work: HostWork, tid: int) -> dict[str, float]:
    """Seconds of `time` by the innermost operator, call or function around it; those with the most.

    `tid`: the thread that launches; 0 for all.
    """
    of_host = np.isin(rows.kind, (HOST, LAUNCH, MODULE, FUNCTION))
    steps = [i for i, n in enumerate(rows.names) if n.startswith("ProfilerStep")]
    on = np.flatnonzero(of_host & ~np.isin(rows.name, steps))
    mine = np.flatnonzero(work.io == 0)
    if tid:
        on = on[rows.tid[on] == tid]
        mine = mine[work.tid[mine] == tid]
    start = np.concatenate((rows.start[on], work.start[mine]))
    end = np.concatenate((rows.end[on], work.end[mine]))
    name = np.concatenate((rows.name[on], work.name[mine] + len(rows.names)))
    return _seconds(time, start, end, name, [*rows.names, *work.names])


def io_during(time: Intervals, work: HostWork, tid: int) -> dict[str, float]:
    """The same by the call that does I/O, with its file."""
    mine = np.flatnonzero((work.io == 1) & ((work.tid == tid) | (tid == 0)))
    return _seconds(time, work.start[mine], work.end[mine], work.name[mine], work.names)


def _seconds(time: Intervals, start: Ints, end: Ints, name: Ints, names: list[str]) -> dict[str, float]:
    if time[0].size == 0 or start.size == 0:
        return {}
    # Only spans that overlap the time matter, and between two of its edges nothing changes.
    at = np.searchsorted(time[0], end, side="left")
    inside = (at > 0) & (start < time[1][np.maximum(at, 1) - 1])
    start, end, name = start[inside], end[inside], name[inside]
    if start.size == 0:
        return {}
    order = np.lexsort((-end, start))
    start, end, name = start[order], end[order], name[order]
    edges = np.sort(np.concatenate((start, end, *time)))
    edges = edges[np.concatenate(([True], np.diff(edges) > 0))]
    middle = (edges[:-1] + edges[1:]) // 2
    gap = np.searchsorted(time[0], middle, side="right") - 1
    idle = (gap >= 0) & (middle < time[1][np.maximum(gap, 0)])
    inner = innermost(start, end, middle)
    told = idle & (inner >= 0)
    sums = np.bincount(name[inner[told]], weights=np.diff(edges)[told], minlength=len(names))
    most = sorted(np.flatnonzero(sums).tolist(), key=lambda n: (-sums[n], names[n]))[:_MOST]
    return {names[n]: float(sums[n]) / 1e9 for n in most}


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
