"""On a real Dask cluster the tables are the same as in process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.analyze.analysis import analyze_on_cluster
from dftracer.analyze.job import build_job
from dftracer.analyze.map.digest import digest_span
from dftracer.analyze.map.partial import join_spans
from dftracer.format.members import member_spans
from dftracer.load import Trace
from dftracer.load.trace import Filter
from dftracer.report import document
from dftracer.testing.synthetic import training_run

pytest.importorskip("distributed")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A scheduler and two workers on loopback, as their own processes."""
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    common = ["--no-dashboard"]
    processes = [
        subprocess.Popen(
            [*dask, "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file), *common]
        )
    ]
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        worker = [
            sys.executable,
            "-m",
            "distributed.cli.dask_worker",
            "--scheduler-file",
            str(file),
            "--nthreads",
            "1",
        ]
        for _ in range(2):
            processes.append(
                subprocess.Popen(
                    [*worker, "--host", "127.0.0.1", "--no-dashboard", "--local-directory", str(tmp_path)]
                )
            )
        yield json.loads(file.read_text())["address"]
    finally:
        for p in reversed(processes):
            p.terminate()
        for p in processes:
            p.wait(30)


def test_two_workers_on_loopback_give_the_same_report(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training_run(tmp_path / "run", events=20_000, ranks=3, workers=2, member_text=100_000)
    here = document(analyze(run.directory))
    seen: list[tuple[int, int]] = []
    assert document(analyze(run.directory, dask=address, progress=lambda *at: seen.append(at))) == here
    assert len(seen) == len(run.files)
    assert seen[-1][0] == seen[-1][1]

    # Large files are read by several tasks, each some of their members: here every member by its own.
    split = [s for f in run.files for s in member_spans(f, 1)]
    assert len(split) > len(run.files) + 10
    assert document(Analysis(analyze_on_cluster(Trace(run.directory), address, span_bytes=1))) == here

    # The same bytes where the trace is named by a relative path.
    monkeypatch.chdir(tmp_path)
    texts = [json.dumps(document(analyze("run", dask=dask))) for dask in (None, address)]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["trace"]["files"][0].startswith("run/")


def test_a_merged_file_in_spans_is_the_same_too(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run", events=20_000, ranks=2, workers=1, member_text=200_000)
    one = tmp_path / "all.pfw.gz"
    one.write_bytes(b"".join(f.read_bytes() for f in run.files))
    here = document(analyze(one))
    (process,) = Trace(one).processes
    spans = [digest_span(process, Filter(), 1 << 20, s) for s in member_spans(one, 1)]
    assert len(spans) > 4
    job = build_job([p for p, _ in join_spans(process, pickle.loads(pickle.dumps(spans)), Filter())])
    there = document(Analysis(job))
    for part in ("names", "files"):
        assert there[part] == here[part]
    assert there["ledger"]["steps"] == here["ledger"]["steps"]
