"""What tracing adds to one operation of a compiled graph.

    python bench/torch/dynamo_overhead.py [--rival PYTHON]

A graph of many tiny operations is run untraced (`aot_eager`: the same graphs, nothing measured) and traced,
each in a process of its own; the difference divided by the number of operations is the cost of one. `--rival`
names the interpreter of an environment with another pydftracer, which is measured in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OPERATIONS = 200

PROGRAM = """
import json, sys, time
import torch
torch.set_num_threads(1)
mode = sys.argv[1]
if mode != "untraced":
    from dftracer.python import dftracer, dynamo
    log = dftracer.initialize_log("overhead.pfw", None, -1)

def chain(x):
    for _ in range(OPERATIONS):
        x = x + 1
    return x

if mode == "untraced":
    compiled = torch.compile(chain, backend="aot_eager")
else:
    compiled = dynamo.compile(chain)
x = torch.zeros(1)
with torch.no_grad():
    for _ in range(20):
        compiled(x)
    times = []
    for _ in range(400):
        start = time.perf_counter()
        compiled(x)
        times.append(time.perf_counter() - start)
    # The fastest tenth: what other processes on the machine take is not the tracer's.
    times.sort()
    best = sum(times[:40]) / 40
if mode != "untraced":
    log.finalize()
print("\\n" + json.dumps(best))
""".replace("OPERATIONS", str(OPERATIONS))


def seconds(python: str, mode: str) -> float:
    """Time of one run of the graph."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "program.py"
        program.write_text(PROGRAM)
        environment = {
            **os.environ,
            "DFTRACER_ENABLE": "1",
            "DFTRACER_DISABLE_IO": "1",
            "DFTRACER_INC_METADATA": "1",
            "OMP_NUM_THREADS": "1",
        }
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [python, str(program), mode],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        return float(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rival", metavar="PYTHON", help="interpreter of an environment with another pydftracer"
    )
    options = parser.parse_args()
    print("| tracer | untraced, us/op | traced, us/op | added, us/op |")
    print("|---|---|---|---|")
    added: dict[str, float] = {}
    for name, python in (("this", sys.executable), ("rival", options.rival)):
        if python:
            base, traced = seconds(python, "untraced"), seconds(python, "traced")
            added[name] = (traced - base) / OPERATIONS * 1e6
            columns = [base / OPERATIONS * 1e6, traced / OPERATIONS * 1e6, added[name]]
            print(f"| {name} | " + " | ".join(f"{column:.3f}" for column in columns) + " |")
    if "rival" in added:
        print(f"\nratio: 1/{added['rival'] / max(added['this'], 1e-9):.1f}")


if __name__ == "__main__":
    main()
