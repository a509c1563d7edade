"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from support import tracing_on  # noqa: F401 - before any test module imports the annotations
from support.browser import chromium
from support.process import LAUNCHERS, PRELUDE, Run, recover, run_program

gc.disable()  # until all tests are collected: nothing of that is garbage

# What tests call in this process reads them too.
for _name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
    del os.environ[_name]

# A job in the background of a shell inherits these as ignored, and so would the programs of the tests.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Threads that wait for each other by spinning take the cores from the programs of other tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

THOROUGH = tuple(
    line
    for line in Path(__file__).with_name("thorough.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


# A file is run by one worker: those that take longest begin first, so that none is left over at the end.
LONGEST = (
    "tests/auto/test_stages.py",
    "tests/analyze/test_peers.py",
    "tests/auto/test_programs.py",
    "tests/report/test_whole_run.py",
    "tests/bench_gate/",
    "tests/view/",
    "tests/cli/test_ship.py",
    "tests/report/test_goodput.py",
    "tests/postmortem/",
    "tests/integration/test_hang_watch.py",
    "tests/auto/test_observed_only.py",
    "tests/mirror/",
    "tests/cli/test_transparent.py",
    "tests/docs/",
    "tests/dynamo/",
    "tests/collect/",
    "tests/top/",
    "tests/integration/test_framework_loops.py",
    "tests/integration/test_process_matrix.py",
    "tests/link/",
    "tests/web/",
    "tests/metrics/",
    "tests/notebook/",
    "tests/torch/",
    "tests/auto/",
    "tests/dlio/",
    "tests/cli/",
    "tests/intercept/",
)
# What the tests of these folders look at is recorded once: they are run by one worker.
TOGETHER = ("tests/link/", "tests/view/")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of thorough.txt, and begin with what takes longest."""
    for item in items:
        if item.nodeid.startswith(THOROUGH) or item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.thorough)
    items.sort(key=lambda item: [not item.nodeid.startswith(place) for place in LONGEST])


class Together(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file, or a folder of TOGETHER, is run by one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((folder for folder in TOGETHER if file.startswith(folder)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Instead of `--dist loadfile`."""
    return Together(config, log)


def pytest_collection_finish() -> None:
    """What has been imported so far is no garbage of a test, nor of the processes that tests fork."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Run a program text with tracing on; nothing is set up for it."""
    yield from _runner(tmp_path, "")


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Run a program text after `initialize_log`, with `ai`, `dft_fn`, `dftracer` and `log` at hand."""
    yield from _runner(tmp_path, PRELUDE)


def _runner(tmp_path: Path, prelude: str) -> Iterator[Callable[..., Run]]:
    killed: list[Run] = []

    def run(source: str, **options: Any) -> Run:
        done = run_program(tmp_path, source, prelude=prelude, **options)
        if done.returncode != 0:
            killed.append(done)
        return done

    yield run
    # A killed process leaves its ring to the next reader of its traces; pytest deletes those unread.
    for done in killed:
        recover(done.trace_dir)


@pytest.fixture(scope="session", autouse=True)
def no_rings_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rings of the tests' own killed processes do not stay in shared memory after the tests."""
    yield
    from dftracer import _core  # noqa: PLC0415 - not before the environment is set up

    base = str(tmp_path_factory.getbasetemp())
    for ring in _core.rings([]):
        if ring["state"] == "dead" and ring["trace"].startswith(base + "/"):
            _core.discard_ring(ring["ring"])


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """A test leaves this process as it found it: a session would follow it into later children."""
    yield
    core = sys.modules.get("dftracer._core")
    assert core is None or not core.active(), "the test left a recording session in the process of all tests"


@pytest.fixture(scope="module")  # two at once are refused by Playwright, and it keeps a running event loop
def browser() -> Iterator[Any]:
    """A real one; tests open pages of their own in it, and close them."""
    with chromium() as started:
        yield started
