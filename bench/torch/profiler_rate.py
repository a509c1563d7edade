"""How fast a profiler window gets into the trace, and how much memory that takes.

    python bench/torch/profiler_rate.py [--rival PYTHON] [--steps N] [--repeats N]

Each measurement is a process of its own: it records a window, then times the handler together with
`finalize()`, after which every event is in the file. The routes take turns; a row has the best and the median
rate of all repeats. Memory is the rise of the peak during that time. `prof.events()` is torch's own way to
the same events, without writing them anywhere. `--rival` names the interpreter of an environment with another
pydftracer.
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

PROGRAM = """
import json, sys, time
import torch
from torch.profiler import ProfilerActivity, profile
torch.set_num_threads(1)
how, steps, options = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
if how == "handler":
    from dftracer.python import dftracer
    from dftracer.python.torch import trace_handler
    log = dftracer.initialize_log("rate.pfw", None, -1)

def status(field):
    for line in open("/proc/self/status"):
        if line.startswith(field):
            return int(line.split()[1]) / 1024

model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])
prof = profile(activities=[ProfilerActivity.CPU], **options)
prof.start()
for _ in range(steps):
    model(torch.randn(4, 8)).sum().backward()
    prof.step()
prof.stop()
with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
before = status("VmRSS")
start = time.perf_counter()
if how == "handler":
    trace_handler(prof)
    log.finalize()
else:
    prof.events()
seconds = time.perf_counter() - start
peak = status("VmHWM")
events = len(prof.profiler.kineto_results.events())
print("\\n" + json.dumps({"seconds": seconds, "events": events, "mb": peak - before}))
"""

WINDOWS: dict[str, dict[str, Any]] = {
    "times only": {},
    "shapes": {"record_shapes": True},
    "shapes, memory": {"record_shapes": True, "profile_memory": True},
    "shapes, memory, stack": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}


def measure(python: str, how: str, steps: int, options: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "program.py"
        program.write_text(PROGRAM)
        environment = {
            **os.environ,
            "DFTRACER_ENABLE": "1",
            "DFTRACER_DISABLE_IO": "1",
            "OMP_NUM_THREADS": "1",
        }
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
        done = subprocess.run(
            [python, str(program), how, str(steps), json.dumps(options)],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rival", metavar="PYTHON", help="interpreter of an environment with another pydftracer"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--windows", nargs="*", default=list(WINDOWS), choices=list(WINDOWS))
    parser.add_argument("--routes", nargs="*", default=["this", "rival", "prof.events()"])
    options = parser.parse_args()
    print("| window | route | events | events/s, best | events/s, median | memory, MB | bytes/event |")
    print("|---|---|---|---|---|---|---|")
    routes = {"this": (sys.executable, "handler"), "prof.events()": (sys.executable, "events")}
    if options.rival:
        routes["rival"] = (options.rival, "handler")
    routes = {name: route for name, route in routes.items() if name in options.routes}
    for window in options.windows:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in routes}
        for _ in range(options.repeats):
            for name, (python, how) in routes.items():
                found[name].append(measure(python, how, options.steps, WINDOWS[window]))
        for name, results in found.items():
            rates = [one["events"] / one["seconds"] for one in results]
            memory = min(one["mb"] for one in results)
            columns = [
                window,
                name,
                f"{results[0]['events']:,}",
                f"{max(rates):,.0f}",
                f"{statistics.median(rates):,.0f}",
                f"{memory:.0f}",
                f"{memory * 1024 * 1024 / results[0]['events']:,.0f}",
            ]
            print("| " + " | ".join(columns) + " |", flush=True)


if __name__ == "__main__":
    main()
