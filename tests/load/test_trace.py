"""`Trace`: one table over many files, and its sidecar."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from dftracer.load import Trace
from dftracer.testing.synthetic import Process, Run, training_run
from support.process import clean_environment


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return training_run(tmp_path / "run", events=5000, ranks=2, workers=2)


def test_every_view_of_a_trace_has_the_same_events(run: Run) -> None:
    t = Trace(run.directory)
    assert t.arrow().num_rows == run.events
    assert t.polars().height == run.events
    assert len(t.pandas()) == run.events
    assert t.lazy().select(pl.len()).collect().item() == run.events
    assert t.sql("select count(*) as n from events").item() == run.events
    assert t.sql("select count(*) as n from processes").item() == 6
    assert sum(b.num_rows for b in t.batches()) == run.events


def test_hashes_become_paths_and_workers_get_their_rank(run: Run) -> None:
    t = Trace(run.directory)
    paths = t.sql("select distinct path from events where name = 'read'")["path"].to_list()
    assert all(p.startswith("/data/train/part-") for p in paths)
    assert {(p.rank, p.ppid) for p in t.processes} == {(0, 1), (0, 1000), (1, 1), (1, 1100)}


def test_a_worker_without_a_rank_takes_the_one_of_its_parent(tmp_path: Path) -> None:
    for p in (Process(10, rank=3), Process(11, ppid=10), Process(12, ppid=11)):
        p.span("c", "f", 0, 1)
        p.write(tmp_path)
    assert {p.pid: p.rank for p in Trace(tmp_path).processes} == {10: 3, 11: 3, 12: 3}


def test_the_sidecar_is_used_again_and_dropped_when_the_trace_changes(run: Run) -> None:
    t = Trace(run.directory)
    t.lazy()
    made = sorted((run.directory / ".dftracer-cache").iterdir())
    assert len(made) == 6
    times = [f.stat().st_mtime_ns for f in made]
    assert Trace(run.directory).lazy().select(pl.len()).collect().item() == run.events
    assert [f.stat().st_mtime_ns for f in made] == times
    changed = run.files[0]
    text = changed.read_bytes()
    changed.write_bytes(text + text)
    assert Trace(run.directory).lazy().select(pl.len()).collect().item() > run.events


def test_a_damaged_sidecar_is_made_again(run: Run) -> None:
    Trace(run.directory).lazy()
    for f in (run.directory / ".dftracer-cache").iterdir():
        f.write_bytes(b"PAR1 nonsense")
    assert Trace(run.directory).lazy().select(pl.len()).collect().item() == run.events


def test_without_cache_nothing_is_written(run: Run) -> None:
    assert Trace(run.directory, cache=False).sql("select count(*) from events").item() == run.events
    assert not (run.directory / ".dftracer-cache").exists()


def test_where_the_directory_cannot_hold_it_the_sidecar_lies_elsewhere(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (run.directory / ".dftracer-cache").write_text("a file is in the way")
    assert Trace(run.directory).lazy().select(pl.len()).collect().item() == run.events
    assert len(list((tmp_path / "cache" / "dftracer").iterdir())) == 6


@pytest.mark.parametrize("room", [0, 4096], ids=["full from the start", "full on the way"])
def test_a_full_disk_leaves_no_sidecar_and_no_remains(run: Run, tmp_path: Path, room: int) -> None:
    script = (
        "import resource, sys\nimport polars as pl\nfrom dftracer.load import Trace\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "print(Trace(sys.argv[1]).lazy().select(pl.len()).collect().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(run.directory)],
        capture_output=True,
        text=True,
        env=clean_environment(XDG_CACHE_HOME=str(tmp_path / "cache")),
        check=False,
    )
    assert done.stdout.split() == [str(run.events)], done.stderr
    assert [p for p in tmp_path.rglob("*.parquet*") if p.is_file()] == []


def test_the_file_says_what_is_missing(tmp_path: Path) -> None:
    p = Process(10, end=None)
    p.span("c", "f", 0, 5)
    p.write(tmp_path)
    t = Trace(tmp_path)
    assert t.arrow().num_rows == 2
    (process,) = t.processes
    assert process.end is None
    assert process.counts["closed"] is False


def test_progress_is_told(run: Run) -> None:
    seen: list[tuple[int, int]] = []
    list(Trace(run.directory, progress=lambda done, total: seen.append((done, total))).batches())
    assert len(seen) >= 6
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_within_a_large_file_progress_is_told_too(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run", events=30_000, ranks=1, workers=1, member_text=1 << 18)
    large = max(run.files, key=lambda f: f.stat().st_size)
    seen: list[tuple[int, int]] = []
    progress = lambda done, total: seen.append((done, total))  # noqa: E731
    list(Trace(large, memory_limit=1, threads=1, progress=progress).batches())
    assert len({done for done, _ in seen}) > 3
    assert seen == sorted(seen)


def test_a_time_filter_leaves_out_members_but_no_event(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run", events=20_000, ranks=1, workers=2, member_text=1 << 16)
    whole = Trace(run.directory, cache=False).polars()
    first, last = whole["ts"].min(), whole["ts"].max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    for i in range(8):
        span = (first + (last - first) * i // 8, first + (last - first) * (i + 1) // 8)
        some = Trace(run.directory, cache=False, time=span)
        assert some.arrow().num_rows == whole.filter(pl.col("ts").is_between(*span)).height
        assert sum(p.counts["members_skipped"] for p in some.processes) > 0
