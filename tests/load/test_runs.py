"""Runs in one directory are kept apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.load import Trace
from dftracer.report import document, head, markdown
from dftracer.testing.synthetic import Process
from support.commands import dftracer, json_of

MS = 1000
HOUR = 3_600_000_000
EPOCH_US = 1_760_000_000_000_000


def _process(pid: int, start: int, run: str | None, steps: int = 20, ms: int = 10, **more: Any) -> Process:
    record = {"value": run, "start": EPOCH_US + start, "command": f"train.py {run}", "host": "node0"}
    extra = {"launcher": "torchrun", "attempt": 0, "version": "3.0.0", "python": "3.11.2"}
    p = Process(pid, start=start, run=None if run is None else {**record, **extra}, **more)
    t = start
    for i in range(steps):
        p.span("compute", "forward", t + MS, (ms - 1) * MS)
        t = p.step(i + 1, t, MS, (ms - 1) * MS, step=i)
    return p


def test_the_newest_run_is_reported_and_the_others_are_named(tmp_path: Path) -> None:
    _process(10, 0, "first", rank=0).write(tmp_path, "a")
    left = Process(11, ppid=10, run={"value": "first", "start": EPOCH_US})
    left.span("data", "item", 5, 100)
    left.write(tmp_path, "left")
    _process(10, HOUR, "second", steps=30, rank=0).write(tmp_path, "b")
    a = analyze(tmp_path)
    result = document(a)
    assert result["run"]["id"] == "second"
    assert result["run"]["command"] == "train.py second"
    assert (result["run"]["launcher"], result["run"]["attempt"], result["run"]["version"]) == (
        "torchrun",
        0,
        "3.0.0",
    )
    assert result["run"]["start"] == EPOCH_US + HOUR
    assert [r["id"] for r in result["run"]["others"]] == ["first"]
    assert result["trace"]["processes"] == 1
    assert len(result["ledger"]["steps"]) == 30
    assert (
        "1 other run is in the same directory and was left out: first (2025-10-09 08:53:20 UTC)"
        in markdown(a)
    )
    assert len(head(a)) == 3

    first = document(analyze(tmp_path, run="first"))
    assert (first["run"]["id"], first["trace"]["processes"], len(first["ledger"]["steps"])) == (
        "first",
        2,
        20,
    )
    assert document(analyze(tmp_path, run="all"))["trace"]["processes"] == 3
    assert [r.id for r in Trace(tmp_path).runs] == ["second", "first"]
    with pytest.raises(FileNotFoundError, match="no run third among the files; runs: second, first"):
        analyze(tmp_path, run="third")


def test_a_launcher_and_its_ranks_are_one_run_that_knows_both(tmp_path: Path) -> None:
    launching = {"value": "one", "start": EPOCH_US, "command": "torchrun train.py", "launcher": ""}
    Process(9, run=launching).write(tmp_path, "agent")
    for rank in range(2):
        p = _process(10 + rank, MS, "one", rank=rank, world_size=2)
        assert p.run is not None
        p.run["world_size"] = 2
        p.write(tmp_path, f"r{rank}")
    result = document(analyze(tmp_path))["run"]
    assert (result["command"], result["launcher"], result["world_size"]) == (
        "torchrun train.py",
        "torchrun",
        2,
    )


def test_the_command_chooses_the_run(tmp_path: Path) -> None:
    _process(10, 0, "first", rank=0).write(tmp_path, "a")
    _process(10, HOUR, "second", rank=0).write(tmp_path, "b")
    for more, expected in (([], "second"), (["--run", "first"], "first"), (["--run", "all"], "first")):
        assert json_of("report", tmp_path, *more)["run"]["id"] == expected
    ran = dftracer("report", tmp_path)
    assert "1 other run is in the same directory and was left out: first" in " ".join(ran.stdout.split())
    ran = dftracer("report", tmp_path, "--run", "x")
    assert ran.returncode == 2
    assert "no run x among the files" in ran.stderr


def test_files_without_a_record_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        _process(10 + rank, rank * HOUR, None, rank=rank, world_size=2).write(tmp_path, f"r{rank}")
    result = document(analyze(tmp_path))
    assert result["run"]["id"] is None
    assert result["run"]["others"] == []
    assert result["trace"]["ranks"] == 2


def test_ranks_that_do_not_know_of_each_other_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        p = _process(10 + rank, rank * 50 * MS, f"task{rank}", rank=rank, world_size=2)
        p.write(tmp_path, f"r{rank}")
    result = document(analyze(tmp_path))
    assert result["trace"]["ranks"] == 2
    assert result["run"]["others"] == []
    # The same ranks twice, or another world, is another run.
    _process(30, 60 * MS, "other", rank=1, world_size=2).write(tmp_path, "again")
    result = document(analyze(tmp_path))
    assert (result["run"]["id"], result["trace"]["ranks"], len(result["run"]["others"])) == ("other", 1, 1)


def test_older_files_beside_a_run_with_a_record_are_another_run(tmp_path: Path) -> None:
    _process(10, 0, None, rank=0).write(tmp_path, "old")
    _process(10, HOUR, "new", rank=0).write(tmp_path, "new")
    result = document(analyze(tmp_path))
    assert result["run"]["id"] == "new"
    assert [r["id"] for r in result["run"]["others"]] == [None]
