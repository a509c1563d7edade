"""Time on a CUDA device, measured by events in the stream: nothing waits for the device."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

from dftracer import _core
from dftracer._before_finalize import before_finalize
from dftracer.python.torch._convert import device_lane

__all__ = ["DeviceClock", "DeviceSpan", "device_clock"]

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

    Waiting for the device once, at its first use, aligns its clock with the trace's. Later events
    are measured from the latest one known: CUDA gives distances as 32-bit floats, which are exact only when
    short.
    """

    def __init__(self) -> None:
        self._anchors: dict[int, tuple[Any, int]] = {}
        self._waiting: deque[_Finished] = deque()
        self._lock = threading.Lock()

    def start(self) -> DeviceSpan:
        device = torch.cuda.current_device()
        if device not in self._anchors:
            self._tie(device)
        return DeviceSpan(self, device)

    def _tie(self, device: int) -> None:
        with self._lock:
            if not self._anchors:
                before_finalize(self.drain)
            anchor = torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize(device)
            before = _core.time_ns()
            anchor.record()
            anchor.synchronize()
            self._anchors[device] = (anchor, (before + _core.time_ns()) // 2)

    def finish(self, span: _Finished) -> None:
        """Accept a span whose end is in the stream, and write those the device has passed."""
        self._waiting.append(span)
        self._write(wait=False)

    def drain(self) -> None:
        """Wait for the device and write the rest; only at the end of the trace."""
        self._write(wait=True)

    def _write(self, wait: bool) -> None:
        with self._lock:
            while self._waiting:
                start, end, device, name, category, args = self._waiting[0]
                if wait:
                    end.synchronize()
                elif not end.query():
                    return
                self._waiting.popleft()
                anchor, anchor_ns = self._anchors[device]
                start_ns = anchor_ns + round(anchor.elapsed_time(start) * 1e6)
                duration = round(start.elapsed_time(end) * 1e6)
                self._anchors[device] = (start, start_ns)
                _core.log_event(
                    name,
                    category,
                    start_ns,
                    duration,
                    {**args, "device_index": device, "dur_ns": duration},
                    device_lane(device, 0),
                )


device_clock = DeviceClock()
