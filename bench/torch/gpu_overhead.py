"""What tracing costs a training step on a GPU. One command, no test runner, no network:

    python bench/torch/gpu_overhead.py [--rounds 3] [--steps 150]

First checks that kernels, launches and device times of this device reach the trace
(tests/gpu/cuda_program.py), then runs the loop of gpu_step.py in variants, in turns, each in a process of its
own, and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent

VARIANTS: dict[str, tuple[bool, list[str]]] = {
    "no tracing": (False, []),
    "annotations + I/O": (True, []),
    "torch.profiler alone": (False, ["--profiler", "plain"]),
    "torch.profiler + trace_handler": (True, ["--profiler", "handler"]),
    "torch.compile": (False, ["--compile", "torch"]),
    "torch.compile, whole graphs traced": (True, ["--compile", "graph"]),
}
# Variant -> (the one it is compared with, the number that counts).
COMPARED = {
    "annotations + I/O": ("no tracing", "median_ms"),
    "torch.profiler + trace_handler": ("torch.profiler alone", "total_s"),
    "torch.compile, whole graphs traced": ("torch.compile", "median_ms"),
}


def run(command: list[str], enable: bool, directory: str) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")}
    environment["DFTRACER_ENABLE"] = "1" if enable else "0"
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"error": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def checks(directory: str) -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: the checks are left out\n")
        return
    found = run([sys.executable, str(HERE.parents[1] / "tests/gpu/cuda_program.py")], True, directory)
    print("| check | holds |\n|---|---|")
    for name, result in found.items():
        print(f"| {name} | {'yes' if result is True else 'NO'} |")
    for name, result in found.items():
        if result is not True:
            print(f"\n{name}:\n{result}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"device: {device}, torch {torch.__version__}, Python {sys.version.split()[0]}\n", flush=True)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options.variants}
    with tempfile.TemporaryDirectory() as directory:
        checks(directory)
        for _ in range(options.rounds):
            for name in options.variants:
                enable, extra = VARIANTS[name]
                command = [
                    sys.executable,
                    str(HERE / "gpu_step.py"),
                    "--data",
                    directory,
                    "--steps",
                    str(options.steps),
                ]
                found = run([*command, *extra], enable, directory)
                if "error" in found:
                    print(f"{name} failed:\n{found['error']}", flush=True)
                else:
                    results[name].append(found)
    print("| variant | median step, ms | loop + finalize, s | against | difference |")
    print("|---|---|---|---|---|")
    for name, rows in results.items():
        if not rows:
            continue
        # The best of the rounds: the tracer's own cost is in all of them, other load is not.
        step = min(row["median_ms"] for row in rows)
        total = min(row["total_s"] for row in rows)
        other, number = COMPARED.get(name, ("", ""))
        against = results.get(other) or []
        difference = ""
        if against:
            mine, base = min(row[number] for row in rows), min(row[number] for row in against)
            spread = statistics.pstdev([row[number] for row in against]) / base * 100
            difference = f"{(mine / base - 1) * 100:+.2f} % (spread of the other: {spread:.2f} %)"
        print(f"| {name} | {step:.3f} | {total:.3f} | {other} | {difference} |")


if __name__ == "__main__":
    main()
