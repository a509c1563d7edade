"""How annotating grows with threads on a Python without the interpreter lock: `python -m bench.threads`.

Two threads record bursts of spans at the same time, then one does; each burst fits into an eighth of the
thread's ring, so that the writer sleeps meanwhile. A context manager written in Python, one object for each
thread, shows what the interpreter and the machine allow. With the interpreter lock the numbers are near 1.

Without the lock the exit code is 1 if a node for each thread grows by less than 0.93 of what the empty manager does.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from bench import tracing
from bench.subjects.span import EmptyManager

__all__ = ["complaint", "main"]

_SPANS = 4_000  # about 90 bytes each, in a ring of 4 MB
_ROUNDS = 60
_LEAST = 0.93  # of the empty manager's growth, in the same run; measured: 0.94 to 1.01
_EMPTY = "empty Python context manager, one for each thread"
_NODE = "`with` a node, one for each thread"


def _burst(manager: Any) -> None:
    for _ in range(_SPANS):
        with manager:
            pass


def _together(managers: list[Any], settle: Callable[[], object]) -> float:
    """Spans per second, from the first thread's begin to the last one's end."""
    barrier = threading.Barrier(len(managers))
    times: list[tuple[int, int]] = []

    def run(manager: Any) -> None:
        _burst(manager)  # the thread's ring, its copies of the arguments
        settle()
        barrier.wait()
        begin = time.perf_counter_ns()
        _burst(manager)
        times.append((begin, time.perf_counter_ns()))

    threads = [threading.Thread(target=run, args=(manager,)) for manager in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settle()
    took = max(end for _, end in times) - min(begin for begin, _ in times)
    return len(managers) * _SPANS / took * 1e9


def complaint(growth: dict[str, float], *, locked: bool) -> str:
    """Why two threads record too slowly; empty if they do not, or if the interpreter lets only one run."""
    share = growth[_NODE] / growth[_EMPTY]
    if locked or share >= _LEAST:
        return ""
    return f"a node for each thread grows by {share:.3f} of what an empty manager does; at least {_LEAST} expected"


def main() -> int:
    trace = tracing.start(pinned=False)
    from dftracer.python import ai  # noqa: PLC0415 - the environment decides what it does

    ai.update(epoch=1, step=100)
    forward, step = ai.compute.forward, ai.compute.step
    first, second = EmptyManager(), EmptyManager()
    cases: dict[str, list[list[Any]]] = {
        _EMPTY: [[first], [first, second]],
        _NODE: [[forward], [forward, step]],
        "`with` a node, the same for both threads": [[forward], [forward, forward]],
    }
    gc.disable()
    rates: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in cases}
    for _ in range(_ROUNDS):
        for name, settings in cases.items():
            for found, managers in zip(rates[name], settings, strict=True):
                found.append(_together(managers, trace.settle))
    trace.finish()
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    sys.stdout.write(f"{sys.version.split()[0]}, interpreter lock {'on' if locked else 'off'}\n")
    for name, (one, two) in rates.items():
        # What preempted a burst is not the code's cost: the best ones, and the middle of all for comparison.
        result = {
            "ns with one thread": round(1e9 / max(one), 1),
            "ns with two": round(2e9 / max(two), 1),
            "times as many, best": round(max(two) / max(one), 2),
            "median": round(statistics.median(two) / statistics.median(one), 2),
        }
        sys.stdout.write(f"{name}: {json.dumps(result)}\n")
    wrong = complaint({name: max(two) / max(one) for name, (one, two) in rates.items()}, locked=locked)
    sys.stdout.write(f"{wrong}\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
