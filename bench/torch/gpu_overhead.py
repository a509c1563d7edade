"""What tracing costs a training step on a GPU. One command, no test runner, no network:

    python bench/torch/gpu_overhead.py [--rounds 60] [--steps 10] [--only window graphs] [--no-checks]

First checks that kernels, launches and device times of this device reach the trace
(tests/gpu/cuda_program.py). Then compares a step with and without tracing: the two sides take turns in one
process (gpu_step.py), the ratio of each round is one observation. The table has the median of the ratios and
the interval that holds it with 95 % confidence. A profiler window costs a few of many steps: there the n-th
steps of all rounds give a median, their sums a ratio, and resampled rounds its interval.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent

TITLES = {
    "annotations": ("annotations + I/O, against none", "step"),
    "handler": ("trace_handler, against torch.profiler alone", "run of 100 steps, 3 in the window"),
    "window": ("a window of 3 steps handed to trace_handler, against none", "run of 40 steps"),
    "graphs": ("whole graphs traced, against torch.compile alone", "step"),
}
# Whole runs, of which each step counts, not single steps.
RUNS = ("handler", "window")


def run(command: list[str], directory: str) -> Any:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")}
    environment["DFTRACER_ENABLE"] = "1"
    environment["DFTRACER_DATA_DIR"] = str(Path(directory) / "traced")
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": done.stderr[-2500:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def checks(directory: str) -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: the checks are left out\n")
        return
    found = run([sys.executable, str(HERE.parents[1] / "tests/gpu/cuda_program.py")], directory)
    print("| check | holds |\n|---|---|")
    for name, result in found.items():
        print(f"| {name} | {'yes' if result is True else 'NO'} |")
    for name, result in found.items():
        if result is not True:
            print(f"\n{name}:\n{result}")
    print(flush=True)


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Median and the order statistics that enclose it with 95 % confidence."""
    ordered = sorted(values)
    count = len(ordered)
    half = 0.98 * count**0.5
    low = ordered[max(int(count / 2 - half), 0)]
    high = ordered[min(int(count / 2 + half), count - 1)]
    return statistics.median(ordered), low, high


def sum_of_medians(runs: list[list[float]]) -> float:
    """A run's time, step by step as it usually is."""
    return float(sum(statistics.median(times) for times in zip(*runs, strict=True)))


def ratio_of_runs(pairs: list[tuple[list[float], list[float]]]) -> tuple[float, float, float]:
    """Ratio of whole runs, with the interval that resampled rounds give."""

    def ratio(chosen: list[tuple[list[float], list[float]]]) -> float:
        return sum_of_medians([b for _, b in chosen]) / sum_of_medians([a for a, _ in chosen])

    generator = random.Random(0)
    resampled = sorted(ratio(generator.choices(pairs, k=len(pairs))) for _ in range(400))
    return ratio(pairs), resampled[10], resampled[-11]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--no-checks", action="store_true", help="measure only")
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"device: {device}, torch {torch.__version__}, Python {sys.version.split()[0]}\n", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        if not options.no_checks:
            checks(directory)
        print("| what | of | untraced, ms | added, ms | added | 95 % interval | rounds |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for name in options.only:
            # A run with a window has many more steps: fewer of them.
            rounds = options.rounds if name not in RUNS else max(options.rounds // 3, 5)
            command = [sys.executable, str(HERE / "gpu_step.py"), name, "--data", directory]
            found = run([*command, "--rounds", str(rounds), "--steps", str(options.steps)], directory)
            if isinstance(found, dict):
                print(f"{name} failed:\n{found['error']}\n", flush=True)
                continue
            if name in RUNS:
                ratios = ratio_of_runs(found)
                base = 1e3 * sum_of_medians([a for a, _ in found])
            else:
                ratios = median_interval([b / a for a, b in found])
                base = 1e3 * statistics.median(a for a, _ in found)
            ratio, low, high = (100 * (value - 1) for value in ratios)
            columns = [
                *TITLES[name],
                f"{base:.2f}",
                f"{base * ratio / 100:+.2f}",
                f"{ratio:+.2f} %",
                f"{low:+.2f} to {high:+.2f} %",
                str(rounds),
            ]
            print("| " + " | ".join(columns) + " |", flush=True)


if __name__ == "__main__":
    main()
