"""Our own trace (`.pfw.gz`) of the collection: begun here, or the one that records already."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

from dftracer.collect._health import Health

__all__ = ["Recording"]

_STEP_CATEGORY = "PP"  # where the analysis looks for steps of a profiler


class Recording:
    """Steps and windows as events, and the I/O of the collection itself kept out."""

    def __init__(self, wanted: bool, directory: str, label: str, health: Health) -> None:
        self._wanted = wanted
        self._health = health
        self._owned = False
        self._path = os.path.join(directory, f"trace_{label}.pfw")
        # Imported when a collection begins: the switch is read at that moment.
        self._session: Any = importlib.import_module("dftracer._session")
        self._core: Any = importlib.import_module("dftracer._core")
        self.trace_path: str | None = None

    @property
    def on(self) -> bool:
        """Whether events are recorded."""
        return bool(self._wanted and self._core.active())

    def begin(self) -> None:
        """Record, unless tracing was refused; an existing session is used as it is."""
        if not self._wanted:
            return
        if not self._session.SETTINGS.enable:
            self._health.warn(
                "no .pfw trace: tracing was off (DFTRACER_ENABLE=0, or dftracer.python was imported before "
                "dftracer.collect)"
            )
            self._wanted = False
            return
        if not self._core.active():
            self._session.begin(self._path)
            self._owned = True
        else:
            self._session.begin(None)
        self.trace_path = self._core.trace_path()

    def say_rank(self, rank: int, world_size: int) -> None:
        """For a rank that the launcher did not tell: the trace says it too."""
        if self.on:
            self._core.log_metadata("PR", "rank", str(rank))
            self._core.log_metadata("PR", "world_size", str(world_size))

    def time_ns(self) -> int:
        """Now, on the clock of the trace."""
        return int(self._core.time_ns())

    def step(self, number: int, start_ns: int, end_ns: int, phase: str) -> None:
        """One step of the loop."""
        if self.on:
            self._core.log_event(
                f"ProfilerStep#{number}",
                _STEP_CATEGORY,
                start_ns,
                end_ns - start_ns,
                {"step": number, "phase": phase, "source": "collect"},
            )

    def window(self, index: int, start_us: int, end_us: int) -> None:
        """When a window was."""
        if self.on:
            self._core.log_metadata("CM", f"collect.window.{index}", f"{start_us}-{end_us}")

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Our own files are not the program's I/O."""
        self._core.hide_io(True)
        try:
            yield
        finally:
            self._core.hide_io(False)

    def end(self) -> None:
        """Write everything; end what was begun here."""
        if self.on:
            self.trace_path = self._core.trace_path() or self.trace_path
            if self._owned:
                self._session.end()
            else:
                self._core.flush()
