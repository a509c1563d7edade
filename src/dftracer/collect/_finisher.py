"""Starts the finishing of windows beside the training and gathers the results."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from dftracer.collect._window_files import finish

__all__ = ["Finisher"]

_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from dftracer.collect._window_files import main; main(sys.argv[2])"
)
_LIMIT_S = 600

_Job = tuple["subprocess.Popen[bytes] | None", str, Callable[[dict[str, Any]], None]]


class Finisher:
    """One job per window; without a child process the work is done where it is asked for."""

    def __init__(self, process: bool) -> None:
        self._process = process
        self._running: list[_Job] = []

    @property
    def pending(self) -> bool:
        """Whether a result is still to come."""
        return bool(self._running)

    def submit(self, job: dict[str, Any], job_path: str, done: Callable[[dict[str, Any]], None]) -> None:
        """Begin; `done` is called with the result by `collect_done`."""
        with open(job_path, "w", encoding="utf-8") as file:
            json.dump(job, file)
        child: subprocess.Popen[bytes] | None = None
        if self._process:
            with contextlib.suppress(OSError, ValueError):
                child = self._start(job_path)
        self._running.append((child, job_path, done))

    def _start(self, job_path: str) -> subprocess.Popen[bytes]:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        # Not traced, not preloaded, and not stopped by a Ctrl-C meant for the training.
        env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_") and k != "LD_PRELOAD"}
        env["DFTRACER_ENABLE"] = "0"
        return subprocess.Popen(
            [sys.executable, "-S", "-E", "-s", "-c", _RUN, root, job_path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )

    def collect_done(self, wait: bool = False) -> None:
        """Hand over the results that are there; with `wait`, all of them."""
        remaining: list[_Job] = []
        for child, path, done in self._running:
            if child is not None:
                if wait:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_LIMIT_S)
                if child.poll() is None and not wait:
                    remaining.append((child, path, done))
                    continue
            elif not wait:
                remaining.append((child, path, done))
                continue
            done(self._result(path))
        self._running = remaining

    def _result(self, path: str) -> dict[str, Any]:
        try:
            with open(path + ".done", encoding="utf-8") as file:
                result: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            with open(path, encoding="utf-8") as file:
                result = finish(json.load(file))  # no child, or one that died
        for leftover in (path, path + ".done", path + ".part"):
            with contextlib.suppress(OSError):
                os.unlink(leftover)
        return result
