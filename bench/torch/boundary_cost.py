"""What the recorder of device events does itself at the boundaries of a step, without a GPU.

`python bench/torch/boundary_cost.py`: events that are passed at once and cost next to nothing stand in for
the device's, so what is left is ours. Prints us per step of ten boundaries, six of them with an event.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

os.environ["DFTRACER_ENABLE"] = "1"
os.environ["DFTRACER_DISABLE_IO"] = "1"
os.environ["DFTRACER_LOG_FILE"] = tempfile.mkdtemp() + "/t"

from dftracer import _core
from dftracer.python import dftracer
from dftracer.torch.device import DeviceEvents

STEPS = 4000
FETCHED, STEPPED = 3, 5
PHASES = ((6, 7), (8, 9), (10, 11), (12, 13))  # transfer, forward, backward, optimizer
APART_NS = 25_000  # beginning and end of a phase do not share an event


class Event:
    __slots__ = ("at",)

    at: int

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at) / 1e6


class Pool:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free: list[Event] = []

    def may_touch(self) -> bool:
        return True

    def device(self) -> int:
        return 0

    def record(self, _: int) -> Event:
        event = self.free.pop() if self.free else Event()
        event.at = _core.time_ns()
        return event

    def give_back(self, _: int, event: Event) -> None:
        self.free.append(event)

    def memory(self, _: int) -> tuple[int, int]:
        return 1, 1

    def facts(self, _: int) -> dict[str, str]:
        return {}


def step(boundary: Callable[[int], Any]) -> float:
    spent = 0

    def cross(code: int) -> None:
        nonlocal spent
        start = time.perf_counter_ns()
        boundary(code)
        spent += time.perf_counter_ns() - start

    cross(FETCHED)
    for begin, end in PHASES:
        cross(begin)
        until = time.perf_counter_ns() + APART_NS
        while time.perf_counter_ns() < until:
            pass
        cross(end)
    cross(STEPPED)
    return spent / 1000


def main() -> None:
    log = dftracer.initialize_log(None, None, -1)
    recorder = DeviceEvents(Pool())
    pairs = [(step(lambda _: None), step(recorder.boundary)) for _ in range(STEPS)]
    ours = statistics.median(b for _, b in pairs) - statistics.median(a for a, _ in pairs)
    print(f"{ours:.1f} us a step of 10 boundaries")
    log.finalize()


if __name__ == "__main__":
    main()
