"""`dftracer top` beside real programs: running, killed and finished, of two ranks."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer import _core
from dftracer.live import Recent
from dftracer.report.snapshot import take_snapshot
from dftracer.testing.synthetic import Process
from support.process import clean_environment

# Each batch takes 0.06 s to come and 0.06 s to use: half of the step is waiting for data.
JOB = """
import os, sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(f"{sys.argv[1]}/r{os.environ['RANK']}.pfw", sys.argv[1])
data = f"{sys.argv[1]}/data{os.environ['RANK']}.bin"
open(data, "wb").write(bytes(100_000))
def batches():
    for i in range(int(sys.argv[2])):
        with ai.data.item:
            time.sleep(0.06)
            open(data, "rb").read()
        yield i
for step in ai.dataloader.fetch.iter(batches()):
    with ai.compute.forward(step=step):
        time.sleep(0.06)
print("made", flush=True)
sys.stdin.readline()
log.finalize()
"""


class Job:
    """Two ranks into one directory."""

    def __init__(self, directory: Path, steps: int, **env: str) -> None:
        directory.mkdir()
        self.directory = directory
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", JOB, str(directory), str(steps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=clean_environment(
                    DFTRACER_ENABLE="1", RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", **env
                ),
            )
            for r in range(2)
        ]

    def wait_until_made(self) -> None:
        for rank in self.ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "made\n"

    def finish(self) -> None:
        for rank in self.ranks:
            rank.communicate("\n", timeout=60)

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Any]:
    made: list[Job] = []

    def start(steps: int, **env: str) -> Job:
        made.append(Job(tmp_path / "t", steps, **env))
        return made[0]

    yield start
    for each in made:
        each.close()


def top(*words: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dftracer", "top", *map(str, words)],
        capture_output=True,
        text=True,
        env=clean_environment(**env),
        check=False,
    )


def _snapshot(*words: str | Path) -> dict[str, Any]:
    done = top(*words, "--once", "--json")
    assert done.returncode == 0, done.stderr
    snapshot: dict[str, Any] = json.loads(done.stdout)
    return snapshot


def _snapshot_with(directory: Path, ready: Any) -> dict[str, Any]:
    """The first snapshot that satisfies `ready`; programs take their time to start on a busy machine."""
    snapshot: dict[str, Any] = {}
    for _ in range(60):
        done = top(directory, "--once", "--json")
        snapshot = json.loads(done.stdout) if done.returncode == 0 else {}
        if snapshot and ready(snapshot):
            return snapshot
        time.sleep(0.5)
    raise AssertionError(snapshot)


def _rows(snapshot: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["rank"]: row for row in snapshot["ranks"]}


def test_files_without_members_say_whose_they_are(job: Any) -> None:
    run = job(60, DFTRACER_TRACE_COMPRESSION="0")
    snapshot = _snapshot_with(
        run.directory, lambda f: len(f["ranks"]) == 2 and all(r["steps"] for r in f["ranks"])
    )
    assert {r["state"] for r in snapshot["ranks"]} == {"running"}
    assert snapshot["run"]


def test_a_run_from_its_first_steps_to_its_end(job: Any) -> None:
    run = job(60)
    snapshot = _snapshot_with(
        run.directory, lambda f: len(f["ranks"]) == 2 and all(r["steps"] >= 5 for r in f["ranks"])
    )
    rows = _rows(snapshot)
    assert set(rows) == {0, 1}
    assert snapshot["processes"] == {"running": 2}
    for number, row in rows.items():
        assert row["state"] == "running"
        assert row["pid"] == run.ranks[number].pid
        assert 0 < row["steps_per_s"] < 1 / 0.12
        assert row["step_s"] >= 0.12
        assert row["loader_wait"] + row["stages"].get("read", 0) + row["stages"].get("preprocess", 0) > 0.25
        assert 0.25 < row["stages"]["forward"] < 0.75
        assert row["device_busy"] is None
    assert snapshot["samples_per_s"] > 0
    assert snapshot["read_bytes_per_s"] > 0
    assert {Path(f["path"]).name for f in snapshot["files"]} >= {"data0.bin", "data1.bin"}
    assert snapshot["dropped"] == 0
    assert snapshot["run"]
    # By the number of one of its processes, and of the one that started them.
    assert {r["rank"] for r in _snapshot(str(run.ranks[1].pid))["ranks"]} == {0, 1}
    assert _rows(_snapshot(str(run.ranks[0].pid)))[0]["pid"] == run.ranks[0].pid
    run.wait_until_made()
    result = top(run.directory, "--once").stdout
    for expected in (
        "2 processes: 2 running",
        "2 ranks",
        "steps/s",
        "samples/s",
        "data0.bin",
        "0 events dropped",
    ):
        assert expected in result, result
    run.finish()
    snapshot = _snapshot(run.directory)
    assert snapshot["processes"] == {"finished": 2}
    assert {r["state"] for r in snapshot["ranks"]} == {"finished"}
    assert all(r["steps"] > 10 for r in snapshot["ranks"])


def test_a_killed_rank_is_shown_with_its_last_steps_and_left_alone(job: Any) -> None:
    run = job(15)
    run.wait_until_made()
    run.ranks[1].send_signal(signal.SIGKILL)
    run.ranks[1].wait()
    rings = [r for r in _core.ring_paths([]) if (_core.peek_ring(r) or {}).get("pid") == run.ranks[1].pid]
    trace = next(run.directory.glob("r1*.gz"))
    before = trace.read_bytes()
    snapshot = _snapshot(run.directory, "--last", "600")
    rows = _rows(snapshot)
    assert rows[0]["state"] == "running"
    assert rows[1]["state"] == "killed"
    assert rows[1]["steps"] == 15
    assert trace.read_bytes() == before
    assert rings
    assert all(os.path.exists(r) for r in rings)


def test_drops_are_shown(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from dftracer.python import ai, dftracer\n"
        "dftracer.initialize_log(sys.argv[1] + '/t.pfw', None)\n"
        "for i in range(200000):\n"
        "    with ai.compute.forward(args={'text': 'x' * 200}): pass\n"
        "print('made', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(
            DFTRACER_ENABLE="1",
            DFTRACER_DISABLE_IO="1",
            DFTRACER_RING_SIZE="65536",
            DFTRACER_MAX_STALL_US="0",
        ),
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "made\n"
        assert _snapshot(tmp_path)["dropped"] > 0
        assert "this trace has gaps" in top(tmp_path, "--once").stdout
    finally:
        child.communicate("\n")
    # When it has ended, its own statement counts.
    assert _snapshot(tmp_path)["dropped"] > 0


def test_sixty_columns_and_ascii(job: Any) -> None:
    run = job(8)
    run.wait_until_made()
    result = top(run.directory, "--once", COLUMNS="60", PYTHONIOENCODING="ascii").stdout
    assert result.isascii()
    assert max(map(len, result.splitlines())) <= 60
    assert "##" in result


def _until(descriptor: int, wanted: str, seconds: float = 300.0) -> str:
    got = ""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ready, _, _ = select.select([descriptor], [], [], 1.0)
        if ready:
            try:
                got += os.read(descriptor, 65536).decode(errors="replace")
            except OSError:
                break
        if wanted in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", got):
            return got
    raise AssertionError(f"{wanted!r} was not shown: {got[-2000:]!r}")


def test_the_live_screen_pauses_and_quits(job: Any) -> None:
    run = job(10_000)  # longer than any machine takes: the job must be running to the end of the test
    _snapshot_with(run.directory, lambda f: len(f["ranks"]) == 2)
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "100", "rows", "40"], stdin=theirs, check=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "dftracer", "top", str(run.directory), "--interval", "0.3"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environment(TERM="xterm-256color", COLORTERM="truecolor"),
    )
    os.close(theirs)
    try:
        _until(ours, "2 ranks")
        first = _until(ours, "steps/s")
        second = _until(ours, "steps/s")
        assert first != second, "it stands still"
        os.write(ours, b"p")
        _until(ours, "paused")
        os.write(ours, b"p")
        _until(ours, "q quits, p pauses")
        os.write(ours, b"q")
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def test_a_long_run_costs_no_more_than_its_last_seconds(tmp_path: Path) -> None:
    """Old members are not copied again; names of files that were opened long ago are known all the same."""
    p = Process(10, rank=0, world_size=1)
    p.io("open", 0, 5, "/data/early.bin", ret=3)
    at = 10
    for step in range(20_000):
        at = p.step(step, at, 500, 2500)
    p.io("read", at - 100, 50, "/data/early.bin", ret=1000)
    whole = p.write(tmp_path, member_text=1 << 16)
    with Recent(tmp_path, 2.0) as recent:
        snapshot = take_snapshot(recent)
        (copy,) = recent.directory.iterdir()
        assert copy.stat().st_size < whole.stat().st_size / 4
    assert "/data/early.bin" in {f["path"] for f in (snapshot.files or [])}
    assert snapshot.ranks[0].steps < 2000


def test_what_cannot_be_watched_is_an_error(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.mkdir()
    (garbage / "x.pfw").write_text("root:x:0:0\n")
    (garbage / "y.pfw.gz").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "empty").mkdir()
    for words, result in (
        ([str(garbage)], "no file there is a dftracer trace"),
        ([str(garbage / "x.pfw")], "no file there is a dftracer trace"),
        (["no-such-place"], "neither a directory nor a process id"),
        (["999999999"], "writes no trace"),
        ([str(tmp_path / "empty")], "there are no traces"),
    ):
        done = top(*words, "--once")
        assert done.returncode == 2
        assert result in done.stderr
        assert done.stderr.count("\n") == 1


def test_samples_are_counted_over_the_same_period_as_steps(tmp_path: Path) -> None:
    """Also in a run that stood still before its steps: rates are those of the steps, as in a report."""
    main, worker = Process(70, rank=0), Process(71, ppid=70)
    main.span("app", "standing still", 0, 9_000_000)
    at = 9_000_000
    for step in range(10):
        for item in range(4):
            worker.span("data", "item", at + 10_000 * item, 9_000)
        worker.span("data", "collate", at + 40_000, 5_000, batch=step)
        at = main.step(step, at, 50_000, 50_000)
    for process in (main, worker):
        process.write(tmp_path)
    snapshot = _snapshot(tmp_path)
    assert snapshot["steps_per_s"] == pytest.approx(10, rel=0.1)
    assert snapshot["samples_per_s"] == pytest.approx(4 * snapshot["steps_per_s"], rel=0.01)


def test_a_process_that_hangs_is_silent_though_it_is_sampled(tmp_path: Path) -> None:
    """Counters go on once a second; the last event is what counts."""
    p = Process(10, rank=0, world_size=1, end=None)
    for i in range(20):
        p.step(i + 1, i * 100_000, 50_000, 50_000)
    for t in range(0, 60_000_001, 1_000_000):
        p.counter("cpu", t, user_us=t, system_us=0, ran_us=t // 2, waited_us=t // 4)
        p.counter("host.cpu", t, user_us=t, system_us=0, cpus=4, runnable=3)
    p.write(tmp_path, member_text=2000)  # many small members, as the recorder's
    with Recent([tmp_path], seconds=20) as recent:
        snapshot = take_snapshot(recent)
        again = take_snapshot(recent)
    assert [r.silent_s for r in snapshot.ranks] == [pytest.approx(60 - 1.95, abs=0.2)]
    assert [r.silent_s for r in again.ranks] == [r.silent_s for r in snapshot.ranks]
    assert ("main thread", "on a CPU 50 %, waited 25 % of the time for a CPU") in snapshot.machine
    assert any(
        what == "host node0" and "4 cores 25 % busy, 3 runnable" in words for what, words in snapshot.machine
    )
