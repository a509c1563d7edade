"""`python -m bench.compare [--pairs N] [--programs N]`: false alarms and power of `dftracer compare`.

Steps are made up, their noise is not gentle: 5 % spread, one step in thirty much longer, slow steps in a row,
drift, or all stages slow at once. `--programs N` also runs a real training program N times with 0, 2 and 4
loader workers, and N times with each stage 10 % longer, and compares the pairs. `--workers` and `--stages`
choose some of them; with `--keep FOLDER` runs that are there already are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from dftracer.analyze import analyze
from dftracer.compare import Side, compare, side_of
from dftracer.report.contents import comparable
from support.noisy_runs import KINDS, noisy_run

STEPS = (20, 30, 60, 100, 300, 1000)
SLOWER = {"preprocess": 1.1}  # 18 % of the step, so the step grows by 1.8 %
WORKERS = (0, 2, 4)
# What a stage of the program below is called in the comparison; with workers, items show up as waiting.
LONGER = {
    "item": ("preprocess", "fetch_wait"),
    "forward": ("forward",),
    "backward": ("backward",),
    "step": ("optimizer",),
}
# A plain training program that sleeps in each stage; argv: workers, and the stage that is 10 % longer.
PROGRAM = """
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

WORKERS, LONGER = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)


def work(stage, seconds):
    time.sleep(seconds * (1.1 if stage == LONGER else 1.0))


class Items(Dataset):
    def __len__(self):
        return 4 * 120

    def __getitem__(self, index):
        # With workers they are the slowest part: what others hide costs nothing, and is no difference.
        work("item", 0.0025 * max(1, WORKERS) * (4 if WORKERS else 1))
        return torch.full((8,), float(index))


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        work("forward", 0.010)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        work("backward", 0.012)
        return gradient * 2


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 1)

    def forward(self, x):
        return Slow.apply(self.linear(x))


class Slowly(torch.optim.SGD):
    def step(self, closure=None):
        work("step", 0.008)
        return super().step(closure)


if __name__ == "__main__":
    model = Model()
    optimizer = Slowly(model.parameters(), lr=1e-6)
    for batch in DataLoader(Items(), batch_size=4, num_workers=WORKERS):
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def made_up(pairs: int) -> None:
    print("| noise | " + " | ".join(f"{n} steps" for n in STEPS) + " |")
    print("|---|" + "---:|" * len(STEPS))
    for kind in KINDS:
        cells = []
        for n in STEPS:
            alarms = found = 0
            for i in range(pairs):
                a, b = noisy_run(2 * i, n, kind), noisy_run(2 * i + 1, n, kind)
                slow = noisy_run(2 * i + 1, n, kind, SLOWER)
                alarms += compare(a, b).difference
                found += "preprocess" in compare(a, slow).changed
            cells.append(f"{100 * alarms / pairs:.0f} % / {100 * found / pairs:.0f} %")
        print(f"| {kind.replace('_', ' ')} | " + " | ".join(cells) + " |", flush=True)


def programs(runs: int, workers: list[int], stages: list[str], folder: Path) -> None:
    """One after another, as users run them: the machine may change between two of them."""
    file = folder / "train.py"
    file.write_text(PROGRAM)
    for n in workers:
        made = {s: [_ran(file, i, n, s) for i in range(runs)] for s in ("none", *stages)}
        pairs = [compare(a, b) for a, b in itertools.combinations(made["none"], 2)]
        answers = [c.answer for c in pairs]
        print(
            f"{n} workers: {len(pairs)} pairs of equal runs:"
            f" {', '.join(f'{answers.count(a)} {a}' for a in dict.fromkeys(answers))}",
            [c.changed for c in pairs if c.difference] or "",
            flush=True,
        )
        for stage in stages:
            across = [compare(a, b) for a in made["none"] for b in made[stage]]
            found = sum(
                any(name in c.changed + c.changed_in_bursts for name in LONGER[stage]) for c in across
            )
            print(f"  {stage} 10 % longer: found in {found} of {len(across)}", flush=True)


def _ran(file: Path, number: int, workers: int, longer: str) -> Side:
    out = file.parent / f"{workers}-{longer}-{number}"
    if not out.is_dir():
        env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        command = [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(out), "--"]
        program = [sys.executable, str(file), str(workers), longer]
        subprocess.run([*command, *program], check=True, env=env, capture_output=True)
    return side_of(out.name, comparable(analyze(out)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--workers", type=int, nargs="+", choices=WORKERS, default=[*WORKERS])
    parser.add_argument("--stages", nargs="+", choices=[*LONGER], default=[*LONGER])
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    if args.pairs:
        made_up(args.pairs)
    if args.programs and args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        programs(args.programs, args.workers, args.stages, args.keep)
    elif args.programs:
        with tempfile.TemporaryDirectory() as folder:
            programs(args.programs, args.workers, args.stages, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
