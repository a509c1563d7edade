"""What all parts of a collection share: which of them have failed, what they cost, and our own trace."""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dftracer import _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.collect._names import Names
    from dftracer.collect._options import Options
    from dftracer.collect._plugins import Plugins


@dataclass
class Collection:
    """The collection of one process."""

    torch: Any
    options: Options
    health: Health
    costs: Costs
    names: Names
    recording: Recording
    plugins: Plugins


# --- Failures


class Health:
    """Which parts have failed, and every warning of the run, for the manifest."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._off: set[str] = set()

    def warn(self, text: str) -> None:
        """Say something once on stderr and keep it for the report."""
        if text not in self.warnings:
            self.warnings.append(text)
            _messages.always(f"collect: {text}")

    def note(self, text: str) -> None:
        """Keep something for the report without a line on stderr."""
        if text not in self.warnings:
            self.warnings.append(text)

    def works(self, part: str) -> bool:
        """Whether this part has not failed yet."""
        return part not in self._off

    def fail(self, part: str, error: BaseException | str) -> None:
        """Switch a part off."""
        if part not in self._off:
            self._off.add(part)
            what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.warn(f"{part} is disabled: {what}")

    @contextlib.contextmanager
    def guard(self, part: str) -> Iterator[None]:
        """An error inside switches off `part` and nothing else."""
        try:
            yield
        except Exception as error:
            self.fail(part, error)


# --- Costs

_KEPT_STEPS = 10_000


class Costs:
    """Seconds by what they were spent on, and the duration of steps by phase."""

    def __init__(self) -> None:
        names = ("start_s", "stop_s", "export_s", "step_s", "finish_s", "finish_cpu_s")
        self._spent = dict.fromkeys(names, 0.0)
        self._step_ns: dict[str, list[int]] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add to one cost."""
        self._spent[name] += seconds

    def step(self, phase: str, ns: int) -> None:
        """A step of the loop took this long."""
        times = self._step_ns.setdefault(phase, [])
        if len(times) < _KEPT_STEPS:
            times.append(ns)

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        medians = {phase: statistics.median(times) / 1e9 for phase, times in self._step_ns.items()}
        return {**{k: round(v, 6) for k, v in self._spent.items()}, "median_step_s": medians}


# --- Our own trace (`.pfw.gz`)

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

    def write_rank(self, rank: int, world_size: int) -> None:
        """Put a rank that the launcher did not announce into the trace."""
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
