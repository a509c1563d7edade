"""`python -m bench.analyze [--events N ...]`: CPU, wall time and
memory of `dftracer report`, whole command.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dftracer.load.synthetic import training_run


def run(command: list[str]) -> tuple[float, float, float]:
    """CPU seconds (children included), wall seconds and the peak RSS in MB of a command."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.analyze", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[20_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dask", action="store_true", help="also on a local Dask cluster")
    args = parser.parse_args()
    print("| events | how | CPU s | wall s | peak RSS MB | HTML bytes |\n|---:|---|---:|---:|---:|---:|")
    for events in args.events:
        with tempfile.TemporaryDirectory() as folder:
            made = training_run(Path(folder) / "run", events=events, ranks=4)
            page = Path(folder) / "r.html"
            for how, more in (
                ("in process", []),
                *([("Dask, local", ["--dask", "local"])] if args.dask else []),
            ):
                command = [
                    sys.executable,
                    "-m",
                    "dftracer.cli",
                    "report",
                    str(made.directory),
                    "--html",
                    str(page),
                    "-q",
                ]
                cpu, wall, rss = min(run([*command, *more]) for _ in range(args.rounds))
                print(
                    f"| {made.events} | {how} | {cpu:.2f} | {wall:.2f} | {rss:.0f} | {page.stat().st_size} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
