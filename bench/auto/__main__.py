"""What automatic tracing costs a training step, beside torch.profiler and VizTracer. One command:

    python -m bench.auto [--rounds 60] [--steps 30] [--device cpu] [--ms 5]

One process trains the same model in short blocks of steps, in turns: untraced, with automatic tracing
installed, and, in every tenth round, under each rival that is installed. A block is a pass over a loader in
the main process, 16 items a batch; its first 20 steps are not counted. What is compared is the median
step of a block with that of the untraced block beside it, and which of the two comes first changes, so that
the machine's mood cancels out. The table has the median of these differences over all rounds and the interval
that holds it with 95 % confidence, and the difference of the quickest twentieth of all steps: those that
nothing else disturbed.

On a CPU, what is compared is CPU time of the training thread: everything of a step of a small model, from
asking for the batch to the end of the optimizer. Matrix products after it make the step as long as `--ms`
asks and leave the caches as a real model does; they are not in the compared time, because from block to block
they differ by more than tracing costs. Where other programs use the same caches, that is not enough;
`--bare` leaves them out.

On a GPU (`--device cuda --ms 10 --steps 10 --rounds 400`) the model is as large as `--ms` asks, a step ends
with a synchronisation of the program's own, and the whole step is compared, on the clock. The step waits for
the host, which launches small layers; with `--width 2048 --repeat 256` it waits for the device, which
multiplies large matrices. Neighbours of a virtual machine change the speed of its cores by a third for some
tenths of a second: blocks must be shorter than that, and `--pin` keeps the training's threads on one core.
`python -m bench.auto.instructions` counts instructions instead.
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

from bench.auto.step import Step  # noqa: E402
from dftracer import _core, auto  # noqa: E402
from dftracer.torch import device  # noqa: E402

BUDGET = 1.0  # percent of a step
OURS = "automatic tracing"
_UNCOUNTED = {"cpu": 20, "cuda": 4}  # the interpreter finds its short cuts anew after a switch
_RIVALS_EVERY = 10  # rounds


class Block:
    """A pass over some batches, and how long its steps take."""

    def __init__(self, args: argparse.Namespace, size: int) -> None:
        self.on_cpu = args.device == "cpu"
        self.step = Step(args.device, args.width, 2 if self.on_cpu else size, args.repeat)
        self.uncounted = _UNCOUNTED[args.device]
        self.loader = self.step.loader(args.steps + self.uncounted, args.batch)
        self.size = 0 if args.bare else size
        self.factor = torch.randn(args.width, args.width)

    def fill(self) -> None:
        """The rest of a step on a CPU."""
        for _ in range(self.size):
            torch.mm(self.factor, self.factor)

    def __call__(self) -> tuple[list[float], float]:
        """In s: what is compared, of each step in order of length, and the median of whole steps."""
        times, whole = [], []
        clock = time.thread_time if self.on_cpu else time.perf_counter
        begin = clock()
        for batch in self.loader:
            self.step(batch)
            if self.on_cpu:
                times.append(clock() - begin)
                self.fill()
            else:
                torch.cuda.synchronize()
                times.append(clock() - begin)
            end = clock()
            whole.append(end - begin)
            begin = end
        return sorted(times[self.uncounted :]), statistics.median(whole[self.uncounted :])


_left_at = 0


@contextlib.contextmanager
def automatic() -> Iterator[None]:
    """Ours."""
    global _left_at  # noqa: PLW0603 - of the block before
    auto.install()
    recorder = device._recorder
    if recorder is not None and recorder._since is not None:
        # Device events take a share of the run's time, of which the untraced blocks are no part.
        recorder._since += _core.time_ns() - _left_at
    try:
        yield
    finally:
        auto.uninstall()
        _left_at = _core.time_ns()


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


SIDES: dict[str, Any] = {OURS: automatic, "torch.profiler": torch_profiler}
if importlib.util.find_spec("viztracer") is not None:
    SIDES["VizTracer"] = viztracer


def median_and_interval(values: list[float]) -> tuple[float, float, float]:
    """The median, and the ranks that hold it with 95 % confidence."""
    values = sorted(values)
    n = len(values)
    half = 0.98 * math.sqrt(n)
    low, high = max(0, math.floor(n / 2 - half)), min(n - 1, math.ceil(n / 2 + half))
    return statistics.median(values), values[low], values[high]


def sized(args: argparse.Namespace) -> Block:
    """A step that takes about the asked time, untraced."""
    size = 2
    while True:
        block = Block(args, size)
        block()
        took = 1000 * block()[1]
        if took >= 0.8 * args.ms or size > 4000 or (args.bare and args.device == "cpu"):
            return block
        size = max(size + 1, min(4 * size, int(size * args.ms / took)))


def sized_on_one_core(args: argparse.Namespace) -> Block:
    """The training's threads stay on a core of their own, ours on the others."""
    cores = os.sched_getaffinity(0)
    one = {max(cores)}
    os.sched_setaffinity(0, one)
    block = sized(args)  # torch starts the thread of its backward here
    os.sched_setaffinity(0, cores - one)
    with automatic():
        block()
    os.sched_setaffinity(0, one)
    return block


def measured(block: Block, rounds: int) -> tuple[dict[str, list[float]], dict[str, float], float]:
    """In s: by side, how much longer a traced step took than an untraced one, by round and undisturbed.

    Last, a whole step.
    """
    longer: dict[str, list[float]] = {name: [] for name in SIDES}
    steps: dict[tuple[str, bool], list[float]] = {}
    whole = []
    for turn in range(rounds):
        for name, side in SIDES.items():
            if name != OURS and turn % _RIVALS_EVERY:
                continue
            times: dict[bool, float] = {}
            for traced in (turn % 2 == 0, turn % 2 == 1):
                with side() if traced else contextlib.nullcontext():
                    each, all_of_it = block()
                times[traced] = statistics.median(each)
                steps.setdefault((name, traced), []).extend(each)
                if not traced:
                    whole.append(all_of_it)
            longer[name].append(times[True] - times[False])
    quiet = {key: sorted(each)[len(each) // 20] for key, each in steps.items()}
    return longer, {name: quiet[name, True] - quiet[name, False] for name in longer}, statistics.median(whole)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ms", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=1, help="on a GPU: copies of each batch there")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--pin", action="store_true", help="the training to one core, everything else to others"
    )
    parser.add_argument("--bare", action="store_true", help="on a CPU: no matrix products, warm caches")
    parser.add_argument("--alone", action="store_true", help="without the rivals")
    args = parser.parse_args()
    if args.alone:
        for name in [name for name in SIDES if name != OURS]:
            del SIDES[name]
    torch.set_num_threads(1)
    block = (sized_on_one_core if args.pin else sized)(args)
    longer, quiet, step = measured(block, args.rounds)
    if args.bare and args.device == "cpu":
        step = args.ms / 1000
    found: dict[str, Any] = {
        "step_ms": round(1000 * step, 3),
        "device": args.device if args.device == "cpu" else torch.cuda.get_device_name(),
    }
    for name, each in longer.items():
        us = median_and_interval([1e6 * seconds for seconds in each])
        found[name] = {
            "us": [round(v, 1) for v in us],
            "percent": [round(v / (1e4 * step), 2) for v in us],
            "quiet_us": round(1e6 * quiet[name], 1),
            "rounds": len(each),
        }
    if args.json:
        print(json.dumps(found))
    else:
        print(f"an untraced step takes {found['step_ms']} ms on {found['device']}\n")
        print("| traced by | us a step | 95 % | of the step | 95 % | us a step, undisturbed |")
        print("|---|---|---|---|---|---|")
        for name in SIDES:
            (us, us_low, us_high), (share, low, high) = found[name]["us"], found[name]["percent"]
            print(
                f"| {name} | {us:.0f} | {us_low:.0f} to {us_high:.0f} "
                f"| {share:.2f} % | {low:.2f} to {high:.2f} % | {found[name]['quiet_us']:.0f} |"
            )
    median, low, high = found[OURS]["percent"]
    within = median <= BUDGET
    print(
        f"goal: at most {BUDGET:g} % of a step; {'met' if within else 'missed'} by the median, "
        f"{'shown' if high <= BUDGET or low > BUDGET else 'not shown'} by the interval",
        file=sys.stderr,
    )
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
