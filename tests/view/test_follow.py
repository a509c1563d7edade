"""Following a job that runs: from an empty directory to its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing.synthetic import Process
from support.process import clean_environment

JOB = """
import pathlib, sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1] + "/run.pfw", None, -1)
stop = pathlib.Path(sys.argv[2])
def batches():
    while not stop.exists():
        time.sleep(0.02)
        yield 0
for step, _ in enumerate(ai.dataloader.fetch.iter(batches())):
    ai.update(step=step)
    with ai.compute.forward:
        time.sleep(0.01)
log.finalize()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts the job, which traces into `traces` until `stop` exists."""
    started: list[subprocess.Popen[bytes]] = []
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "traces").mkdir()

    def begin() -> subprocess.Popen[bytes]:
        env = clean_environment()
        command = [sys.executable, "job.py", str(tmp_path / "traces"), str(tmp_path / "stop")]
        started.append(subprocess.Popen(command, cwd=tmp_path, env={**env, "DFTRACER_ENABLE": "1"}))
        return started[-1]

    yield begin
    (tmp_path / "stop").touch()
    for process in started:
        process.wait(60)


def _until(server: Any, told: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        run: dict[str, Any] = server.json("state")["runs"][0]
        if told(run):
            return run
        time.sleep(0.1)
    raise AssertionError(f"never came: {run}")


def test_a_job_is_followed_from_nothing_to_its_end(
    job: Callable[[], subprocess.Popen[bytes]], start: Callable[..., Any], tmp_path: Path
) -> None:
    server = start(tmp_path / "traces", "--follow")
    assert _until(server, lambda r: r["error"] is not None)["ready"] is False
    process = job()
    first = _until(server, lambda r: r["ready"] and (r["live"].get("steps_per_s") or 0) > 0)
    assert first["live"]["running"] == 1
    assert first["live"]["dropped"] == 0
    assert 0 < first["live"]["fetch_wait"] < 1
    events = server.json("run", run=0)["events"]
    _until(server, lambda r: r["generation"] > first["generation"] + 1)
    assert server.json("run", run=0)["events"] > events
    (tmp_path / "stop").touch()
    assert process.wait(60) == 0
    _until(server, lambda r: r["live"]["running"] == 0 and r["steps"])
    # Only the job has written there.
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == ["run.pfw.gz", "run.rows"]
    about = server.json("run", run=0)
    (rank,) = about["steps"]["ranks"]
    assert rank["steps"] > 5


def test_a_killed_job_is_shown_to_its_last_event(
    job: Callable[[], subprocess.Popen[bytes]], start: Callable[..., Any], tmp_path: Path
) -> None:
    process = job()
    server = start(tmp_path / "traces", "--follow")
    _until(server, lambda r: r["ready"] and (r["live"].get("steps_per_s") or 0) > 0)
    process.kill()
    process.wait(60)
    state = _until(server, lambda r: r["live"].get("running") == 0)
    assert state["ready"]
    assert server.json("run", run=0)["events"] > 5


def test_samples_are_counted_over_the_same_period_as_steps(start: Callable[..., Any], tmp_path: Path) -> None:
    main, worker = Process(70, rank=0), Process(71, ppid=70)
    main.span("app", "standing still", 0, 9_000_000)
    at = 9_000_000
    for step in range(10):
        for item in range(4):
            worker.span("data", "item", at + 10_000 * item, 9_000)
        at = main.step(step, at, 50_000, 50_000)
    for process in (main, worker):
        process.write(tmp_path)
    live = start(tmp_path, "--follow").ready(steps=True).json("state")["runs"][0]["live"]
    # The rate of the steady steps, as everywhere for a run that has ended.
    assert live["steps_per_s"] == pytest.approx(10, rel=0.1)
    assert live["samples_per_s"] == pytest.approx(4 * live["steps_per_s"])


def test_the_page_moves_along(
    job: Callable[[], subprocess.Popen[bytes]], start: Callable[..., Any], tmp_path: Path
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    browser_path = next((b for b in map(shutil.which, ("chromium", "google-chrome")) if b), None)
    if browser_path is None:
        pytest.skip("no Chromium on this machine")
    server = start(tmp_path / "traces", "--follow")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        noise: list[str] = []
        page.on("pageerror", lambda e: noise.append(str(e)))
        page.goto(server.url)
        page.wait_for_function("() => document.getElementById('title').textContent.includes('no trace yet')")
        job()
        page.wait_for_selector("html[data-ready]", timeout=120_000)
        page.wait_for_function("() => document.getElementById('live').textContent.includes('steps/s')")
        assert "1 running" in page.inner_text("#live")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("() => dftracerView.panes[0].details")
        chosen = "[dftracerView.panes[0].details.name, dftracerView.panes[0].details.start]"
        selected = page.evaluate(chosen)
        length = page.evaluate("dftracerView.view.length")
        end = page.evaluate("dftracerView.view.t1")
        page.wait_for_function("(n) => dftracerView.view.length > n + 1e9", arg=length, timeout=120_000)
        page.wait_for_function("(t) => dftracerView.view.t1 > t", arg=end, timeout=120_000)
        name, begun = page.evaluate(chosen)  # though every number in the index is another one now
        assert name == selected[0]
        assert abs(begun - selected[1]) <= 2000
        assert noise == []
        browser.close()
