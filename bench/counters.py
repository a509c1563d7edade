"""What sampling the machine costs: the writer thread's CPU time with and without counters, in one run.

python -m bench.counters [--seconds 20] [--rounds 3]

Programs with and without counters run side by side, so that whatever else the machine does, it does to both:
one that records a step every 50 ms, and one that records a single event and is idle from then on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, scan_file

PROGRAM = """
import sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1])
until = time.monotonic() + float(sys.argv[3])
with ai.compute.forward: pass
while time.monotonic() < until:
    if sys.argv[2] == "steps":
        with ai.compute.step: pass
    time.sleep(0.05)
log.finalize()
"""
GOAL = 0.0005  # of a core


def _writer_share(file: Path) -> tuple[float, int]:
    """CPU time of the writer thread as a share of a core, and the size of the trace."""
    info = ProcessInfo(file)
    for _, chunk in scan_file(info, Filter(), 1, 1 << 20):
        info.take(chunk.meta)
    assert info.end is not None
    return info.end["writer_cpu_us"] / info.end["life_us"], file.stat().st_size


def _round(kind: str, seconds: float, folder: Path) -> dict[str, tuple[float, int]]:
    """Both at the same time."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    started = {
        interval: subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder / f"{kind}-{interval}.pfw"), kind, str(seconds)],
            env={**env, "DFTRACER_ENABLE": "1", "DFTRACER_DISABLE_IO": "1", "DFTRACER_COUNTER_MS": interval},
        )
        for interval in ("0", "1000")
    }
    for process in started.values():
        if process.wait() != 0:
            raise SystemExit("a program failed")
    return {interval: _writer_share(folder / f"{kind}-{interval}.pfw.gz") for interval in started}


def main() -> int:
    """Print a line per program; 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    missed = False
    for kind in ("steps", "idle"):
        found = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                found.append(_round(kind, options.seconds, Path(folder)))
        off, on = (statistics.median(r[k][0] for r in found) for k in ("0", "1000"))
        size = statistics.median(r["1000"][1] - r["0"][1] for r in found) / options.seconds
        missed = missed or on - off > GOAL
        print(
            f"{kind:5}  writer thread {100 * off:.4f} % of a core without counters, {100 * on:.4f} % with:"
            f" +{100 * (on - off):.4f} % (goal {100 * GOAL:.2f} %), {size:.0f} bytes of trace per second"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
