"""What automatic tracing costs a training step, beside torch.profiler and VizTracer. One command:

    python -m bench.auto [--rounds 40] [--steps 20] [--device cpu] [--ms 5]

One process trains the same model in blocks of steps, in turns: untraced, with automatic tracing installed,
and under each rival that is installed. A block is a pass over a `DataLoader`; what is compared is the median
step of a block with that of the untraced block beside it, so that the machine's mood cancels out. The table
has the median of the ratios over all rounds and the interval that holds it with 95 % confidence; the exit
code goes by the median. Where other work takes turns on the cores that interval is wide, and the last
column says more: the CPU time of the training thread in the quietest tenth of the steps of the quietest
block, traced less untraced. The step is made as long as `--ms` asks by repeating the model's layer.

On a GPU (`--device cuda --ms 10`) a step ends with a synchronisation, of the program's own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

_PLACE = tempfile.mkdtemp(prefix="bench-auto-")
os.environ["DFTRACER_ENABLE"] = "1"
os.environ["DFTRACER_LOG_FILE"] = os.path.join(_PLACE, "trace")

import torch  # noqa: E402 - the switch is read first

from dftracer import auto  # noqa: E402

BUDGET = 1.0  # percent of a step


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Batches that cost next to nothing, so that the step is the model's."""

    def __init__(self, n: int, width: int) -> None:
        self.batch = torch.randn(n, width)

    def __len__(self) -> int:
        return len(self.batch)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch[index]


class Training:
    """A stack of layers, and how long its steps take."""

    def __init__(self, device: str, width: int, layers: int, steps: int) -> None:
        torch.manual_seed(0)
        self.device = device
        stack = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*stack).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.loader = torch.utils.data.DataLoader(Data(16 * steps, width), batch_size=16)

    def block(self) -> tuple[float, float]:
        """Of one pass over the data, in s: the median step, and the CPU time of an undisturbed one."""
        times, cpu = [], []
        last, last_cpu = time.perf_counter(), time.thread_time()
        for batch in self.loader:
            x = batch.to(self.device)
            self.optimizer.zero_grad()
            loss = self.model(x).pow(2).mean()
            loss.backward()
            self.optimizer.step()
            if self.device != "cpu":
                torch.cuda.synchronize()
            now, now_cpu = time.perf_counter(), time.thread_time()
            times.append(now - last)
            cpu.append(now_cpu - last_cpu)
            last, last_cpu = now, now_cpu
        return statistics.median(times[1:]), sorted(cpu[1:])[len(cpu) // 10]


@contextlib.contextmanager
def automatic() -> Iterator[None]:
    """Ours."""
    auto.install()
    try:
        yield
    finally:
        auto.uninstall()


@contextlib.contextmanager
def torch_profiler() -> Iterator[None]:
    """As its documentation shows it, nothing exported."""
    with torch.profiler.profile():
        yield


@contextlib.contextmanager
def viztracer() -> Iterator[None]:
    """With its defaults, nothing saved."""
    tracer = __import__("viztracer").VizTracer(verbose=0)
    tracer.start()
    try:
        yield
    finally:
        tracer.stop()
        tracer.clear()


SIDES: dict[str, Any] = {"automatic tracing": automatic, "torch.profiler": torch_profiler}
if importlib.util.find_spec("viztracer") is not None:
    SIDES["VizTracer"] = viztracer


def median_and_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the ranks that hold it with 95 % confidence."""
    values = sorted(values)
    n = len(values)
    half = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
    return statistics.median(values), values[low], values[high]


def sized(args: argparse.Namespace) -> Training:
    """A model whose untraced step takes about the asked time."""
    layers = 2
    while True:
        training = Training(args.device, args.width, layers, args.steps)
        training.block()
        took = 1000 * training.block()[0]
        if took >= 0.8 * args.ms or layers > 4000:
            return training
        layers = max(layers + 1, min(4 * layers, int(layers * args.ms / took)))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ms", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    training = sized(args)
    ratios: dict[str, list[float]] = {name: [] for name in SIDES}
    extra: dict[str, list[float]] = {name: [] for name in SIDES}
    least = {name: {True: math.inf, False: math.inf} for name in SIDES}
    plain: list[float] = []
    for turn in range(args.rounds):
        for name, side in SIDES.items():
            # Which of the two is first changes from round to round.
            times: dict[bool, float] = {}
            for traced in (turn % 2 == 0, turn % 2 == 1):
                with side() if traced else contextlib.nullcontext():
                    times[traced], cpu = training.block()
                least[name][traced] = min(least[name][traced], cpu)
            ratios[name].append(100 * (times[True] / times[False] - 1))
            extra[name].append(1e6 * (times[True] - times[False]))
            plain.append(times[False])
    found = {
        "step_ms": round(1000 * statistics.median(plain), 3),
        "device": args.device if args.device == "cpu" else torch.cuda.get_device_name(),
        **{
            name: {
                "percent": [round(v, 2) for v in median_and_interval(ratios[name])],
                "us": round(statistics.median(extra[name]), 1),
                "least_cpu_us": round(1e6 * (least[name][True] - least[name][False]), 1),
            }
            for name in SIDES
        },
    }
    if args.json:
        print(json.dumps(found))
    else:
        print(f"an untraced step takes {found['step_ms']} ms on {found['device']}\n")
        print("| traced by | the step is longer by | 95 % | us a step | us of CPU, undisturbed |")
        print("|---|---|---|---|---|")
        for name in SIDES:
            median, low, high = found[name]["percent"]
            print(
                f"| {name} | {median:.2f} % | {low:.2f} to {high:.2f} % | {found[name]['us']:.0f} "
                f"| {found[name]['least_cpu_us']:.0f} |"
            )
    median, low, high = found["automatic tracing"]["percent"]
    within = median <= BUDGET
    print(
        f"goal: at most {BUDGET:g} % of a step; {'met' if within else 'missed'} by the median, "
        f"{'shown' if high <= BUDGET or low > BUDGET else 'not shown'} by the interval",
        file=sys.stderr,
    )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
