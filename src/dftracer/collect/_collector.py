"""`collect`: the loop, from its first step to what is left behind after the last."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from dftracer._packages import require_torch
from dftracer._text import plural
from dftracer.collect import _card
from dftracer.collect._collection import Collection, Costs, Health, Recording
from dftracer.collect._comms import Comms
from dftracer.collect._manifest import Entries, RankManifest, merge_at_end
from dftracer.collect._names import Names
from dftracer.collect._options import Options
from dftracer.collect._plugins import Context, Plugins
from dftracer.collect._windows import Schedule, ScheduledStep, Windows, guard_forks, protect, unprotect

# --- What is left behind


@dataclass
class CollectReport:
    """The manifest of this rank so far; complete once the `with` block has ended."""

    directory: str
    rank: int
    world_size: int
    windows: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    overheads: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def coverage(self) -> float | None:
        """Part of the execution traces' operators that Kineto's traces have too; None without any."""
        nodes = sum(w["et_nodes"] or 0 for w in self.windows)
        joined = sum(w["joined"] or 0 for w in self.windows)
        return joined / nodes if nodes else None

    def __str__(self) -> str:
        windows = plural(len(self.windows), "window")
        lines = [f"rank {self.rank} of {self.world_size}: {windows} in {self.directory}"]
        for window in self.windows:
            first, last = window["steps"]
            what = f"  window {window['index']}, steps {first} to {last}"
            if window["et_nodes"]:
                what += f": {window['joined']} of {plural(window['et_nodes'], 'operator')} joined"
                if window["coverage"] is not None:
                    what += f" ({100 * window['coverage']:.2f} %)"
            lines.append(what)
        lines += [f"  {entry['name']}: {plural(entry['bytes'], 'byte')}" for entry in self.files]
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)


# --- SIGTERM
#
# SIGTERM ends a process at once; a window that is open then is closed first. Only where nobody else
# handles the signal: the default action follows at once, with the same exit status.


class Termination:
    """Calls `close` before the default action of SIGTERM, from `watch` until `unwatch`."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._pid = os.getpid()
        self._watching = False

    def watch(self) -> None:
        """Begin, in the main thread only; the program's own handler is left alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._watching = True
            protect(self)

    def unwatch(self) -> None:
        """End, unless the program has set a handler since."""
        if not self._watching or threading.current_thread() is not threading.main_thread():
            return
        self._watching = False
        unprotect(self)
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def abandon_in_child(self) -> None:
        """A forked child dies from the signal as if it had never been watched."""
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._close("SIGTERM")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


# --- The loop


class Collector:
    """The object of `with collect(...) as c`; made by `collect`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._health = Health()
        self._costs = Costs()
        self._schedule = Schedule(
            options.wait, options.warmup, options.active, options.repeat, options.skip_first
        )
        self._steps = 0  # that have ended
        self._step = 0  # the number of the one that runs: a training that was resumed goes on counting
        self._scheduled = ScheduledStep("wait", 0)
        self._state = "new"

    def __enter__(self) -> Collector:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else kind.__name__)

    def start(self) -> None:
        """Begin, with step 0."""
        if self._state != "new":
            return
        self._torch = require_torch("torch")
        self._pid = os.getpid()
        self._state = "on"
        with self._contain_errors():
            self._begin()

    @property
    def _running(self) -> bool:
        """Whether it has begun in this process, and neither ended nor failed."""
        return self._state == "on" and os.getpid() == self._pid

    def step(self) -> None:
        """The step that runs has ended; the next one begins."""
        self._step_is_over()

    def _step_is_over(self, number: int | None = None) -> None:
        """The same, if it is known which number the step has."""
        if self._running:
            with self._contain_errors():
                self._end_step(self._step if number is None else number)

    def close(self, reason: str | None = None) -> None:
        """End the collection; a window that is open is kept."""
        if self._running:
            self._state = "closing"
            with self._contain_errors():
                self._close(reason)

    @property
    def report(self) -> CollectReport:
        """What has been collected so far."""
        if not hasattr(self, "_step_start"):  # it never began
            return CollectReport(self.options.directory, 0, 1, warnings=list(self._health.warnings))
        content = self._manifest.content()
        return CollectReport(
            directory=content["directory"],
            rank=content["rank"],
            world_size=content["world_size"],
            windows=content["windows"],
            files=content["files"],
            warnings=content["warnings"],
            overheads=content["overheads"],
            manifest=content,
        )

    @contextlib.contextmanager
    def _contain_errors(self) -> Iterator[None]:
        """An error that no part has handled ends the collection, never the program."""
        try:
            yield
        except Exception as error:
            self._state = "failed"
            self._health.fail("collection", error)

    def _begin(self) -> None:
        torch, options, health = self._torch, self.options, self._health
        directory = os.path.abspath(options.directory)
        os.makedirs(directory, exist_ok=True)
        self._names = names = Names(directory, options.compress)
        self._recording = recording = Recording("pfw" in options.traces, directory, names.label, health)
        with health.guard("pfw"):
            recording.begin()
        context = Context(directory, torch, recording.time_ns, health.warn, options.compress)
        self._plugins = plugins = Plugins(options.plugins, context, health)
        collection = Collection(torch, options, health, self._costs, names, recording, plugins)
        self._entries = entries = Entries(collection)
        self._windows = Windows(collection, entries)
        self._manifest = RankManifest(collection, entries)
        entries.changed = self._manifest.write
        guard_forks()
        self._termination = Termination(self.close)
        self._termination.watch()
        self._manifest.write()  # takes a rank if nobody gave the process one
        self._step_start = self._recording.time_ns()
        self._begin_step(self._schedule.at(0))

    def _begin_step(self, scheduled: ScheduledStep) -> None:
        before, self._scheduled = self._scheduled, scheduled
        self._manifest.steps = self._steps
        self._windows.begin_step(self._step, before, scheduled)

    def _end_step(self, number: int) -> None:
        self._step = number
        now = self._recording.time_ns()
        scheduled = self._scheduled
        self._costs.step(scheduled.phase, now - self._step_start)
        self._recording.step(self._step, self._step_start, now, scheduled.phase)
        self._plugins.step(self._step)
        self._windows.end_step(scheduled)
        self._step += 1
        self._steps += 1
        self._begin_step(self._schedule.at(self._steps))
        self._entries.take_finished()
        self._step_start = self._recording.time_ns()
        self._costs.add("step_s", (self._step_start - now) / 1e9)

    def _close(self, reason: str | None) -> None:
        if reason is not None:
            self._health.note(f"the loop ended with {reason} in step {self._step}")
        self._windows.close(reason or "the end of the loop")
        self._termination.unwatch()
        if not self._entries.all:
            first = self.options.skip_first + self.options.wait + self.options.warmup
            ran = plural(self._steps, "step")
            self._health.warn(
                f"no window recorded: the loop ran {ran}, the first window starts at step {first}"
            )
        self._entries.wait_for_all()
        self._manifest.end_clock()
        comms = self._plugins.of(Comms)
        if comms is not None and self._recording.on:
            with self._health.guard("comms"):
                comms.log_backend_events()
        with self._recording.hidden():
            self._entries.update_rank(final=True)
            for path in self._plugins.finish(self._names):
                self._names.add(path)
        with self._health.guard("pfw"):
            self._recording.end()
        if self.options.card:
            with self._health.guard("workload card"), self._recording.hidden():
                self._write_card()
        self._state = "closed"
        self._manifest.complete = True
        self._manifest.write()
        with self._health.guard("manifest"), self._recording.hidden():
            merge_at_end(self._names.directory, self._names.rank, self._names.world_size)

    def _write_card(self) -> None:
        if self._names.rank == 0:
            path = os.path.join(self._names.directory, "workload_card.yaml")
            _card.write(path, _card.content(self._torch, self.options, self._names, self._steps))
            self._names.add(path)


def collect(
    directory: str | os.PathLike[str],
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 2,
    repeat: int = 1,
    skip_first: int = 0,
    traces: Iterable[str] = ("pfw", "et", "kineto"),
    et_windows: int | None = None,
    compress: bool = True,
    threads: str = "all",
    record_shapes: bool = True,
    profile_memory: bool = False,
    with_stack: bool = False,
    with_flops: bool = False,
    with_modules: bool = False,
    plugins: Iterable[Any] = ("comms", "memory", "nvml"),
    card: bool = True,
    workload: Mapping[str, Any] | None = None,
    finish: str = "process",
) -> Collector:
    """Collect traces of a training loop; call `step()` on the result at the end of each step.

    Of each cycle of steps `wait` pass untouched, `warmup` warm the profiler up and `active` are recorded;
    there are `repeat` cycles (0: until the loop ends) after the first `skip_first` steps. An execution trace
    costs much more than Kineto: with `et_windows=1, repeat=2` the second window has accurate times.
    """
    return Collector(
        Options(
            os.fspath(directory),
            wait=wait,
            warmup=warmup,
            active=active,
            repeat=repeat,
            skip_first=skip_first,
            traces=(traces,) if isinstance(traces, str) else tuple(traces),
            et_windows=et_windows,
            compress=compress,
            threads=threads,
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_stack=with_stack,
            with_flops=with_flops,
            with_modules=with_modules,
            plugins=tuple(plugins),
            card=card,
            workload=dict(workload or {}),
            finish=finish,
        )
    )
