"""Comparisons of programs that really ran, at the same time on the same machine.

`make test` judges runs that were recorded on a machine with nothing else to do; what a busy one makes of them
depends on what it does, so the same runs anew are a part of `make test-all`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer.analyze import analyze
from dftracer.compare import Side, compare, side_of
from dftracer.report.contents import comparable
from support.noisy_runs import PROGRAM
from support.process import clean_environment

RECORDED = Path(__file__).parents[1] / "data" / "compared_runs"
# Preprocessing takes so many times as long.
RUNS = {"equal-0": 1.0, "equal-1": 1.0, "equal-2": 1.0, "equal-3": 1.0, "slower-0": 3.0, "slower-1": 3.0}


def _run(folder: Path) -> None:
    """All at once: they sleep, so they do not disturb each other."""
    (folder / "train.py").write_text(PROGRAM)
    started = []
    for name, slower in RUNS.items():
        command = [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", name, "--"]
        command += [sys.executable, "train.py", str(slower)]
        started.append(subprocess.Popen(command, cwd=folder, env=clean_environment(DFTRACER_DISABLE_IO="1")))
    assert [process.wait(120) for process in started] == [0] * len(RUNS)


@pytest.fixture(
    scope="module",
    params=["recorded", pytest.param("run", marks=pytest.mark.alone)],
)
def sides(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Side]:
    folder = RECORDED
    if request.param == "run":
        folder = tmp_path_factory.mktemp("real")
        _run(folder)
    return {name: side_of(name, comparable(analyze(folder / name))) for name in RUNS}


def test_equal_programs_do_not_differ(sides: dict[str, Side]) -> None:
    for slower in set(RUNS.values()):
        equal = [sides[name] for name in RUNS if RUNS[name] == slower]
        assert [
            c.changed for a, b in itertools.combinations(equal, 2) if (c := compare(a, b)).difference
        ] == []


def test_the_slower_stage_of_a_program_is_named(sides: dict[str, Side]) -> None:
    for a, b in itertools.combinations(RUNS, 2):
        if RUNS[a] != RUNS[b]:
            assert compare(sides[a], sides[b]).changed == ["preprocess"]
