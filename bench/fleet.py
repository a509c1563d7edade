"""Makes the step rows of a large job that never ran, with known faults, and times `dftracer fleet` on them.

    python -m bench.fleet make DIR --ranks 10000 --steps 1000
    python -m bench.fleet time DIR [--dask ADDRESS]
    python -m bench.fleet cluster DIR

`cluster` starts a Dask cluster of two worker processes here and compares the bytes of both answers.

The ranks train together: whoever is done waits for the slowest in `comm`. Injected are a slow rank, a slow
step and a slow rack (32 ranks on neighbouring nodes); DIR/truth.json says where.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.load.rows import AUTOMATIC, COLUMNS, LEARNS, STAGES, pack_rows

_USUAL_US = {
    "fetch_wait": 8_000,
    "forward": 60_000,
    "backward": 90_000,
    "optimizer": 12_000,
    "own_code": 3_000,
}
_NOISE = 0.03
_NODE, _RACK = 8, 32
_START_US = 1_768_498_812_000_000


def truth(ranks: int, steps: int) -> dict[str, object]:
    """Where the faults are, for any size."""
    first = (ranks * 7 // 10) // _RACK * _RACK
    return {
        "slow_rank": {"rank": ranks // 3, "stage": "fetch_wait", "factor": 2.5},
        "slow_step": {"step": steps * 6 // 10, "seconds": 0.4},
        "slow_group": {"ranks": list(range(first, first + _RACK)), "stage": "forward", "factor": 1.08},
    }


def make(directory: Path, ranks: int, steps: int) -> None:
    """One file of rows per rank."""
    directory.mkdir(parents=True, exist_ok=True)
    expected = truth(ranks, steps)
    own = np.empty((ranks, steps), np.int32)
    for rank in range(ranks):
        own[rank] = sum(_stages(rank, steps, expected).values())
    slowest = own.max(axis=0)
    starts = _START_US + np.concatenate(([0], np.cumsum(slowest[:-1], dtype=np.int64)))
    for rank in range(ranks):
        table = np.zeros((steps, len(COLUMNS)), np.int64)
        for stage, us in _stages(rank, steps, expected).items():
            table[:, 4 + STAGES.index(stage)] = us
        table[:, 4 + STAGES.index("comm")] = slowest - own[rank]
        table[:, COLUMNS.index("epoch")] = 0
        table[:, COLUMNS.index("step")] = np.arange(steps)
        table[:, COLUMNS.index("start_us")] = starts
        table[:, COLUMNS.index("wall_us")] = slowest
        table[:, COLUMNS.index("read_bytes")] = 1 << 20
        table[:, COLUMNS.index("flags")] = LEARNS | AUTOMATIC
        facts = {
            "run": "synthetic",
            "rank": rank,
            "world_size": ranks,
            "attempt": 0,
            "host": f"node{rank // _NODE:05d}",
        }
        (directory / f"trace-{rank:08d}.rows").write_bytes(pack_rows(table, facts))
    (directory / "truth.json").write_text(json.dumps(expected, indent=1), encoding="utf-8")


def _stages(rank: int, steps: int, expected: dict[str, object]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rank)
    out = {
        stage: (us * (1 + _NOISE * rng.standard_normal(steps, np.float32))).astype(np.int64)
        for stage, us in _USUAL_US.items()
    }
    one, step, rack = (dict(expected[k]) for k in ("slow_rank", "slow_step", "slow_group"))  # type: ignore[call-overload]
    if rank == one["rank"]:
        out[one["stage"]] = (out[one["stage"]] * one["factor"]).astype(np.int64)
    if rank in rack["ranks"]:
        out[rack["stage"]] = (out[rack["stage"]] * rack["factor"]).astype(np.int64)
    out["fetch_wait"][step["step"]] += int(step["seconds"] * 1e6)
    return out


def measure(directory: Path, dask: str | None) -> bytes:
    command = [sys.executable, "-m", "dftracer", "fleet", str(directory), "--json", "-q"]
    command += ["--dask", dask] if dask else []
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, check=True)
    wall, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = used.ru_maxrss
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    size = sum(f.stat().st_size for f in directory.glob("*.rows"))
    found = json.loads(done.stdout)
    rows = found["ranks"] * found["steps"]
    size_text = f"{size / 1e6:.0f} MB ({size / rows:.1f} bytes a step)"
    print(f"{found['ranks']} ranks x {found['steps']} steps, {size_text}")
    cores = len(os.sched_getaffinity(0))
    print(f"{wall:.1f} s, {cpu:.1f} s of CPU, {peak / 1024:.0f} MB, {cores} cores")
    for key in ("slow_ranks", "slow_steps", "slow_groups"):
        print(
            key,
            [{**each, "ranks": _short(each["ranks"])} if "ranks" in each else each for each in found[key]],
        )
    return done.stdout


def on_a_cluster(directory: Path) -> None:
    """Time it here and on two workers; the answers must be the same to the byte."""
    distributed: Any = importlib.import_module("distributed")  # an extra
    alone = measure(directory, None)
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        before, began = client.run(time.process_time), time.process_time()
        shared = measure(directory, cluster.scheduler_address)
        scheduler_s = time.process_time() - began
        used = client.run(time.process_time)
        peaks = client.run(lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    workers = [f"{used[w] - before[w]:.1f} s of CPU, {peaks[w]} MB" for w in peaks]
    print(f"workers: {'; '.join(workers)}; scheduler: {scheduler_s:.1f} s of CPU")
    print("the same bytes" if shared == alone else "NOT the same bytes")
    if shared != alone:
        sys.exit(1)


def _short(ranks: list[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if ranks == list(range(ranks[0], ranks[-1] + 1)) else str(ranks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["make", "time", "cluster"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--dask")
    args = parser.parse_args()
    if args.what == "make":
        make(args.directory, args.ranks, args.steps)
    elif args.what == "cluster":
        on_a_cluster(args.directory)
    else:
        measure(args.directory, args.dask)


if __name__ == "__main__":
    main()
