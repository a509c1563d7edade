"""`dftracer runs`: what each run was, how fast it was and how it ended, the newest first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.analyze import analysis, history
from dftracer.analyze.history import list_runs
from dftracer.load.rows import COLUMNS, pack_rows
from dftracer.testing.synthetic import Process
from support.commands import json_of
from support.process import clean_environment

MS = 1000
HOUR = 3_600_000_000
EPOCH_US = 1_760_000_000_000_000
KEYS = [
    "run",
    "name",
    "tags",
    "start",
    "command",
    "git",
    "host",
    "ranks",
    "attempt",
    "steps",
    "samples_per_s",
    "bound",
    "ended",
    "path",
]

_LOOP = """
import sys, time
from dftracer.python import ai
for step in ai.dataloader.fetch.iter(range(8)):
    with ai.compute.forward:
        time.sleep(0.002)
    if step == 5 and "fail" in sys.argv:
        raise ValueError("bad sample")
"""


def _dftracer(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dftracer", *words],
        cwd=folder,
        env=clean_environment(**more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _runs(folder: Path, *words: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json_of("runs", *words, cwd=folder)
    return result


def _git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _write_run(folder: Path, number: int, ms: int = 10, steps: int = 20) -> None:
    start = number * HOUR
    record = {"value": f"run{number}", "start": EPOCH_US + start, "command": "train.py", "host": "node0"}
    p = Process(10, start=start, run=record, rank=0)
    t = start
    for i in range(steps):
        p.span("compute", "forward", t + MS, (ms - 1) * MS)
        t = p.step(i + 1, t, MS, (ms - 1) * MS, step=i)
    place = folder / f"run{number}"
    place.mkdir(parents=True)
    p.write(place, "a")


def test_a_run_has_its_name_tags_commit_speed_and_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_LOOP)
    (tmp_path / ".gitignore").write_text("traces/\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "first")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    program = ("--", sys.executable, "train.py")
    named = ("run", "--name", "toy", "--tag", "lr=0.1", "--tag", "data=v2")
    assert _dftracer(tmp_path, *named, *program).returncode == 0
    (tmp_path / "train.py").write_text(_LOOP + "# changed\n")
    assert _dftracer(tmp_path, "run", "--name", "toy", *program, "fail").returncode == 1
    assert _dftracer(tmp_path, "run", "-q", *program).returncode == 0

    quiet, failed, first = _runs(tmp_path)
    assert list(first) == KEYS
    assert (first["name"], first["tags"]) == ("toy", {"lr": "0.1", "data": "v2"})
    assert first["git"] == {"commit": commit, "dirty": False}
    assert (first["steps"], first["ended"]["exit_code"], first["attempt"]) == (8, 0, 0)
    assert first["command"].endswith("train.py")
    assert (tmp_path / first["path"]).is_dir()
    assert first["run"] in first["path"]
    assert failed["git"] == {"commit": commit, "dirty": True}
    line = _LOOP.splitlines().index('        raise ValueError("bad sample")') + 1
    assert list(failed["ended"]) == ["exit_code", "signal", "exception", "rank", "step"]
    assert failed["ended"]["exception"] == f"ValueError at train.py:{line}"
    assert (failed["ended"]["exit_code"], failed["ended"]["step"]) == (1, 5)
    assert (quiet["name"], quiet["tags"]) == (None, {})
    # Here the program took the place of `run`, and a git that ran before it would be among its children.
    assert quiet["git"] == {"commit": commit, "dirty": None}
    assert [r["run"] for r in _runs(tmp_path, "--name", "toy")] == [failed["run"], first["run"]]

    shown = _dftracer(tmp_path, "runs", COLUMNS="300")
    assert shown.stdout.splitlines()[0].split() == [
        *("started", "name", "commit", "host", "ranks", "attempt", "steps", "step", "samples/s", "GPU"),
        *("bound", "ended", "command", "path"),
    ]
    assert first["host"] in shown.stdout
    assert "ValueError at train.py" in shown.stdout
    assert shown.stdout.index("ValueError") < shown.stdout.index(first["path"])
    unknown = _dftracer(tmp_path, "runs", "--name", "nobody")
    assert unknown.returncode == 2
    assert "toy" in unknown.stderr


def test_without_run_the_name_comes_from_the_environment(tmp_path: Path) -> None:
    begin = "from dftracer.python import dftracer; dftracer.initialize_log()\n"
    (tmp_path / "train.py").write_text(begin + _LOOP)
    env = clean_environment(
        DFTRACER_ENABLE="1",
        DFTRACER_RUN_NAME="by hand",
        DFTRACER_RUN_TAGS="a=1,b=x=y",
        DFTRACER_LOG_FILE="t/t",
    )
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=env, check=True, timeout=240)
    (row,) = _runs(tmp_path, "t")
    assert (row["name"], row["tags"]) == ("by hand", {"a": "1", "b": "x=y"})
    assert row["git"] == {"commit": None, "dirty": None}


@pytest.mark.parametrize("words", [("--tag", "novalue"), ("--tag", "a=1,2"), ("--name", " ")])
def test_a_bad_tag_or_name_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = _dftracer(tmp_path, "run", *words, "--", "true")
    assert done.returncode == 2
    assert words[0] in done.stderr


def test_the_last_attempt_says_how_a_run_ended(tmp_path: Path) -> None:
    """Also if it had fewer ranks, and the slowest was one of the others."""
    for pid, (rank, attempt, steps, died) in enumerate(
        ((0, 0, 30, True), (1, 0, 30, True), (0, 1, 5, False))
    ):
        start = attempt * HOUR
        record = {"value": "slurm-7", "start": EPOCH_US, "command": "train.py", "host": "node0"}
        p = Process(
            10 + pid,
            start=start,
            run={**record, "attempt": attempt},
            rank=rank,
            world_size=2 - attempt,
            end={"recovered": 1} if died else {"exit_code": 0},
        )
        t = start
        for i in range(steps):
            p.span("compute", "forward", t + MS, (9 + rank) * MS)
            t = p.step(i + 1, t, MS, (9 + rank) * MS, step=i)
        p.write(tmp_path, f"trace-{pid}")
    (row,) = list_runs([tmp_path])
    assert (row.attempt, row.ended["exit_code"], row.ended["rank"], row.ended["step"]) == (1, 0, 0, 5)


def test_the_rank_that_failed_first_is_named_before_any_step_too(tmp_path: Path) -> None:
    for rank in (0, 1):
        record = {"value": "r", "start": EPOCH_US, "command": "train.py", "host": "node0"}
        p = Process(10 + rank, start=rank * MS, run=record, rank=rank, world_size=2, end={"exit_code": 1})
        p.span("app", "joins", (2 + rank) * MS, (40 - 20 * rank) * MS)
        if rank == 1:  # the other one was ended because of it
            p.metadata.append(("PR", "exception", "RuntimeError"))
        p.write(tmp_path, f"trace-{rank}")
    (row,) = list_runs([tmp_path])
    assert (row.ended["rank"], row.ended["exception"]) == (1, "RuntimeError")


def test_a_second_look_reads_only_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        _write_run(tmp_path, number)
    first = list_runs([tmp_path])
    assert [r.run for r in first] == ["run3", "run2", "run1", "run0"]
    looked: list[Any] = []
    analyze = analysis.analyze

    def counted(files: Any, **more: Any) -> Any:
        looked.append(files)
        return analyze(files, **more)

    monkeypatch.setattr(history, "analyze", counted)
    assert list_runs([tmp_path]) == first
    assert looked == []
    _write_run(tmp_path, 7, ms=20)
    again = list_runs([tmp_path])
    assert [r.run for r in again] == ["run7", "run3", "run2", "run1", "run0"]
    assert len(looked) == 1
    assert again[0].step_s == pytest.approx(0.02)
    # What somebody writes about a run beside its trace counts, too.
    (tmp_path / "run2" / "ended-run2.json").write_text(
        json.dumps({"run": "run2", "exit_code": None, "signal": "SIGKILL"})
    )
    assert [r.ended["signal"] for r in list_runs([tmp_path])] == [None, None, "SIGKILL", None, None]
    assert len(looked) == 2


def test_a_file_without_a_record_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "notes.pfw.gz").write_text("no trace")
    done = _dftracer(tmp_path, "runs", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no trace and no step rows can be read" in done.stderr
    _write_run(tmp_path, 0)
    assert [row["run"] for row in _runs(tmp_path, str(tmp_path))] == ["run0"]


def test_a_place_that_cannot_be_written_to_is_listed(tmp_path: Path) -> None:
    _write_run(tmp_path, 0)
    (tmp_path / ".dftracer-cache").write_text("not a directory")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    try:
        assert [r.run for r in list_runs([tmp_path / "run0"])] == ["run0"]
        assert [r.run for r in list_runs([tmp_path])] == ["run0"]
        assert list((tmp_path / "cache").rglob("*runs.json"))
    finally:
        del os.environ["XDG_CACHE_HOME"]


def test_the_page_has_trends_and_a_report_of_each_run(tmp_path: Path) -> None:
    for number in range(3):
        _write_run(tmp_path / "traces", number, ms=10 + 5 * number)
    done = _dftracer(tmp_path, "runs", "--html", "runs.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs.html").read_text()
    assert page.count("<svg") >= 3
    assert page.count("<circle") >= 9
    links = [part.split('"')[0] for part in page.split('<a href="')[1:]]
    assert len(links) == 3
    for link in links:
        assert "<title>dftracer: traces/run" in (tmp_path / link).read_text()
    assert _dftracer(tmp_path, "runs", "--html", "runs.html").returncode == 2
    assert _dftracer(tmp_path, "runs", "-f", "--html", "runs.html").returncode == 0


def test_every_command_takes_the_newest_run(tmp_path: Path) -> None:
    _write_run(tmp_path / "traces", 1)
    _write_run(tmp_path / "traces", 2)
    os.utime(tmp_path / "traces" / "run1" / "a.pfw.gz", (1, 1))
    for words in (
        ("info",),
        ("validate",),
        ("query", "select count(*) from events"),
        ("export", "--to", "csv"),
        ("export", "--rows"),
        ("repair", "-o", "repaired"),
        ("link",),
    ):
        done = _dftracer(tmp_path, *words)
        assert "the newest run, traces/run2" in done.stderr, (words, done.stderr)
    # It takes where this user records, if anywhere: other tests may.
    assert "no running process uses --blackbox in " in _dftracer(tmp_path, "trigger").stderr


def test_rows_are_exported_without_traces_and_without_a_path(tmp_path: Path) -> None:
    for number in (1, 2):
        place = tmp_path / "traces" / f"run{number}"
        place.mkdir(parents=True)
        table = np.zeros((number, len(COLUMNS)), np.int64)
        table[:, COLUMNS.index("start_us")] = EPOCH_US + 1000 * np.arange(number)
        table[:, COLUMNS.index("wall_us")] = 1000
        (place / "a.rows").write_bytes(pack_rows(table, {"run": f"run{number}"}))
        os.utime(place / "a.rows", (number, number))
    done = _dftracer(tmp_path, "export", "--rows", "-o", "rows.csv")
    assert "the newest run, traces/run2" in done.stderr
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0].startswith("rank,epoch,step,start_us,wall_us,fetch_wait_us,")
    assert [line.split(",")[0] for line in lines[1:]] == ["0", "0"]
