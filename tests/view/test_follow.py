"""Following a job that runs: from an empty directory to its end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing.synthetic import Process
from support.process import clean_environment
from support.view_tab import route

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


def _until(server: Any, result: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        run: dict[str, Any] = server.json("state")["runs"][0]
        if result(run):
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


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which no script may fail."""
    noise: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    opened.on("pageerror", lambda e: noise.append(str(e)))
    yield opened
    opened.close()
    assert noise == []


SELECTED = "[dftracerView.panes[0].details.name, dftracerView.panes[0].details.start]"
# By the clock (within a day, which keeps it exact), since the page counts from the first event that it knows.
SELECTED_AT = """(() => {
  const {details, about} = dftracerView.panes[0];
  return [details.name, details.start + (about.start_us % 86400e6) * 1000];
})()"""


def test_the_page_moves_along(
    job: Callable[[], subprocess.Popen[bytes]], start: Callable[..., Any], page: Any, tmp_path: Path
) -> None:
    page.goto(start(tmp_path / "traces", "--follow").url)
    page.wait_for_function("() => document.getElementById('title').textContent.includes('no trace yet')")
    job()
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    page.wait_for_function("() => document.getElementById('live').textContent.includes('steps/s')")
    assert "1 running" in page.inner_text("#live")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => dftracerView.panes[0].details")
    selected = page.evaluate(SELECTED_AT)
    length = page.evaluate("dftracerView.view.length")
    end = page.evaluate("dftracerView.view.t1")
    page.wait_for_function("(n) => dftracerView.view.length > n + 1e9", arg=length, timeout=120_000)
    page.wait_for_function("(t) => dftracerView.view.t1 > t", arg=end, timeout=120_000)
    name, begun = page.evaluate(SELECTED_AT)  # though every number in the index is another one now
    assert name == selected[0]
    assert abs(begun - selected[1]) <= 2000


def test_what_is_selected_stays_selected_when_the_event_around_it_ends(
    start: Callable[..., Any], page: Any, tmp_path: Path
) -> None:
    """An event is written when it ends: the inner ones first, which are a row lower from then on.

    With its first step, the process is called by its rank.
    """

    def write(*, ended: bool) -> None:
        process = Process(70)
        for n in range(10):
            process.span("user", "inner", 1_000_000 + 100_000 * n, 40_000)
        if ended:
            process.span("pipeline", "epoch", 900_000, 1_300_000)
            for n in range(10):
                process.step(n, 1_045_000 + 100_000 * n, 5_000, 40_000)
        process.write(tmp_path)

    write(ended=False)
    page.goto(start(tmp_path, "--follow").url)
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => dftracerView.panes[0].details", timeout=120_000)
    name, begun = page.evaluate(SELECTED)
    assert name == "inner"
    assert "process 70" in page.evaluate("dftracerView.panes[0].details.lane")
    events = page.evaluate("dftracerView.panes[0].about.events")
    write(ended=True)
    page.wait_for_function("(n) => dftracerView.panes[0].about.events > n", arg=events, timeout=120_000)
    page.wait_for_function("() => dftracerView.panes[0].details.parents.length == 1", timeout=120_000)
    # The run begins earlier now.
    assert page.evaluate(SELECTED) == [name, begun + 100_000_000]
    assert page.evaluate("dftracerView.panes[0].details.lane") == "rank 0"


def test_a_selection_survives_readings_that_come_faster_than_the_page(
    job: Callable[[], subprocess.Popen[bytes]], start: Callable[..., Any], page: Any, tmp_path: Path
) -> None:
    """The page asks about a reading that the server has let go of: it loads the newest and asks again."""
    job()
    server = start(tmp_path / "traces", "--follow")
    page.goto(server.url)
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => dftracerView.panes[0].details", timeout=120_000)
    selected = page.evaluate(SELECTED_AT)
    gone: list[str] = []

    def answer(question: Any) -> None:
        if len(gone) < 3:
            gone.append(question.request.url)
            question.fulfill(status=410, body="the trace was read again since")
        else:
            question.continue_()

    route(page, "**/api/at?*", answer)
    length = page.evaluate("dftracerView.view.length")
    page.wait_for_function("(n) => dftracerView.view.length > n + 1e9", arg=length, timeout=120_000)
    assert len(gone) == 3
    name, begun = page.evaluate(SELECTED_AT)
    assert name == selected[0]
    assert abs(begun - selected[1]) <= 2000
