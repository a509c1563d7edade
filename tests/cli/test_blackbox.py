"""The black box: a bounded trace of a long job, with detail around anomalies, readable whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dftracer.load.rows import read_rows
from dftracer.testing import read
from support.commands import json_of
from support.process import clean_environment, recover

MEGABYTES = 1
# Steps of a known number, each with many events; it says after which it is.
PROGRAM = """
import os, sys, time
from dftracer.python import ai
steps, events, nap = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
slow_from, fails = int(os.environ.get("SLOW_FROM", steps)), "FAILS" in os.environ
for i in ai.dataloader.fetch.iter(range(steps)):
    with ai.compute.backward:
        for k in range(events):
            os.access(f"/tmp/of-{i * 31 % 977}-{k * 7 % 977}", os.R_OK)
        time.sleep(nap * (1.3 if i >= slow_from else 1))
    if i % 10 == 9:
        print(i, flush=True)
if fails:
    raise RuntimeError("no more batches")
"""


def command(folder: Path, *arguments: object) -> list[str]:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    tool = [sys.executable, "-m", "dftracer.cli", "run", "-q", "--blackbox", "-o", str(folder / "traces")]
    return [*tool, "--", sys.executable, str(program), *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    kept = clean_environment()
    return {**kept, "DFTRACER_BLACKBOX_MB": str(MEGABYTES), **more}


@contextmanager
def running(folder: Path, *arguments: object, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command(folder, *arguments), env=environment(**env), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= step:
            return
    raise AssertionError("the program ended early")


def detail_bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in (folder / "traces").glob("*.pfw*"))


def steps_in(folder: Path) -> set[int]:
    """The steps of which there is detail, from 0."""
    return {e.args["count"] - 1 for e in read(folder / "traces").events if e.name == "fetch.block"}


def kept(folder: Path) -> list[dict[str, Any]]:
    return [e.args for e in read(folder / "traces").events if e.cat == "dftracer" and e.name == "kept"]


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_detail_is_bounded_and_every_step_has_a_row(tmp_path: Path) -> None:
    steps = 400
    ran = subprocess.run(
        command(tmp_path, steps, 400, 0), env=environment(FAILS="1"), check=False, timeout=300
    )
    assert ran.returncode == 1
    assert 0.4 * (MEGABYTES << 20) < detail_bytes(tmp_path) <= MEGABYTES << 20
    assert len(read_rows([tmp_path / "traces"])) == steps
    there = steps_in(tmp_path)
    assert 0 not in there
    assert {steps - 2, steps - 1} <= there, "an exception is explained by the newest detail"
    result = json_of("report", tmp_path / "traces", "-q")
    assert "RuntimeError" in json.dumps(result["ended"])
    assert result["startup"]["share"] < 0.5, "what is gone is not start-up"


def kill_and_read(folder: Path, after: int) -> None:
    with running(folder, 100_000, 300, 0.001) as process:
        wait_for(process, after)
        os.kill(process.pid, signal.SIGKILL)  # `-q`: the command has become the program
        process.wait()
    assert detail_bytes(folder) <= MEGABYTES << 20
    recover(folder / "traces")
    rows = read_rows([folder / "traces"])["start_us"].to_list()
    assert rows == sorted(set(rows))
    assert rows, "rows are written as often as events"
    assert max(steps_in(folder)) >= after - 1, "the step that says so has not ended"


@pytest.mark.parametrize("after", [150, 400])
def test_it_is_readable_after_a_kill(tmp_path: Path, after: int) -> None:
    kill_and_read(tmp_path, after)


@pytest.mark.thorough
def test_it_is_readable_after_every_kill(tmp_path: Path) -> None:
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        kill_and_read(folder, 100 + 7 * (number % 50))


@pytest.mark.thorough
def test_the_steps_around_a_slowdown_are_kept(tmp_path: Path) -> None:
    slow = 200
    subprocess.run(
        command(tmp_path, 900, 200, 0.03), env=environment(SLOW_FROM=str(slow)), check=True, timeout=300
    )
    found = [k["step"] for k in kept(tmp_path) if k["reason"] == "slow_step"]
    assert any(slow <= step < slow + 10 for step in found), found
    there = steps_in(tmp_path)
    assert {slow + 1, slow + 5} <= there
    assert 10 not in there


def trigger(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "trigger", str(folder / "traces"), *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_all_ranks_keep_the_same_steps(tmp_path: Path) -> None:
    ranks = {"WORLD_SIZE": "2"}
    with (
        running(tmp_path, 100_000, 20, 0.02, RANK="0", **ranks) as one,
        running(tmp_path, 100_000, 20, 0.02, RANK="1", **ranks) as two,
    ):
        wait_for(one, 20)
        wait_for(two, 20)
        until(lambda: len(list((tmp_path / "traces").glob("*.rows"))) == 2)
        asked = trigger(tmp_path, "--steps", "7", "--json")
        assert asked.returncode == 0, asked.stderr
        result = json.loads(asked.stdout)
        assert (result["processes"], result["steps"]) == (2, 7)
        assert result["first_step"] > 20

        def noted() -> int:
            return sum(k["reason"] == "trigger" for k in kept(tmp_path))

        wait_for(one, result["first_step"] + 7)
        wait_for(two, result["first_step"] + 7)
        until(lambda: noted() >= 2)
    steps = {k["step"] for k in kept(tmp_path) if k["reason"] == "trigger"}
    assert steps == {result["first_step"] - 1}


def test_a_trigger_without_a_job(tmp_path: Path) -> None:
    assert trigger(tmp_path).returncode == 2
    (tmp_path / "traces").mkdir()
    asked = trigger(tmp_path)
    assert asked.returncode == 1
    assert "no running process uses --blackbox" in asked.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_only_the_owner_may_ask(tmp_path: Path) -> None:
    with running(tmp_path, 100_000, 20, 0.005) as process:
        wait_for(process, 20)
        foreign = tmp_path / "traces" / "dftracer.trigger"
        foreign.write_text("dftracer-trigger 1 0 5\n")
        os.chown(foreign, 12345, 12345)
        rows = len(read_rows([tmp_path / "traces"]))
        until(lambda: len(read_rows([tmp_path / "traces"])) > rows + 500)
        assert [k for k in kept(tmp_path) if k["reason"] == "trigger"] == []
