"""The profiler's callback: takes a finished window and passes it to a thread that writes it."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dftracer import _core
from dftracer._before_finalize import before_finalize
from dftracer.python.torch._convert import write_window
from dftracer.python.torch._getters import Recorded

__all__ = ["trace_handler"]

_Window = tuple[Any, Recorded]
# A waiting window keeps Kineto's memory alive: the third one waits in the training thread instead.
_WAITING_WINDOWS = 2


class _Writer:
    """One thread, started with the first window; `drain` returns when all windows are written."""

    def __init__(self) -> None:
        self._windows: queue.Queue[_Window] = queue.Queue(_WAITING_WINDOWS)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # Counts the waiters; the writer, which otherwise yields to the program, checks it as it goes.
        self._hurry = bytearray(1)

    def submit(self, window: _Window) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dftracer-profiler", daemon=True)
                self._thread.start()
        try:
            self._windows.put_nowait(window)
        except queue.Full:
            with self._waiting():
                self._windows.put(window)

    def drain(self) -> None:
        if self._thread is None or self._thread is threading.current_thread():
            return
        with self._waiting():
            self._windows.join()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._lock:
            self._hurry[0] += 1
        try:
            yield
        finally:
            with self._lock:
                self._hurry[0] -= 1

    def _run(self) -> None:
        while True:
            results, recorded = self._windows.get()
            try:
                write_window(results, recorded, self._hurry)
            except Exception as error:
                _report(error)
            finally:
                # The window's memory must not wait for the next one.
                del results
                self._windows.task_done()


def _report(error: BaseException) -> None:
    """The traced program must not fail because a window could not be read."""
    print(f"dftracer: a profiler window was not written: {type(error).__name__}: {error}", file=sys.stderr)


_writer = _Writer()


def _restart_in_child() -> None:
    global _writer  # noqa: PLW0603 - threads do not survive a fork, their queue must not either
    _writer = _Writer()


os.register_at_fork(after_in_child=_restart_in_child)


def _drain() -> None:
    _writer.drain()


before_finalize(_drain)


def trace_handler(profiler_result: Any) -> None:
    """Write a finished window of `torch.profiler.profile` to the trace.

    Pass it as `on_trace_ready`, or call it from your own handler next to `export_chrome_trace` and
    `export_stacks`. Returns at once; the events are written by another thread, at the latest in `finalize()`.
    """
    if not _core.active():
        return
    inner = getattr(profiler_result, "profiler", profiler_result)
    results = getattr(inner, "kineto_results", None)
    if results is None:
        return
    try:
        _writer.submit((results, Recorded.of(profiler_result)))
    except Exception as error:
        _report(error)
