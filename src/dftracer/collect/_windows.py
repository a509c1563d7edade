"""The windows of a collection: each is made, started and ended where the schedule says, one at a time."""

from __future__ import annotations

import os
import time
from typing import Any

from dftracer.collect import _nsys
from dftracer.collect._costs import Costs
from dftracer.collect._entries import Entries
from dftracer.collect._foreign import Foreign
from dftracer.collect._health import Health
from dftracer.collect._options import Options
from dftracer.collect._plugins import Plugins
from dftracer.collect._recording import Recording
from dftracer.collect._schedule import Place
from dftracer.collect._window import Window

__all__ = ["Windows"]


class Windows:
    """The one that is open, if any."""

    def __init__(
        self,
        torch: Any,
        options: Options,
        directory: str,
        health: Health,
        recording: Recording,
        plugins: Plugins,
        costs: Costs,
        entries: Entries,
    ) -> None:
        self._torch = torch
        self._options = options
        self._health = health
        self._recording = recording
        self._plugins = plugins
        self._costs = costs
        self._entries = entries
        self._pid = os.getpid()
        # Ranks of several hosts may share a directory.
        self._prefix = os.path.join(directory, f".collect-{self._pid}-{os.urandom(3).hex()}-w")
        self._nsys = _nsys.Range(torch, health) if "nsys" in options.traces else None
        self._foreign = Foreign(torch, self._give_way)
        with health.guard("profilers of the program"):
            self._foreign.watch()
        self._open: Window | None = None
        self._step = 0

    def begin_step(self, step: int, before: Place, place: Place) -> None:
        """A step begins, which lies at `place`, after one at `before`."""
        self._step = step
        if place != before or before.last:
            self._enter(before, place)
        elif place.phase == "active" and self._open is not None:
            self._open.open_step(step)

    def end_step(self, place: Place) -> None:
        """The step has ended, and the window with its last one."""
        if place.phase == "active" and self._open is not None:
            self._open.close_step()
            if place.last:
                self._end("the schedule")

    def close(self, reason: str) -> None:
        """No more windows; one that records is kept."""
        self._leave(reason)
        self._foreign.unwatch()

    def _enter(self, before: Place, place: Place) -> None:
        if place.phase == "warmup" and (before.phase != "warmup" or before.window != place.window):
            self._make(place.window)
            if self._open is not None:
                with self._foreign:
                    self._open.prepare()
        elif place.phase == "active":
            if self._open is None and (before.phase != "active" or before.last):
                self._make(place.window)
            if self._open is not None:
                if self._open.recording:
                    self._open.open_step(self._step)
                else:
                    self._start(self._open)

    def _give_way(self, reason: str) -> None:
        """A profiler of the program begins: our window ends here."""
        if self._open is not None and os.getpid() == self._pid:
            self._health.warn(f"window {self._open.index} ended early: {reason}")
            self._leave(reason)

    def _leave(self, reason: str) -> None:
        if self._open is None:
            return
        if self._open.recording:
            self._end(reason)
        else:  # it was warming up
            self._open.stop()
            self._open = None

    def _make(self, index: int) -> None:
        other = self._foreign.present()
        if other is not None:
            self._health.warn(f"window {index} is left out: {other}")
            return
        self._open = Window(self._torch, self._options, self._health, index, f"{self._prefix}{index}")

    def _start(self, window: Window) -> None:
        began = time.perf_counter()
        entry = self._entries.begin(window.index, self._step)
        self._plugins.window_start(window.index, self._step)
        with self._foreign, self._recording.hidden():
            window.start(self._step)
        if self._nsys is not None:
            self._nsys.start()
        entry["start_us"] = self._recording.time_ns() / 1000
        self._costs.add("start_s", time.perf_counter() - began)

    def _end(self, reason: str) -> None:
        window, self._open = self._open, None
        if window is None:
            return
        entry = self._entries.all[-1]
        entry["end_us"] = self._recording.time_ns() / 1000
        entry["steps"][1] = self._step
        entry["ended_by"] = reason
        began = time.perf_counter()
        if self._nsys is not None:
            self._nsys.stop()
        with self._foreign, self._recording.hidden():
            window.stop()
            stopped = time.perf_counter()
            window.export()
        self._costs.add("stop_s", stopped - began)
        self._costs.add("export_s", time.perf_counter() - stopped)
        self._plugins.window_end(window.index, self._step)
        self._recording.window(window.index, int(entry["start_us"]), int(entry["end_us"]))
        self._entries.finish(window, f"{self._prefix}{window.index}")
