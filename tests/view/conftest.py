"""A real server for each test that asks: `dftracer view` in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment
from support.view_tab import Tab
from support.view_trace import training_job


class Server:
    """`dftracer view`, and questions to it."""

    def __init__(self, *arguments: str | Path, cache: Path) -> None:
        env = clean_environment()
        env.pop("DISPLAY", None)
        env.pop("WAYLAND_DISPLAY", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dftracer.cli", "view", *map(str, arguments), "--no-open"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**env, "XDG_CACHE_HOME": str(cache)},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.base, _, self.query = self.url.partition("?")

    def fetch(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> tuple[int, bytes]:
        """Status and body, with the token."""
        asked = "&".join([self.query, *(f"{k}={v}" for k, v in query.items())])
        return get(f"{self.base}{path}?{asked}", headers)

    def json(self, path: str, **query: Any) -> Any:
        status, body = self.fetch(f"api/{path}", **query)
        assert status == 200, body
        return json.loads(body)

    def ready(self, steps: bool = False) -> Server:
        """Wait until every run was read."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            runs = self.json("state")["runs"]
            if all(r["whole"] and (r["steps"] or not steps) for r in runs):
                return self
            assert not any(r["error"] for r in runs), runs
            time.sleep(0.1)
        raise AssertionError("the trace was not read in time")

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(30)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_job(tmp_path_factory.mktemp("view") / "job")


@pytest.fixture(scope="session")
def slower_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_job(tmp_path_factory.mktemp("view") / "slower", seed=2, slower=1.6)


@pytest.fixture(scope="session")
def view_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def server(job: Path, view_cache: Path) -> Iterator[Server]:
    started = Server(job, cache=view_cache)
    yield started.ready(steps=True)
    assert started.end() == 0


@pytest.fixture
def start(view_cache: Path) -> Iterator[Callable[..., Server]]:
    """Start further servers; they end with the test."""
    started: list[Server] = []

    def run(*arguments: str | Path) -> Server:
        started.append(Server(*arguments, cache=view_cache))
        return started[-1]

    yield run
    for each in started:
        each.end()


@pytest.fixture
def tab(browser: Any, server: Server) -> Iterator[Tab]:
    opened = Tab(browser, server.url)
    yield opened
    opened.close()
