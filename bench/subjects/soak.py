"""Tens of millions of events through one process: memory must stay flat and nothing get lost."""

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
_RATE = 1.0e6
_EVENTS = 50_000_000
# Growth allowed from the first quarter to the end: the page tables and arenas of a live process.
_GROWTH_MB = 8.0


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _offer(events: int, rate: float) -> None:
    from dftracer.python import ai  # noqa: PLC0415

    forward, step = ai.compute.forward, ai.compute.step
    interval = _CHUNK / rate
    due = time.perf_counter()
    for chunk in range(events // _CHUNK):
        with step(args={"chunk": chunk}):
            for _ in range(_CHUNK - 1):
                with forward:
                    pass
        due += interval
        ahead = due - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)


def worker(events: int) -> dict[str, Any]:
    trace = tracing.start(pinned=False)
    from dftracer.python import ai  # noqa: PLC0415

    threads = [threading.Thread(target=_offer, args=(events // 2, _RATE / 2)) for _ in range(2)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    series = []
    step = 0
    while any(thread.is_alive() for thread in threads):
        ai.update(epoch=0, step=step)
        step += 1
        series.append(round(_resident_mb(), 1))
        time.sleep(0.5)
    for thread in threads:
        thread.join()
    files = trace.finish()
    seconds = time.perf_counter() - start
    written = events // 2 // _CHUNK * _CHUNK * 2
    result = {
        "events": written,
        "lines": trace_files.count(files, "forward") + trace_files.count(files, "step"),
        "seconds": seconds,
        "resident_mb": series,
        "bytes": trace_files.size(files),
        "end": trace_files.end_record(files),
    }
    for directory in {file.parent for file in files}:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def rows(bench: Bench) -> list[Row]:
    events = 2_000_000 if bench.quick else _EVENTS
    done = subprocess.run(
        [bench.ours, "-m", "bench.subjects.soak", str(events)],
        env=environment(bench, traced=True),
        cwd=bench.directory,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    run = json.loads(done.stdout.splitlines()[-1])
    series = run["resident_mb"]
    settled = series[len(series) // 4 :]
    growth = max(settled) - settled[0]
    lost = run["events"] - run["lines"]
    unaccounted = abs(lost - run["end"]["dropped"])
    row = Row(
        "soak",
        f"soak of {events / 1e6:g} M events: growth of resident memory after the first quarter",
        "MB",
        growth,
        goals=[
            Goal("flat: at most 8 MB", growth, _GROWTH_MB),
            Goal("every event written, or counted as dropped", float(unaccounted), 0.0),
        ],
        detail=run,
    )
    row.notes.append(
        f"{run['seconds']:.0f} s, {run['lines']} lines found, {lost} dropped, "
        f"{run['bytes'] / run['lines']:.1f} bytes an event, "
        f"resident {settled[0]:.0f} MB at a quarter, {series[-1]:.0f} MB at the end"
    )
    return [row]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(worker(int(sys.argv[1]))) + "\n")
