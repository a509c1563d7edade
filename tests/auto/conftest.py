"""The programs of this folder, run once each as they stand and as twins annotated by hand.

A twin is traced automatically as well, and nothing gives way: its trace holds what was said and what was
deduced of the same run, so that no noise of the machine lies between the two.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing import Capture, read
from support.process import clean_environment

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"

# Name of the run -> program and its arguments.
RUNS: dict[str, list[str]] = {
    "plain": ["plain"],
    "amp": ["amp"],
    "accumulation": ["accumulation"],
    "gan": ["gan"],
    "evaluation": ["evaluation"],
    "iterable": ["iterable"],
    "workers-fork": ["workers", "fork", "2"],
    "workers-spawn": ["workers", "spawn", "1"],
    "workers-forkserver": ["workers", "forkserver", "1"],
    "no_loader": ["no_loader"],
    "look_ahead": ["look_ahead"],
    "compiled": ["compiled"],
    "ddp": ["ddp", "{place}"],
    "fsdp": ["fsdp", "{place}"],
    "huggingface": ["huggingface", "{place}"],
    "lightning_auto": ["lightning_auto"],
    "lightning_manual": ["lightning_manual"],
    "exception": ["exception"],
    # ZeRO's stage, batches accumulated, ranks.
    "zero-0": ["zero", "0", "1", "1", "{place}"],
    "zero-1-accumulation": ["zero", "1", "3", "1", "{place}"],
    "zero-2-ranks": ["zero", "2", "1", "2", "{place}"],
    "zero-3-sub-groups": ["zero", "3", "2", "1", "{place}"],
}
# Program -> module that it imports and that may be missing; it is imported once, for all that come after.
NEEDS = {"zero": "deepspeed"}
AT_ONCE = 4


@dataclass
class Outcome:
    """What a program said and left."""

    code: int
    out: str
    err: str
    directory: Path

    @cached_property
    def events(self) -> Capture:
        return read(self.directory)

    @cached_property
    def report(self) -> dict[str, Any]:
        return _report(self.directory)

    def half(self, deduced: bool) -> dict[str, Any]:
        """The report on the automatic half of a twin's trace, or on the other."""
        half = self.directory.with_name(f"{self.directory.name}+{'deduced' if deduced else 'said'}")
        if not half.exists():
            half.mkdir()
            for file in self.directory.glob("*.pfw.gz"):
                with gzip.open(file, "rb") as lines, gzip.open(half / file.name, "wb") as out:
                    out.writelines(line for line in lines if _is_of(line, deduced))
        return _report(half)


_WORDS = re.compile(rb'"cat":"(compute|dataloader|data|device|pipeline|checkpoint|comm)"')


def _is_of(line: bytes, deduced: bool) -> bool:
    """What is seen below Python belongs to both."""
    below = b'"below_python":1' in line
    return below or not _WORDS.search(line) or (b'"auto":1' in line) is deduced


def _report(directory: Path) -> dict[str, Any]:
    from dftracer.analyze import analyze
    from dftracer.report import document

    report: dict[str, Any] = json.loads(json.dumps(document(analyze(str(directory)))))
    return report


def _missing(run: str) -> bool:
    module = NEEDS.get(RUNS[run][0])
    return module is not None and importlib.util.find_spec(module) is None


class Nursery:
    """Starts all programs at once and hands out their outcomes as they come."""

    def __init__(self, directory: Path, wanted: list[tuple[str, bool]]) -> None:
        env = clean_environment()
        env.update(
            DFTRACER_ENABLE="1",
            DFTRACER_AUTO="torch",
            DFTRACER_DISABLE_IO="1",
            DFTRACER_LOG_FILE=str(directory / "nursery"),
            PYTHONPATH=str(HERE / "parts"),
            OMP_NUM_THREADS="1",
        )
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py"), str(AT_ONCE)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._directory = directory
        self._outcomes: dict[str, Outcome] = {}
        assert self._process.stdin is not None
        for run, by_hand in wanted:
            program, *args = RUNS[run]
            name = f"{run}{'+hand' if by_hand else ''}"
            (directory / name).mkdir()
            task = {
                "name": name,
                "file": str(PROGRAMS / ("by_hand" if by_hand else "") / f"{program}.py"),
                "args": [arg.format(place=directory / f"{name}.place") for arg in args],
                "trace": str(directory / name / "trace"),
                "both": by_hand,
                "needs": NEEDS.get(program),
            }
            self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.close()

    def outcome(self, run: str, by_hand: bool = False) -> Outcome:
        """Of one run, waiting for it if need be."""
        if _missing(run):
            pytest.skip(f"no {NEEDS[RUNS[run][0]]} here")
        name = f"{run}{'+hand' if by_hand else ''}"
        assert self._process.stdout is not None
        while name not in self._outcomes:
            line = self._process.stdout.readline()
            assert line, f"the nursery ended before {name}"
            result = json.loads(line)
            self._outcomes[result["name"]] = Outcome(
                result["code"], result["out"], result["err"], self._directory / result["name"]
            )
        return self._outcomes[name]

    def close(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as rest:
            rest.read()
        self._process.wait()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Nursery]:
    """All runs that the collected tests ask for."""
    asked = {
        item.callspec.params["run"]
        for item in request.session.items
        if hasattr(item, "callspec") and "run" in item.callspec.params
    }
    wanted = [
        (run, by_hand) for run in RUNS if run in asked and not _missing(run) for by_hand in (False, True)
    ]
    found = Nursery(tmp_path_factory.mktemp("auto"), wanted)
    yield found
    found.close()
