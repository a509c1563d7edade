"""A profiler window becomes events of the trace: category `PP`, the trace's clock, real lanes."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any

from dftracer import _core
from dftracer.python.torch._attribution import DeviceTime, MemoryByThread, Steps, ThreadMemory, window_bounds
from dftracer.python.torch._details import args_text
from dftracer.python.torch._source import DEVICE_TYPES, INSTANT_TYPES, Source, open_source

__all__ = ["CATEGORY", "clock_offset_ns", "device_lane", "write_window"]

CATEGORY = "PP"
_CHUNK = 2048
# Above every thread id Linux hands out (2**22), so that a stream never shares a lane with a thread.
_LANE_BASE = 1 << 24
_HOST_LAUNCH_TYPES = frozenset({"cuda_runtime", "cuda_driver", "privateuse1_runtime", "privateuse1_driver"})

# The recorder makes the args of these itself, given Kineto's text.
_NATIVE_TYPES = frozenset({"cpu_op", "user_annotation", "python_function"})
_Numbers = tuple["dict[int, ThreadMemory]", "array[int] | None", "array[int] | None"]


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


def write_window(results: Any, with_flops: bool, pause: Callable[[], None]) -> int:
    """Write every activity of `results`; `pause` is called now and then to let other threads run."""
    source = open_source(results, with_flops)
    if source is None:
        return 0
    window = _Window(source, int(results.trace_start_ns()), with_flops)
    count = len(source.activities)
    for low in range(0, count, _CHUNK):
        window.write(low, min(low + _CHUNK, count))
        pause()
    window.name_lanes()
    return count


class _Window:
    def __init__(self, source: Source, trace_start_ns: int, with_flops: bool) -> None:
        self._source = source
        self._with_flops = with_flops
        self._offset = clock_offset_ns()
        start, end = window_bounds(source, trace_start_ns)
        self._window_ns = max(end - start, 1)
        self._percent = 100.0 / self._window_ns
        self._steps = Steps(source)
        self._memory = MemoryByThread(source)
        self._device_time = DeviceTime(source)
        self._lanes: dict[int, str] = {}
        self._mixed = bool(source.kinds - _NATIVE_TYPES - INSTANT_TYPES)

    def write(self, low: int, high: int) -> None:
        """Write the activities `low` to `high`; the recorder itself makes the args of operators."""
        source = self._source
        names = source.names(low, high)
        tids = source.tids(low, high)
        kinds = source.types[low:high]
        correlations = source.correlations(low, high)
        raws = source.raw_details(low, high)
        ready = self._ready(low, high, names, tids, correlations, raws) if self._mixed else None
        _core.log_profiler_rows(
            CATEGORY,
            names,
            source.starts,
            source.durations,
            tids,
            correlations,
            kinds,
            raws,
            ready,
            self._numbers(low, high, correlations),
            self._steps.columns,
            source.details.known,
            source.details.learn,
            low,
            self._offset,
            self._window_ns,
        )

    def _numbers(self, low: int, high: int, correlations: list[int]) -> _Numbers:
        """Memory by thread, device time and flops of operators, as far as there are any."""
        device_ns = flops = None
        if self._device_time.present:
            total = self._device_time.total
            device_ns = array("q", (total.get(index, 0) for index in range(low, high)))
        if self._with_flops:
            flops = array("q", map(self._source.flops, correlations))
        return self._memory.threads, device_ns, flops

    def _ready(
        self, low: int, high: int, names: list[str], tids: list[int], correlations: list[int], raws: list[Any]
    ) -> list[str | None]:
        """Args of the rows that the recorder does not make itself; moves device rows to their lanes."""
        source = self._source
        has_devices = self._device_time.present
        linked = source.linked(low, high) if has_devices else [0] * (high - low)
        devices = source.devices(low, high) if has_devices else [0] * (high - low)
        ready: list[str | None] = [None] * (high - low)
        for at in range(high - low):
            index = low + at
            kind = source.types[index]
            if kind in _NATIVE_TYPES or names[at] == "[memory]":
                continue
            if kind in DEVICE_TYPES:
                args, tids[at] = self._on_device(
                    index, devices[at], tids[at], linked[at], correlations[at], raws[at]
                )
            elif kind in _HOST_LAUNCH_TYPES:
                args = self._launch(index, linked[at], correlations[at], raws[at])
            else:
                continue
            args["type"] = kind
            ready[at] = args_text(args)
        return ready

    def _on_device(
        self, index: int, device: int, stream: int, linked: int, correlation: int, raw: Any
    ) -> tuple[dict[str, Any], int]:
        source = self._source
        start = source.starts[index]
        duration = source.durations[index]
        args: dict[str, Any] = {
            "device": 1,
            "cpu_memory": 0,
            "is_remote": 0,
            "device_memory_usage": 0,
            "input_size": 0,
            "total_cpu_percent": 0.0,
            "total_device_percent": round(duration * self._percent, 4),
            "dur_ns": duration,
            "device_index": device,
            "stream": stream,
        }
        if correlation:
            args["correlation"] = correlation
        args.update(source.device(raw))
        launched = self._add_operator(args, linked)
        self._add_step(args, start if launched is None else launched)
        lane = device_lane(device, stream)
        if lane not in self._lanes:
            self._lanes[lane] = f"GPU {device} stream {stream}"
        return args, lane

    def _launch(self, index: int, linked: int, correlation: int, raw: Any) -> dict[str, Any]:
        source = self._source
        start = source.starts[index]
        duration = source.durations[index]
        args: dict[str, Any] = {
            "device": 0,
            "cpu_memory": 0,
            "is_remote": 0,
            "device_memory_usage": 0,
            "input_size": 0,
            "total_cpu_percent": round(duration * self._percent, 4),
            "total_device_percent": 0.0,
            "dur_ns": duration,
        }
        if correlation:
            args["correlation"] = correlation
        args.update(source.device(raw))
        self._add_operator(args, linked)
        self._add_step(args, start)
        return args

    def _add_operator(self, args: dict[str, Any], linked: int) -> int | None:
        """Name the operator that launched this activity; its start, if it is in the window."""
        if not linked:
            return None
        args["external_id"] = linked
        operator = self._device_time.operators.get(linked)
        if operator is None:
            return None
        args["op"] = self._source.name(operator)
        return int(self._source.starts[operator])

    def _add_step(self, args: dict[str, Any], moment: int) -> None:
        if self._steps:
            step = self._steps.at(moment)
            if step is not None:
                args["step"] = step

    def name_lanes(self) -> None:
        for lane, name in self._lanes.items():
            _core.log_metadata("CM", f"lane.{lane}", name)
