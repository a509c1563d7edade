"""On a real Dask cluster the tables are the same as in process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dftracer.analyze import analyze
from dftracer.load.synthetic import training_run
from dftracer.report import document

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


def test_two_workers_on_loopback_give_the_same_report(tmp_path: Path, address: str) -> None:
    run = training_run(tmp_path / "run", events=20_000, ranks=3, workers=2)
    here = document(analyze(run.directory))
    there = document(analyze(run.directory, dask=address))
    here["trace"].pop("files")
    there["trace"].pop("files")
    assert there == here
