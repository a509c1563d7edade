"""How long the command line takes to start, beside an interpreter that does nothing; fresh processes in turn.

`python -m bench.subjects.start` counts instructions instead, which hardly differ from run to run.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.instructions import find_valgrind
from bench.results import Goal, Row
from bench.rounds import Bench, environment

__all__ = ["count", "rows"]

_NOTHING = ("-c", "pass")


def _commands(python: Path) -> dict[str, list[str]]:
    ours = str(python.with_name("dftracer"))
    nothing = [str(python), *_NOTHING]
    return {"bare": nothing, "run": [ours, "run", "-q", "--", *nothing], "help": [ours, "--help"]}


def _once(command: Sequence[str], env: dict[str, str], folder: Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1e3


def rows(bench: Bench) -> list[Row]:
    env = environment(bench, traced=False)
    del env["DFTRACER_ENABLE"]
    times: dict[str, list[float]] = {}
    commands = _commands(bench.ours)
    for round_ in range(11 if bench.quick else 41):
        for name, command in commands.items():
            took = _once(command, env, bench.directory)
            if round_:  # the first one fills the page cache and writes bytecode
                times.setdefault(name, []).append(took)
    bare = statistics.median(times["bare"])
    result = []
    for name, what, times_bare in (
        ("run", "`dftracer run -q -- python -c pass`, more than `python -c pass`", 3.5),
        ("help", "`dftracer --help`, more than `python -c pass`", 6.0),
    ):
        more = statistics.median(
            mine - nothing for mine, nothing in zip(times[name], times["bare"], strict=True)
        )
        row = Row("start", what, "ms", more, baselines={"`python -c pass`": bare})
        row.goals.append(Goal(f"at most {times_bare:g} times a bare interpreter", more / bare, times_bare))
        result.append(row)
    return result


def count(python: Path) -> dict[str, float]:
    """Millions of instructions more than the bare interpreters take, of all processes of a command."""
    valgrind = find_valgrind()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DFTRACER_", "PYTHON"))}
    found = {}
    commands = _commands(python)
    with tempfile.TemporaryDirectory(prefix="start-") as name:
        folder = Path(name)
        env = clean | {"PYTHONHASHSEED": "0"}
        for command in commands.values():  # bytecode
            _once(command, env, folder)
        for case, command in commands.items():
            out = folder / f"{case}.%p"
            # A program that replaces itself by another one writes what it has counted before.
            parts = ["--dump-before=execv", "--dump-before=execve"]
            counted = [valgrind, "--quiet", "--tool=callgrind", "--trace-children=yes", *parts]
            counted.append(f"--callgrind-out-file={out}")
            subprocess.run([*counted, *command], env=env, cwd=folder, check=True, capture_output=True)
            totals = [
                re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
                for dump in folder.glob(f"{case}.*")
            ]
            found[case] = sum(int(total[1]) for total in totals if total) / 1e6
    bare = found.pop("bare")
    # `run` replaces its own interpreter by the program's.
    return {case: total - bare * (2 if case == "run" else 1) for case, total in found.items()}


if __name__ == "__main__":
    for case, millions in count(Path(sys.executable)).items():
        sys.stdout.write(f"{case}: {millions:.1f} million instructions more than bare interpreters\n")
