"""`collect`: the schedule, its windows, and everything that happens at their ends."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import dftracer
from dftracer._units import plural
from dftracer.collect import _card, _clock, _identity, _manifest, _nsys
from dftracer.collect._comms import Comms
from dftracer.collect._finisher import Finisher
from dftracer.collect._foreign import Foreign
from dftracer.collect._forks import guard_forks
from dftracer.collect._health import Health
from dftracer.collect._names import Names
from dftracer.collect._options import Options
from dftracer.collect._plugin import Context
from dftracer.collect._plugins import Plugins
from dftracer.collect._recording import Recording
from dftracer.collect._report import CollectReport
from dftracer.collect._schedule import Place, Schedule
from dftracer.collect._signals import Termination
from dftracer.collect._window import Window
from dftracer.python._torch_required import require_torch

__all__ = ["Collector", "collect"]

_KEPT_STEPS = 10_000


class Collector:
    """The object of `with collect(...) as c`; made by `collect`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._health = Health()
        self._schedule = Schedule(
            options.wait, options.warmup, options.active, options.repeat, options.skip_first
        )
        self._step = 0
        self._place = Place("wait", 0)
        self._window: Window | None = None
        self._windows: list[dict[str, Any]] = []
        self._state = "new"
        self._spent = {"start_s": 0.0, "stop_s": 0.0, "export_s": 0.0, "step_s": 0.0}
        self._step_times: dict[str, list[int]] = {}
        self._finish_cost = {"finish_s": 0.0, "finish_cpu_s": 0.0}

    # The loop -------------------------------------------------------------------------------------

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
        with self._whole():
            self._begin()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """What no part of its own has caught ends the collection, and never the program."""
        try:
            yield
        except Exception as error:
            self._state = "failed"
            self._health.fail("collection", error)

    def _begin(self) -> None:
        self._clock = {"start": _clock.anchor()}
        directory = os.path.abspath(self.options.directory)
        os.makedirs(directory, exist_ok=True)
        self._token = f"{self._pid}-{os.urandom(3).hex()}"  # ranks of several hosts may share a directory
        self.names = Names(directory, self.options.compress)
        self.recording = Recording("pfw" in self.options.traces, directory, self.names.label, self._health)
        with self._health.guard("pfw"):
            self.recording.begin()
        self._finisher = Finisher(self.options.finish == "process")
        self._foreign = Foreign(self._torch, self._give_way)
        with self._health.guard("profilers of the program"):
            self._foreign.watch()
        guard_forks()
        self._termination = Termination(self.close)
        self._termination.watch()
        context = Context(
            directory, self._torch, self.recording.time_ns, self._health.warn, self.options.compress
        )
        self._plugins = Plugins(self.options.plugins, context, self._health)
        self._nsys = _nsys.Range(self._torch, self._health) if "nsys" in self.options.traces else None
        self._write_manifest()  # takes the rank, for processes that nobody gave one
        self._step_start = self.recording.time_ns()
        self._enter(self._schedule.at(0))

    def step(self) -> None:
        """The step that runs has ended; the next one begins."""
        if self._state == "on" and os.getpid() == self._pid:
            with self._whole():
                self._end_step()

    def _end_step(self) -> None:
        now = self.recording.time_ns()
        before = self._place
        times = self._step_times.setdefault(before.phase, [])
        if len(times) < _KEPT_STEPS:
            times.append(now - self._step_start)
        self.recording.step(self._step, self._step_start, now, before.phase)
        self._plugins.step(self._step)
        window = self._window
        if before.phase == "active" and window is not None:
            window.close_step()
            if before.last:
                self._end_window("the schedule")
        self._step += 1
        place = self._schedule.at(self._step)
        if place != before or before.last:
            self._enter(place)
        elif before.phase == "active" and self._window is not None:
            self._window.open_step(self._step)
        if self._finisher.pending:
            self._finisher.collect_done()
        self._step_start = self.recording.time_ns()
        self._spent["step_s"] += (self._step_start - now) / 1e9

    def close(self, reason: str | None = None) -> None:
        """End the collection; a window that is open is kept."""
        if self._state == "on" and os.getpid() == self._pid:
            self._state = "closing"
            with self._whole():
                self._close(reason)

    def _close(self, reason: str | None) -> None:
        if reason is not None:
            self._health.note(f"the loop ended by {reason} in step {self._step}")
        if self._window is not None:
            if self._place.phase == "active":
                self._end_window(reason or "the end of the loop")
            else:
                self._window.stop()
                self._window = None
        self._termination.unwatch()
        self._foreign.unwatch()
        if not self._windows:
            first = self.options.skip_first + self.options.wait + self.options.warmup
            made = plural(self._step, "step was", "steps were")
            self._health.warn(f"no window: {made} made, the first window begins at {first}")
        with self._health.guard("finishing"), self.recording.hidden():
            self._finisher.collect_done(wait=True)
        self._clock["end"] = _clock.anchor()
        comms = self._plugins.of(Comms)
        if comms is not None and self.recording.on:
            with self._health.guard("comms"):
                comms.log_backend_events()
        with self.recording.hidden():
            self._settle_rank(finally_=True)
        with self.recording.hidden():
            for path in self._plugins.finish(self.names):
                self.names.add(path)
        with self._health.guard("pfw"):
            self.recording.end()
        if self.options.card:
            with self._health.guard("workload card"), self.recording.hidden():
                self._write_card()
        self._state = "closed"
        self._write_manifest()
        with self._health.guard("manifest"), self.recording.hidden():
            _manifest.merge_at_end(self.names.directory, self.names.rank, self.names.world_size)

    @property
    def report(self) -> CollectReport:
        """What has been collected so far."""
        if not hasattr(self, "_step_start"):  # it never began
            return CollectReport(self.options.directory, 0, 1, warnings=list(self._health.warnings))
        content = self._manifest()
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

    # Windows --------------------------------------------------------------------------------------

    def _enter(self, place: Place) -> None:
        before, self._place = self._place, place
        if place.phase == "warmup" and (before.phase != "warmup" or before.window != place.window):
            self._make_window(place.window)
            if self._window is not None:
                with self._foreign:
                    self._window.prepare()
        elif place.phase == "active":
            if self._window is None and (before.phase != "active" or before.last):
                self._make_window(place.window)
            if self._window is not None:
                if self._window.recording:
                    self._window.open_step(self._step)
                else:
                    self._start_window()

    def _make_window(self, index: int) -> None:
        other = self._foreign.present()
        if other is not None:
            self._health.warn(f"window {index} is left out: {other}")
            return
        prefix = os.path.join(self.names.directory, f".collect-{self._token}-w{index}")
        self._window = Window(self._torch, self.options, self._health, index, prefix)

    def _start_window(self) -> None:
        window = self._window
        assert window is not None
        began = time.perf_counter()
        self._windows.append(
            {
                "index": window.index,
                "steps": [self._step, self._step],
                "start_us": 0.0,
                "end_us": 0.0,
                "kind": "+".join(
                    name
                    for name in self.options.traces
                    if name != "pfw" and (name != "et" or self.options.wants_et(window.index))
                ),
                "et": None,
                "kineto": None,
                "et_nodes": None,
                "joined": None,
                "coverage": None,
                "name_agreement": None,
            }
        )
        self._plugins.window_start(window.index, self._step)
        with self._foreign, self.recording.hidden():
            window.start(self._step)
        if self._nsys is not None:
            self._nsys.start()
        self._windows[-1]["start_us"] = self.recording.time_ns() / 1000
        self._spent["start_s"] += time.perf_counter() - began

    def _end_window(self, reason: str) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        entry = self._windows[-1]
        entry["end_us"] = self.recording.time_ns() / 1000
        entry["steps"][1] = self._step
        entry["ended_by"] = reason
        began = time.perf_counter()
        if self._nsys is not None:
            self._nsys.stop()
        with self._foreign, self.recording.hidden():
            window.stop()
            stopped = time.perf_counter()
            window.export()
        exported = time.perf_counter()
        self._spent["stop_s"] += stopped - began
        self._spent["export_s"] += exported - stopped
        self._plugins.window_end(window.index, self._step)
        self.recording.window(window.index, int(entry["start_us"]), int(entry["end_us"]))
        with self._health.guard("finishing"), self.recording.hidden():
            self._submit(window, entry)
        self._write_manifest()

    def _submit(self, window: Window, entry: dict[str, Any]) -> None:
        self._settle_rank()
        job = {
            "et": window.et_path if window.has_et else None,
            "kineto": window.kineto_path if window.has_kineto else None,
            "et_out": self.names.trace("torch_et", window.index),
            "kineto_out": self.names.trace("kineto_trace", window.index),
            "compress": self.options.compress,
        }
        job_path = os.path.join(self.names.directory, f".collect-{self._token}-w{window.index}.job")
        self._finisher.submit(job, job_path, lambda result: self._finished(entry, result))

    def _finished(self, entry: dict[str, Any], result: dict[str, Any]) -> None:
        for path in result["files"]:
            name = self.names.add(path)
            entry["et" if name.startswith("torch_et") else "kineto"] = name
        entry["et_nodes"] = result.get("et_nodes")
        entry["joined"] = result.get("joined")
        entry["kineto_events"] = result.get("kineto_events")
        if entry["et_nodes"] and entry["joined"] is not None:
            entry["coverage"] = entry["joined"] / entry["et_nodes"]
            entry["name_agreement"] = entry["joined"] / result["matched"] if result["matched"] else None
            if entry["coverage"] < 0.998:
                whole = plural(entry["et_nodes"], "operator")
                self._health.warn(
                    f"window {entry['index']}: {entry['joined']} of {whole} of the "
                    "execution trace are in Kineto's trace too"
                    + ("" if self.options.threads == "all" else "; threads='all' takes in other threads")
                )
        if result.get("base_ns"):
            entry["kineto_base_ns"] = result["base_ns"]
        for text in result["notes"]:
            self._health.note(f"window {entry['index']}: {text}")
        self._finish_cost["finish_s"] += result["seconds"]
        self._finish_cost["finish_cpu_s"] += result["cpu_seconds"]
        comms = self._plugins.of(Comms)
        if comms is not None and result.get("comm"):
            with self._health.guard("comms"):
                comms.add_kineto_times(entry, result["comm"], result["base_ns"])
        self._write_manifest()

    def _give_way(self, reason: str) -> None:
        """A profiler of the program begins: our window ends here."""
        if self._window is None or os.getpid() != self._pid:
            return
        self._health.warn(f"window {self._window.index} ended early: {reason}")
        if self._place.phase == "active":
            self._end_window(reason)
        else:
            self._window.stop()
            self._window = None

    # What is left behind --------------------------------------------------------------------------

    def _settle_rank(self, finally_: bool = False) -> None:
        """Files carry the rank as it is known by now; a group made late renames them."""
        rank, world_size, source = _identity.place()
        known = self.names.source
        renamed = self.names.settle(rank, world_size, source)
        if finally_:
            renamed = self.names.settle_finally() or renamed
        if renamed:
            for entry in self._windows:
                for kind in ("et", "kineto"):
                    if entry[kind]:
                        entry[kind] = self.names.renamed(entry[kind])
        if rank is not None and known == "nobody":
            self.recording.say_rank(rank, self.names.world_size)

    def _manifest(self) -> dict[str, Any]:
        names = self.names
        medians = {phase: statistics.median(times) / 1e9 for phase, times in self._step_times.items()}
        files = names.files()
        if self.recording.trace_path and os.path.exists(self.recording.trace_path):
            path = self.recording.trace_path
            inside = os.path.dirname(os.path.abspath(path)) == names.directory
            name = os.path.basename(path) if inside else path
            files.append({"name": name, "bytes": os.path.getsize(path)})
        return {
            "version": _manifest.VERSION,
            "versions": {
                "torch": str(self._torch.__version__),
                "python": platform.python_version(),
                "pydftracer": dftracer.__version__,
                "cuda": self._torch.version.cuda,
            },
            "directory": names.directory,
            "rank": names.rank,
            "rank_source": names.source,
            "world_size": names.world_size,
            "host": socket.gethostname(),
            "pid": self._pid,
            "command": list(sys.argv),
            "complete": self._state == "closed",
            "steps": self._step,
            "schedule": self.options.schedule(),
            "traces": list(self.options.traces),
            "windows": self._windows,
            "clock": self._clock,
            "files": files,
            "overheads": {
                **{key: round(value, 6) for key, value in self._spent.items()},
                **{key: round(value, 6) for key, value in self._finish_cost.items()},
                "median_step_s": medians,
            },
            "warnings": list(self._health.warnings),
        }

    def _write_manifest(self) -> None:
        with self._health.guard("manifest"), self.recording.hidden():
            _manifest.write(self.names.manifest(), self._manifest())

    def _write_card(self) -> None:
        if self.names.rank == 0:
            path = os.path.join(self.names.directory, "workload_card.yaml")
            _card.write(path, _card.content(self._torch, self))
            self.names.add(path)

    def steps_per_window(self) -> Iterable[tuple[int, int]]:
        """First and last step of each window."""
        return [(w["steps"][0], w["steps"][1]) for w in self._windows]


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
    costs much more than Kineto: with `et_windows=1, repeat=2` the second window has right times.
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
