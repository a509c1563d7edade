"""What the server shows: runs read in the background, repeatedly while a job is followed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from dftracer.view.live import live_numbers
from dftracer.view.part import Part
from dftracer.view.run import Run
from dftracer.view.source import Source

__all__ = ["Session", "Shown"]

_LEAST_WAIT_S = 1.0
_WAIT_FACTOR = 4  # reading again takes at most a fifth of one core


@dataclass
class Shown:
    """One run and the progress of reading it."""

    source: Source
    run: Run | None = None
    readings: dict[int, Run] = field(default_factory=dict)  # the last and the one before it, by number
    steps: Part | None = None
    done: int = 0
    total: int = 0
    error: str | None = None
    generation: int = 0  # grows whenever there is something new to draw
    stamp: str = ""
    live: dict[str, Any] = field(default_factory=dict)

    @property
    def reading(self) -> int:
        return max(self.readings, default=0)

    def read_as(self, run: Run) -> None:
        """Show what was just read. A page asks about the reading it knows until it has heard of this one."""
        last = self.reading
        self.readings = {last + 1: run, **({last: self.readings[last]} if last else {})}
        self.run = run

    def state(self) -> dict[str, Any]:
        return {
            "title": self.source.title,
            "ready": self.run is not None,
            "steps": self.steps is not None,
            "done": self.done,
            "total": self.total,
            "error": self.error,
            "generation": self.generation,
            "notes": self.source.notes,
            "live": {**self.live, **self._samples()},
        }

    def _samples(self) -> dict[str, Any]:
        rate = self.live.get("steps_per_s")
        samples = None if self.steps is None else self.steps.info["samples_per_step"]
        return {} if rate is None or samples is None else {"samples_per_s": samples * rate}


class Session:
    """Reads the runs in a separate thread, one after the other."""

    def __init__(self, sources: list[Source], follow: bool = False) -> None:
        self.shown = [Shown(s) for s in sources]
        self.follow = follow
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dftracer-view", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)
        for shown in self.shown:
            shown.source.close()

    def state(self) -> dict[str, Any]:
        return {"follow": self.follow, "runs": [s.state() for s in self.shown]}

    def _work(self) -> None:
        began = time.monotonic()
        for shown in self.shown:
            self._load(shown)
        for shown in self.shown:
            self._find_steps(shown)
        while self.follow:
            took = time.monotonic() - began
            if self._stop.wait(max(_LEAST_WAIT_S, _WAIT_FACTOR * took)):
                return
            began = time.monotonic()
            for shown in self.shown:
                self._refresh(shown)

    def _refresh(self, shown: Shown) -> None:
        try:
            shown.source.reopen()
        except Exception as e:  # the page must show it; the next attempt may succeed
            shown.error = str(e) or type(e).__name__
            return
        if shown.live:
            shown.live = {**shown.live, **shown.source.facts()}
        if shown.source.stamp() != shown.stamp:
            self._load(shown)
            self._find_steps(shown)

    def _load(self, shown: Shown) -> None:
        def progress(done: int, total: int) -> None:
            shown.done, shown.total = done, total
            if self._stop.is_set():
                raise _Stopped

        stamp = shown.source.stamp()
        try:
            run = shown.source.load(progress)
            shown.live = {**live_numbers(run), **shown.source.facts()} if self.follow else {}
            shown.read_as(run)
            shown.error, shown.stamp = None, stamp
            shown.generation += 1
        except _Stopped:
            pass
        except Exception as e:  # the page must show it; the thread has no other way to report it
            shown.error = str(e) or type(e).__name__

    def _find_steps(self, shown: Shown) -> None:
        if shown.run is None or self._stop.is_set():
            return
        try:
            shown.steps = shown.source.steps()
            shown.generation += 1
        except Exception as e:
            note = f"steps are not shown: {e}"
            if note not in shown.source.notes:
                shown.source.notes.append(note)


class _Stopped(Exception):
    """The server ends."""
