"""Events per second that two threads can have written, compressed, with none dropped.

Our recorder waits for the writer a bounded moment at most, so an endless loop of empty spans outruns it and
events are then dropped and counted. The question is which rate is written in full: two threads offer events
at a steady rate, and the highest rate of a ladder that lost nothing in one of three tries counts. The rival
writes in the caller's time, so its rate is simply what it reaches.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench import trace_files, tracing
from bench.results import Goal, Row
from bench.rounds import Bench, environment

__all__ = ["rows"]

_CHUNK = 500
_LADDER = (1.0e6, 2.1e6, 2.5e6, 3.0e6, 4.0e6)
_GOAL = 2.0e6
_TRIES = 3


def _offer(node: Any, events: int, rate: float, barrier: threading.Barrier) -> None:
    """Record `events` at `rate` a second; rate 0 is as fast as it goes."""
    interval = _CHUNK / rate if rate else 0.0
    barrier.wait()
    due = time.perf_counter()
    for _ in range(events // _CHUNK):
        for _ in range(_CHUNK):
            with node:
                pass
        due += interval
        ahead = due - time.perf_counter()
        if interval and ahead > 0:
            time.sleep(ahead)


def worker(events: int, rate: float) -> dict[str, Any]:
    """Both threads at half the rate; from the first event to the closed file."""
    trace = tracing.start(pinned=False)
    from dftracer.python import ai  # noqa: PLC0415

    ai.update(epoch=1, step=100)
    barrier = threading.Barrier(3)
    # A node for each thread: the rival loses events, or raises, where two threads share one.
    threads = [
        threading.Thread(target=_offer, args=(node, events // 2, rate / 2, barrier))
        for node in (ai.compute.forward, ai.compute.step)
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    offered = time.perf_counter() - start
    files = trace.finish()
    closed = time.perf_counter() - start
    found = trace_files.count(files, "forward") + trace_files.count(files, "step")
    result = {
        "events": events // 2 // _CHUNK * _CHUNK * 2,
        "lines": found,
        "offered_s": offered,
        "closed_s": closed,
        "bytes": trace_files.size(files),
        "end": trace_files.end_record(files),
    }
    for directory in {file.parent for file in files}:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def _run(bench: Bench, python: Path, events: int, rate: float) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", "bench.subjects.throughput", str(events), str(rate)],
        env=environment(bench, traced=True),
        cwd=bench.directory,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _step(bench: Bench, rate: float, seconds: float) -> dict[str, Any]:
    """One rate of the ladder, tried again when events were lost: a busy machine also loses them."""
    for attempt in range(1, _TRIES + 1):
        run = _run(bench, bench.ours, int(rate * seconds), rate)
        step = {
            "offered_per_s": rate,
            "written_per_s": run["lines"] / run["closed_s"],
            "lost": run["events"] - run["lines"],
            "attempt": attempt,
            "writer_cpu_ns": run["end"]["writer_cpu_us"] * 1e3 / run["lines"],
        }
        if not step["lost"]:
            break
    return step


def rows(bench: Bench) -> list[Row]:
    seconds = 1.0 if bench.quick else 4.0
    ladder = []
    for rate in _LADDER:
        ladder.append(_step(bench, rate, seconds))
        if ladder[-1]["lost"]:
            break
    best = max((step["written_per_s"] for step in ladder if not step["lost"]), default=0.0)
    flood = _run(bench, bench.ours, int(5e6 * seconds), 0.0)
    rival = None
    if bench.rival:
        theirs = _run(bench, bench.rival, 100_000 if bench.quick else 400_000, 0.0)
        rival = theirs["lines"] / theirs["closed_s"]
    row = Row(
        "throughput",
        "sustained, 2 threads, gzip, nothing dropped",
        "events/s",
        best,
        rival,
        rival / best if rival and best else None,
        goals=[Goal("at least 2 M events/s", best, _GOAL, at_most=False)],
        detail={"ladder": ladder, "flood": flood},
    )
    writer = min(step["writer_cpu_ns"] for step in ladder)
    row.notes.append(
        f"the writer thread takes {writer:.0f} ns of CPU for an event, so a core writes at most "
        f"{1e3 / writer:.1f} M events/s"
    )
    row.notes.append(
        f"an endless loop of empty spans offers {flood['events'] / flood['offered_s'] / 1e6:.1f} M events/s, "
        f"of which {flood['lines'] / flood['events']:.0%} are written and the rest counted as dropped"
    )
    return [row]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(worker(int(sys.argv[1]), float(sys.argv[2]))) + "\n")
    sys.stdout.flush()
    os._exit(0)
