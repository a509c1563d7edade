"""`python -m bench.link [--rounds N] [--large]`: the whole command on two ranks, best of the rounds."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.link.generate import record, repeat

_MB = 1024


def run(directory: Path, out: Path, more: list[str]) -> dict[str, Any]:
    """One run of the command: wall and CPU seconds, and the peak of its largest process."""
    command = [sys.executable, "-m", "dftracer.cli", "link", str(directory), "-o", str(out), "--json", *more]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
        # Its own usage and that of the processes it waited for.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    ranks = report["ranks"]
    return {
        "ranks": len(ranks),
        "nodes": ranks[0]["et_nodes"],
        "edges": sum(ranks[0]["edges"].values()),
        "coverage": min(r["coverage"] for r in ranks),
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "rss_mb": usage.ru_maxrss / _MB,
    }


def measure(directory: Path, rounds: int, more: list[str]) -> dict[str, Any]:
    """The best of several runs."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as out:
        return min((run(directory, Path(out), more) for _ in range(rounds)), key=lambda r: float(r["wall_s"]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.link", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="also 1 M nodes a rank (2 GB of JSON)")
    parser.add_argument("--directory", type=Path, help="a directory that is there already")
    parser.add_argument("--scratch", help="where to make the directories")
    args = parser.parse_args()
    print(
        "| ranks | nodes a rank | edges a rank | joined | wall s | CPU s | us/node | peak MB of a process |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        base = Path(folder)
        if args.directory:
            _print(measure(args.directory, args.rounds, []))
            return 0
        real = record(base / "98k", 40, 18)
        _print(measure(real, args.rounds, []))
        one = base / "one"
        one.mkdir()
        for name in ("torch_et_0.json", "kineto_trace_0.json"):
            (one / name).symlink_to(real / name)
        _print(measure(one, args.rounds, []))
        small = record(base / "10k", 40, 2)
        for times in (1, 10, 100) if args.large else (1, 10):
            _print(measure(repeat(small, base / f"x{times}", times), args.rounds, ["--workers", "2"]))
    return 0


def _print(r: dict[str, Any]) -> None:
    each = r["wall_s"] / r["nodes"] * 1e6
    print(
        f"| {r['ranks']} | {r['nodes']:,} | {r['edges']:,} | {r['coverage']:.2%} | {r['wall_s']:.2f} |"
        f" {r['cpu_s']:.2f} | {each:.1f} | {r['rss_mb']:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
