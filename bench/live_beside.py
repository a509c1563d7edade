"""What a job pays for being watched: its CPU time and its step time beside `dftracer top`, and alone.

    python -m bench.live_beside [--rounds 5]

The two take turns, so that a change of the machine's mood meets both. The job counts its own CPU time over a
fixed number of steps, recorder included; `top` runs on a terminal of its own at five frames a second.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

JOB = """
import json, resource, sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1] + "/t.pfw", None)
def work():
    n = 0
    for i in range(4000):
        n += i * i
    return n
began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
for step in ai.dataloader.fetch.iter(range(6000)):
    with ai.compute.forward:
        work()
    with ai.compute.backward:
        work()
ended = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
log.finalize()
print(json.dumps({"cpu": ended[0].ru_utime + ended[0].ru_stime - began[0].ru_utime - began[0].ru_stime,
                  "wall": ended[1] - began[1]}))
"""


def _job(directory: str) -> dict[str, float]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    env |= {"DFTRACER_ENABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", JOB, directory], env=env, check=True, stdout=subprocess.PIPE, text=True
    )
    times: dict[str, float] = json.loads(done.stdout)
    return times


def _watched(directory: str) -> dict[str, float]:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dftracer", "top", directory, "--interval", "0.2"]
    top = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown: list[bytes] = []

    def drain() -> None:
        try:
            while piece := os.read(ours, 65536):
                shown.append(piece)
        except OSError:
            return

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        return _job(directory)
    finally:
        os.write(ours, b"q")
        top.wait()
        reader.join()
        os.close(ours)
        if b"steps/s" not in b"".join(shown):
            raise SystemExit("top has shown nothing")


def main() -> None:
    """Print medians, and their ratios beside the noise: the ratio of two runs without `top`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    alone: list[dict[str, float]] = []
    again: list[dict[str, float]] = []
    beside: list[dict[str, float]] = []
    for _ in range(rounds):
        for into, how in ((alone, _job), (beside, _watched), (again, _job)):
            with tempfile.TemporaryDirectory() as place:
                (Path(place) / "seed.pfw").write_text("[\n]\n")  # something to watch before the first flush
                into.append(how(place))
    for key in ("cpu", "wall"):
        a, b, c = (statistics.median(r[key] for r in runs) for runs in (alone, beside, again))
        print(
            f"{key}: alone {a:.3f} s, beside top {b:.3f} s ({b / a:.3f}), alone again {c:.3f} s ({c / a:.3f})"
        )


if __name__ == "__main__":
    main()
