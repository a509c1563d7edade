"""Facts of a window that no single activity carries: length, steps, memory and device time of operators."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import accumulate
from typing import Any

from dftracer.python.torch._source import DEVICE_TYPES, INSTANT_TYPES, OPERATOR_TYPES, WORK_TYPES, Source

__all__ = ["DeviceTime", "MemoryByThread", "Steps", "ThreadMemory", "window_bounds"]

# Moments of changes, and the sums of host and device bytes before each of them and after the last.
ThreadMemory = tuple["array[int]", "array[int]", "array[int]"]


def window_bounds(source: Source, trace_start_ns: int) -> tuple[int, int]:
    """Start and end of the recorded window."""
    first = min(source.starts)
    end = max(map(int.__add__, source.starts, source.durations))
    return (trace_start_ns if 0 < trace_start_ns <= first else first), end


class Steps:
    """Which `ProfilerStep#N` a moment lies in."""

    def __init__(self, source: Source) -> None:
        found: list[tuple[int, int, int]] = []
        for index, kind in enumerate(source.types if "user_annotation" in source.kinds else ()):
            if kind == "user_annotation":
                name = source.name(index)
                if name.startswith("ProfilerStep#") and name[13:].isdigit():
                    start = source.starts[index]
                    found.append((start, start + source.durations[index], int(name[13:])))
        found.sort()
        self._starts = array("q", (start for start, _, _ in found))
        self._ends = array("q", (end for _, end, _ in found))
        self._numbers = array("q", (number for _, _, number in found))

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def columns(self) -> tuple[array[int], array[int], array[int]]:
        """Starts, ends and numbers, by start."""
        return self._starts, self._ends, self._numbers

    def at(self, moment: int) -> int | None:
        """The step at `moment`, None between and outside steps."""
        index = bisect_right(self._starts, moment) - 1
        if index < 0 or moment > self._ends[index]:
            return None
        return self._numbers[index]


class MemoryByThread:
    """Bytes allocated minus freed on each thread, on the host and on devices, summed up in time."""

    def __init__(self, source: Source) -> None:
        changes: dict[int, list[tuple[int, int, bool]]] = {}
        if not source.kinds.isdisjoint(INSTANT_TYPES):
            indices = [index for index, kind in enumerate(source.types) if kind in INSTANT_TYPES]
            for index, tid, name, size, on_device in source.instants(indices):
                if name == "[memory]":
                    changes.setdefault(tid, []).append((source.starts[index], size, on_device))
        self.threads: dict[int, ThreadMemory] = {}
        for tid, rows in changes.items():
            rows.sort()
            self.threads[tid] = (
                array("q", (moment for moment, _, _ in rows)),
                array("q", [0, *accumulate(0 if on_device else size for _, size, on_device in rows)]),
                array("q", [0, *accumulate(size if on_device else 0 for _, size, on_device in rows)]),
            )


class DeviceTime:
    """Time on devices caused by each operator and all it calls, and the operators by their ids."""

    def __init__(self, source: Source) -> None:
        self.total: dict[int, int] = {}
        self.operators: dict[int, int] = {}
        self.present = not source.kinds.isdisjoint(DEVICE_TYPES)
        if self.present:
            self._collect(source)

    def _collect(self, source: Source) -> None:
        count = len(source.types)
        correlations = source.correlations(0, count)
        indices = [index for index, kind in enumerate(source.types) if kind in OPERATOR_TYPES]
        self.operators = {correlations[index]: index for index in indices if correlations[index]}
        own: dict[int, int] = {}
        linked = source.linked(0, count)
        for index, kind in enumerate(source.types):
            if kind in WORK_TYPES:
                operator = self.operators.get(linked[index])
                if operator is not None:
                    own[operator] = own.get(operator, 0) + source.durations[index]
        self.total = _add_to_parents(source, indices, own)


def _add_to_parents(source: Source, indices: list[int], own: dict[int, int]) -> dict[int, int]:
    tids = array("q", source.tids(0, len(source.types)))
    starts, durations = source.starts, source.durations
    order = sorted(indices, key=lambda index: (tids[index], starts[index], -durations[index]))
    parents: dict[int, int] = {}
    stack: list[int] = []
    thread: Any = None
    for index in order:
        if tids[index] != thread:
            thread = tids[index]
            stack.clear()
        while stack and starts[stack[-1]] + durations[stack[-1]] <= starts[index]:
            stack.pop()
        if stack:
            parents[index] = stack[-1]
        stack.append(index)
    total = dict(own)
    for index in reversed(order):
        time = total.get(index)
        parent = parents.get(index)
        if time and parent is not None:
            total[parent] = total.get(parent, 0) + time
    return total
