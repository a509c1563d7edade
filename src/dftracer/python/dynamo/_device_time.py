"""Time on a CUDA device, measured by events in the stream: nothing waits for the device."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

from dftracer import _core
from dftracer._before_finalize import before_finalize
from dftracer.python.torch._convert import device_lane

__all__ = ["DeviceClock", "DeviceSpan"]

_Finished = tuple[Any, Any, int, str, str, dict[str, Any]]


class DeviceSpan:
    """A stretch of the current stream, from `DeviceClock.start` to `stop`."""

    __slots__ = ("_clock", "_device", "_start")

    def __init__(self, clock: DeviceClock, device: int) -> None:
        self._clock = clock
        self._device = device
        self._start = torch.cuda.Event(enable_timing=True)
        self._start.record()

    def stop(self, name: str, category: str, args: dict[str, Any]) -> None:
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        self._clock.finish((self._start, end, self._device, name, category, args))


class DeviceClock:
    """Turns pairs of CUDA events into trace events once the device has passed them.

    One wait for the device, at the first use of each device, ties its clock to the trace's. Later events are measured from
    the latest one known: CUDA gives distances as 32-bit floats, which are exact only when short.
    """

    _anchors: dict[int, tuple[Any, int]] = {}  # noqa: RUF012 - shared on purpose, one clock per device
    _waiting: deque[_Finished] = deque()
    _lock = threading.Lock()
    _hooked = False

    def start(self) -> DeviceSpan:
        device = torch.cuda.current_device()
        if device not in self._anchors:
            self._tie(device)
        return DeviceSpan(self, device)

    @classmethod
    def _tie(cls, device: int) -> None:
        with cls._lock:
            anchor = torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(device)
            before = _core.time_ns()
            anchor.record()
            anchor.synchronize()
            cls._anchors[device] = (anchor, (before + _core.time_ns()) // 2)
            if not cls._hooked:
                cls._hooked = True
                before_finalize(cls.drain)

    @classmethod
    def finish(cls, span: _Finished) -> None:
        cls._waiting.append(span)
        cls._write(wait=False)

    @classmethod
    def drain(cls) -> None:
        """Wait for the device and write the rest; only at the end of the trace."""
        cls._write(wait=True)

    @classmethod
    def _write(cls, wait: bool) -> None:
        with cls._lock:
            while cls._waiting:
                start, end, device, name, category, args = cls._waiting[0]
                if wait:
                    end.synchronize()
                elif not end.query():
                    return
                cls._waiting.popleft()
                anchor, anchor_ns = cls._anchors[device]
                start_ns = anchor_ns + round(anchor.elapsed_time(start) * 1e6)
                duration = round(start.elapsed_time(end) * 1e6)
                cls._anchors[device] = (start, start_ns)
                _core.log_event(
                    name,
                    category,
                    start_ns,
                    duration,
                    {**args, "device_index": device, "dur_ns": duration},
                    device_lane(device, 0),
                )
