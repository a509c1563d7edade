"""The tracer inside a worker, ours or the rival: both answer to the same names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine

__all__ = ["Tracing", "start"]


class Tracing:
    """An open trace in a directory of its own."""

    def __init__(self, directory: str, settle: Callable[[], object], log: Any) -> None:
        self._directory = directory
        self._log = log
        self.settle = settle

    def finish(self) -> list[Path]:
        """Close the trace; the files that were written."""
        self._log.finalize()
        return sorted(Path(self._directory).glob("*.pfw*"))


def start(*, pinned: bool = True) -> Tracing:
    """Begin tracing with the writer thread off the core that measures.

    A thread inherits the affinity of the thread that starts it, so the first events are recorded
    before the measuring thread moves to its own core.
    """
    core = machine.measuring_core() if pinned else None
    if core is not None:
        machine.pin_writer_core()
    directory = tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("BENCH_DIR"))
    # The rival leaves a log file in the working directory.
    os.chdir(directory)

    from dftracer.python import ai, dftracer  # noqa: PLC0415  (the environment decides what it does)

    log = dftracer.initialize_log(os.path.join(directory, "bench.pfw"), None, -1)
    with ai.compute.backward:
        pass
    settle = _flush()
    settle()
    machine.pin_measuring_thread(core)
    return Tracing(directory, settle, log)


def _flush() -> Callable[[], object]:
    try:
        from dftracer import _core  # noqa: PLC0415
    except ImportError:
        return lambda: None
    return _core.flush
