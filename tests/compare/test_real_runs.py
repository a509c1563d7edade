"""Comparisons of programs that really ran, at the same time on the same machine."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dftracer.analyze import analyze
from dftracer.compare import Side, compare, side_of
from dftracer.report.contents import comparable
from support.noisy_runs import PROGRAM
from support.process import clean_environment

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Side]]:
    """Four equal runs and two with preprocessing three times as long; sleeping, so they do not disturb."""
    folder = tmp_path_factory.mktemp("real")
    file = folder / "train.py"
    file.write_text(PROGRAM)
    wanted = [("1.0", i) for i in range(4)] + [("3.0", i) for i in range(2)]
    started = []
    for slower, number in wanted:
        out = folder / f"{slower}-{number}"
        command = [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(out), "--"]
        started.append(
            (
                slower,
                out,
                subprocess.Popen([*command, sys.executable, str(file), slower], env=clean_environment()),
            )
        )
    found: dict[str, list[Side]] = {"1.0": [], "3.0": []}
    for slower, out, process in started:
        assert process.wait(120) == 0
        found[slower].append(side_of(out.name, comparable(analyze(out))))
    return found


def test_equal_programs_do_not_differ(sides: dict[str, list[Side]]) -> None:
    """Of six pairs one may: a busy machine makes equal programs differ."""
    pairs = [compare(a, b) for a, b in itertools.combinations(sides["1.0"], 2)]
    assert sum(c.difference for c in pairs) <= 1, [c.changed for c in pairs]


def test_the_slower_stage_of_a_program_is_named(sides: dict[str, list[Side]]) -> None:
    """A machine so busy that one run is disturbed from end to end may hide it from that run's pairs."""
    named = [compare(a, b).changed[:1] for a, b in itertools.product(sides["1.0"], sides["3.0"])]
    assert sum(n == ["preprocess"] for n in named) >= 4, named
    together = compare(_joined(sides["1.0"]), _joined(sides["3.0"]))
    assert "preprocess" in together.changed


def _joined(sides: list[Side]) -> Side:
    """The steps of several runs as one."""
    wall = np.concatenate([s.wall for s in sides])
    stages = {k: np.concatenate([s.stages[k] for s in sides]) for k in sides[0].stages}
    return replace(sides[0], wall=wall, stages=stages)
