"""`python -m bench.compare [--pairs N]`: false alarms and power of `dftracer compare` by the number of steps.

Steps are made up, their noise is not gentle: 5 % spread, one step in thirty much longer, slow steps in a row,
drift, or all stages slow at once. `--programs N` also runs a real program N times and compares all pairs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from dftracer.analyze import analyze
from dftracer.compare import Side, compare, side_of
from dftracer.report.document import comparable
from support.noisy_runs import KINDS, PROGRAM, noisy_run

STEPS = (20, 30, 60, 100, 300, 1000)
SLOWER = {"preprocess": 1.1}  # 18 % of the step, so the step grows by 1.8 %


def made_up(pairs: int) -> None:
    print("| noise | " + " | ".join(f"{n} steps" for n in STEPS) + " |")
    print("|---|" + "---:|" * len(STEPS))
    for kind in KINDS:
        cells = []
        for n in STEPS:
            alarms = found = 0
            for i in range(pairs):
                a, b = noisy_run(2 * i, n, kind), noisy_run(2 * i + 1, n, kind)
                slow = noisy_run(2 * i + 1, n, kind, SLOWER)
                alarms += compare(a, b).difference
                found += "preprocess" in compare(a, slow).changed
            cells.append(f"{100 * alarms / pairs:.0f} % / {100 * found / pairs:.0f} %")
        print(f"| {kind.replace('_', ' ')} | " + " | ".join(cells) + " |", flush=True)


def programs(runs: int) -> None:
    """One after another, as users run them: the machine may change between two of them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(PROGRAM)
        sides = {slow: [_ran(file, i, slow) for i in range(runs)] for slow in ("1.0", "1.1")}
    pairs = list(itertools.combinations(sides["1.0"], 2))
    alarms = [compare(a, b).changed for a, b in pairs if compare(a, b).difference]
    across = [compare(a, b).changed for a in sides["1.0"] for b in sides["1.1"]]
    print(f"{len(pairs)} pairs of equal programs: {len(alarms)} alarms {alarms}")
    print(f"{len(across)} pairs, one 10 % slower: found in {sum('preprocess' in c for c in across)}")


def _ran(file: Path, number: int, slower: str) -> Side:
    out = file.parent / f"{slower}-{number}"
    env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    command = [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(out), "--"]
    subprocess.run([*command, sys.executable, str(file), slower], check=True, env=env, capture_output=True)
    return side_of(out.name, comparable(analyze(out)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--programs", type=int, default=0)
    args = parser.parse_args()
    if args.pairs:
        made_up(args.pairs)
    if args.programs:
        programs(args.programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
