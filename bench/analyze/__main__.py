"""`python -m bench.analyze [--events N ...]`: CPU, wall time and
memory of `dftracer report`, whole command, beside a program that only reads the same files.
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dftracer.testing.synthetic import training_run


def run(command: list[str]) -> tuple[float, float, float]:
    """CPU seconds (children included), wall seconds and the peak RSS in MB of a command."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss / 1024


MOST_MB = 1000
_READ = """
import sys
from pathlib import Path
from dftracer.load._scan import Scanner
for file in Path(sys.argv[1]).glob("*.pfw.gz"):
    for chunk in Scanner(file, 2, 8 << 20):
        pass
"""
_FORWARD = (
    '{"id":%d,"name":"forward","cat":"compute","pid":7,"tid":7,"ts":%d,"dur":5,"ph":"X",'
    '"args":{"hhash":"6882804a826580cd","p_idx":-1,"level":1}}\n'
)


def repeated(counts: list[int]) -> int:
    """The memory of a report of very many events in a small file; 1 if it is too much."""
    block = "".join(_FORWARD % (i, 1_760_000_000_000_000 + i) for i in range(100)) * 120
    member = gzip.compress(block.encode(), 9)
    most = 0.0
    print("| events | file MB | CPU s | wall s | peak RSS MB |\n|---:|---:|---:|---:|---:|")
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "many.pfw.gz"
            file.write_bytes(member * (count // 12_000))
            cpu, wall, rss = run([sys.executable, "-m", "dftracer.cli", "report", str(file), "--json", "-q"])
            print(
                f"| {count} | {file.stat().st_size / 1e6:.1f} | {cpu:.1f} | {wall:.1f} | {rss:.0f} |",
                flush=True,
            )
            most = max(most, rss)
    return 0 if most <= MOST_MB else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.analyze", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[20_000, 1_000_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dask", action="store_true", help="also on a local Dask cluster")
    parser.add_argument(
        "--repeated",
        type=int,
        nargs="+",
        metavar="N",
        help="instead: N forward passes that a file of some megabytes unpacks to; fails above 1 GB",
    )
    args = parser.parse_args()
    if args.repeated:
        return repeated(args.repeated)
    print("| events | how | CPU s | of reading alone | wall s | peak RSS MB | HTML bytes |")
    print("|---:|---|---:|---:|---:|---:|---:|")
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
                    "-f",
                ]
                page.unlink(missing_ok=True)
                reading = [sys.executable, "-c", _READ, str(made.directory)]
                rounds = [(run(reading), run([*command, *more])) for _ in range(args.rounds)]
                alone = min(cpu for (cpu, _, _), _ in rounds)
                cpu, wall, rss = min(figures for _, figures in rounds)
                print(
                    f"| {made.events} | {how} | {cpu:.2f} | {cpu / alone:.1f} | {wall:.2f} | {rss:.0f}"
                    f" | {page.stat().st_size} |",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
