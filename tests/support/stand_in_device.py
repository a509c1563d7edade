"""A device without a device: a clock that the program moves, a queue, and events in it.

The one stand-in among the tests: the recorder of device events runs on it where there is no GPU.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

__all__ = ["Device", "Pool"]


class Device:
    """Work is queued by the host and done in order; both share `now` (ns), which only the program moves."""

    def __init__(self, now: int, latency: int = 5_000) -> None:
        self.now = now
        self.latency = latency
        self.free = now
        self.busy = 0

    def host(self, ns: int) -> None:
        """The host is busy for so long."""
        self.now += ns

    def launch(self, ns: int) -> None:
        """The host queues work of this length."""
        self.free = max(self.free, self.now + self.latency) + ns
        self.busy += ns

    def time_ns(self) -> int:
        return self.now


class Event:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.passes = 0

    def record(self) -> None:
        self.device.free = self.passes = max(self.device.free, self.device.now + self.device.latency)

    def query(self) -> bool:
        assert not Pool.capturing, "asked during a capture"
        return self.device.now >= self.passes

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.passes)

    def elapsed_time(self, other: Event) -> float:
        # As CUDA gives it: milliseconds in 32 bits.
        return float(struct.unpack("f", struct.pack("f", (other.passes - self.passes) / 1e6))[0])


class Pool:
    capturing = False

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: list[Event] = []
        self.made = 0
        self.lock = threading.Lock()

    def may_touch(self) -> bool:
        return not Pool.capturing

    def device(self) -> int:
        return 0

    def record(self, device: int) -> Any:
        assert not Pool.capturing, "recorded during a capture"
        if self._free:
            event = self._free.pop()
        else:
            event = Event(self._device)
            self.made += 1
        event.record()
        return event

    def synchronize(self, device: int) -> None:
        assert not Pool.capturing, "waited for during a capture"
        self._device.now = max(self._device.now, self._device.free)

    def give_back(self, device: int, event: Event) -> None:
        self._free.append(event)

    def memory(self, device: int) -> tuple[int, int]:
        return 1000, 3000

    def facts(self, device: int) -> dict[str, str]:
        return {"name": "NVIDIA H200"}
