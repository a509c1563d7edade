"""Import time of `dftracer.python` with tracing off, in fresh processes taken in turn."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

from bench.results import Goal, Row
from bench.rounds import Bench, environment

__all__ = ["rows"]

_PROGRAM = """
import sys, time
sys.path.extend(sys.argv[1:])
start = time.perf_counter()
import dftracer.python
print(time.perf_counter() - start)
"""


def _once(bench: Bench, python: Path, extra_path: list[str]) -> float:
    done = subprocess.run(
        [python, "-c", _PROGRAM, *extra_path],
        env=environment(bench, traced=False),
        cwd=bench.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1]) * 1e3


def _torch_location(bench: Bench) -> str | None:
    """Where our environment keeps torch; the rival's is given the same one, behind its own packages."""
    program = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    done = subprocess.run([bench.ours, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    origin = done.stdout.strip()
    return str(Path(origin).parent.parent) if origin else None


def _row(bench: Bench, what: str, rounds: int, rival_path: list[str]) -> Row:
    times: dict[str, list[float]] = {who: [] for who in bench.interpreters()}
    for who, python in bench.interpreters().items():
        _once(bench, python, rival_path if who == "rival" else [])  # byte code and page cache
    for _ in range(rounds):
        for who, python in bench.interpreters().items():
            times[who].append(_once(bench, python, rival_path if who == "rival" else []))
    row = Row("import", what, "ms", statistics.median(times["ours"]))
    if "rival" in times:
        row.rival = statistics.median(times["rival"])
        row.ratio = statistics.median(
            theirs / mine for theirs, mine in zip(times["rival"], times["ours"], strict=True)
        )
        row.goals.append(Goal("at most 1/6 of the rival's", 1 / row.ratio, 1 / 6))
    return row


def rows(bench: Bench) -> list[Row]:
    rounds = 5 if bench.quick else 15
    result = [_row(bench, "import of `dftracer.python`, tracing off", rounds, [])]
    torch = _torch_location(bench)
    if torch and bench.rival:
        result.append(_row(bench, "import of `dftracer.python`, tracing off, torch installed", 3, [torch]))
    return result
