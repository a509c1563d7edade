"""What `collect` costs over torch's own execution trace and Kineto. One command:

    python -m bench.collect [--rounds 40] [--width 192] [--layers 4]

Each round trains the same small transformer three times in one process, in turns: under torch's own profiler
and observer with the same schedule (the cheapest way: plain JSON), under `collect` with the same two traces,
and under `collect` as it is by default (our trace and plug-ins too). Ratios are taken within a round; the
table has their medians and the interval that holds the median with 95 % confidence.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from dftracer.collect import collect

WAIT, WARMUP, ACTIVE, AFTER = 2, 1, 3, 4
STEPS = WAIT + WARMUP + ACTIVE + AFTER
CLOCKS = ("clock", "CPU")


class Training:
    """A small transformer and a batch."""

    def __init__(self, width: int, layers: int) -> None:
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batch = torch.randn(4, 64, width)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.optimizer.step()


def loop(training: Training, ended: Callable[[], None]) -> dict[str, float]:
    """Median times by phase and of the end of the window, in ms: by the clock, and of the thread's CPU."""
    found: dict[str, float] = {}
    readings: list[tuple[tuple[float, float], ...]] = []
    for _ in range(STEPS):
        start = time.perf_counter(), time.thread_time()
        training.step()
        middle = time.perf_counter(), time.thread_time()
        ended()
        readings.append((start, middle, (time.perf_counter(), time.thread_time())))
    last = WAIT + WARMUP + ACTIVE - 1
    for at, clock in enumerate(CLOCKS):
        times = [1e3 * (middle[at] - start[at]) for start, middle, _ in readings]
        marks = [1e3 * (end[at] - middle[at]) for _, middle, end in readings]
        steps = [
            step + (mark if n != last else 0) for n, (step, mark) in enumerate(zip(times, marks, strict=True))
        ]
        # The step after the window pays for what the window has left in the caches, with torch as with us.
        found[f"active step, {clock}"] = statistics.median(steps[WAIT + WARMUP : last + 1])
        found[f"waiting step, {clock}"] = statistics.median(steps[:WAIT] + steps[last + 2 :])
        found[f"step() in an active step, {clock}"] = statistics.median(marks[WAIT + WARMUP : last])
        found[f"step() in a waiting step, {clock}"] = statistics.median(marks[: WAIT - 1] + marks[last + 2 :])
        found[f"end of the window, {clock}"] = marks[last]
        found[f"all {STEPS} steps, {clock}"] = sum(times) + sum(marks)
    return found


def torchs_own(training: Training, directory: str) -> dict[str, float]:
    """The documented way, done right: a fresh observer, one window, plain files."""
    profiler = torch.profiler

    class Observer:
        def start(self) -> None:
            self.inner = profiler.ExecutionTraceObserver()
            self.inner.register_callback(os.path.join(directory, "et.json"))
            self.inner.start()

        def stop(self) -> None:
            self.inner.unregister_callback()

        def cleanup(self) -> None:
            pass

    with profiler.profile(
        schedule=profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(os.path.join(directory, "kineto.json")),
        record_shapes=True,
        execution_trace_observer=Observer(),
    ) as running:
        return loop(training, running.step)


def ours(training: Training, directory: str, **options: Any) -> dict[str, float]:
    with collect(directory, wait=WAIT, warmup=WARMUP, active=ACTIVE, card=False, **options) as running:
        found = loop(training, running.step)
        began = time.perf_counter()
    found["close"] = 1e3 * (time.perf_counter() - began)
    coverage = running.report.coverage
    assert coverage == 1.0, f"{coverage}: {running.report}"
    return found


SIDES: dict[str, Callable[[Training, str], dict[str, float]]] = {
    "torch": torchs_own,
    "et + kineto": lambda t, d: ours(t, d, traces=("et", "kineto"), plugins=()),
    "default": ours,
}


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the order statistics that hold it with 95 % confidence."""
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - reach))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return statistics.median(ordered), ordered[low], ordered[high]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600, help="no round is begun after that")
    args = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(args.width, args.layers)
    rounds: list[dict[str, dict[str, float]]] = []
    end = time.monotonic() + args.seconds
    while len(rounds) <= args.rounds and time.monotonic() < end:
        found = {}
        names = list(SIDES)
        turn = len(rounds) % len(names)
        for name in names[turn:] + names[:turn]:
            directory = tempfile.mkdtemp(prefix="bench-collect-")
            found[name] = SIDES[name](training, directory)
            shutil.rmtree(directory, ignore_errors=True)
        rounds.append(found)
    del rounds[0]  # warm-up
    print(f"{len(rounds)} rounds, torch {torch.__version__}, one thread\n")
    print("| side | what | torch, ms | added, ms | ratio (median) | 95 % interval |")
    print("|---|---|---|---|---|---|")
    for side in ("et + kineto", "default"):
        for what in rounds[0]["torch"]:
            base = statistics.median(r["torch"][what] for r in rounds)
            middle, low, high = interval([100 * (r[side][what] / r["torch"][what] - 1) for r in rounds])
            added = statistics.median(r[side][what] - r["torch"][what] for r in rounds)
            interval_text = f"{low:+.2f} to {high:+.2f} %"
            print(f"| {side} | {what} | {base:.3f} | {added:+.3f} | {middle:+.2f} % | {interval_text} |")
    closes = {
        side: statistics.median(r[side]["close"] for r in rounds) for side in ("et + kineto", "default")
    }
    print("\nclosing, after the loop, ms:", json.dumps({k: round(v, 1) for k, v in closes.items()}))


if __name__ == "__main__":
    main()
