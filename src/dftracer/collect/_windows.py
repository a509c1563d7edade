"""Windows: when they are, what one records, and what it must not disturb.

The order is what makes the join whole. Kineto is on before the observer and off after it, so that every
operator of the execution trace is one of Kineto's; record function ids are given only while the observer is
on. Each window has a fresh observer, finished when the window ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shlex
import shutil
import sys
import sysconfig
import threading
import time
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dftracer.collect._collection import Collection, Health
from dftracer.collect._manifest import Entries
from dftracer.torch.patches import Patches

# --- When


@dataclass(frozen=True)
class ScheduledStep:
    """What the schedule does in a step: `wait`, `warmup`, `active` or, after the last window, `done`."""

    phase: str
    window: int
    last: bool = False  # of the active steps of its window


OFF = ScheduledStep("done", -1)


class Schedule:
    """`skip_first` steps, then `repeat` cycles (0: forever) of wait, warmup and active steps."""

    def __init__(self, wait: int, warmup: int, active: int, repeat: int, skip_first: int) -> None:
        self._wait, self._warmup, self._active = wait, warmup, active
        self._repeat, self._skip = repeat, skip_first

    def at(self, step: int) -> ScheduledStep:
        """Where a step is in the schedule; steps are counted from 0."""
        if step < self._skip:
            return ScheduledStep("wait", 0)
        cycle = self._wait + self._warmup + self._active
        window, within = divmod(step - self._skip, cycle)
        if self._repeat and window >= self._repeat:
            return OFF
        if within < self._wait:
            return ScheduledStep("wait", window)
        if within < self._wait + self._warmup:
            return ScheduledStep("warmup", window)
        return ScheduledStep("active", window, within == cycle - 1)


# --- In a forked child
#
# What a forked child must not do: write into its parent's trace, record for a profiler it cannot
# stop. The child inherits the observer together with the unwritten part of its buffer and the open
# file; a DataLoader worker that is forked inside a window would fill the parent's file with its own
# operators.


_protected: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def guard_forks() -> None:
    """Make children of this process leave its windows alone; may be called repeatedly."""
    global _registered  # noqa: PLW0603 - a fork handler cannot be taken back
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_in_child)


def protect(window: Any) -> None:
    """`window.abandon_in_child()` is called in children forked from now on."""
    _protected.add(window)


def unprotect(window: Any) -> None:
    """This window has ended."""
    _protected.discard(window)


def _in_child() -> None:
    for window in tuple(_protected):
        with contextlib.suppress(Exception):
            window.abandon_in_child()
    _protected.clear()


def silence(path: str) -> None:
    """Discard what this process still has to write to an open file."""
    wanted = os.path.realpath(path)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):  # closed since it was listed
            if os.path.realpath(f"/proc/self/fd/{name}") == wanted:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, int(name), inheritable=False)
                os.close(nowhere)


# --- Beside other threads
#
# Waiting until no other thread is inside an operator that began under the profiler. With
# `profile_all_threads`, Kineto frees its memory when it stops, and an operator that another thread
# still executes writes its end time there (torch 2.13: the process dies sooner or later). So new
# operators are kept out first, and the profiler is stopped once every thread has been seen to move
# on: at another position in its Python code, in code of the standard library, where no operator runs, or
# waiting for the interpreter lock.


_STDLIB = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_PAUSE_S = 0.0005
_HOLD_S = 0.002  # below the switch interval: whoever ends an operator meanwhile has to wait for the lock
_SWITCHES = 3

_Position = tuple[int, int]


def _positions() -> dict[int, _Position | None]:
    """Where each other thread is; None for one that waits inside the standard library."""
    me = threading.get_ident()
    found: dict[int, _Position | None] = {}
    for ident, frame in sys._current_frames().items():
        if ident == me:
            continue
        name = frame.f_code.co_filename
        own = name.startswith(_STDLIB) and not any(site in name for site in _SITE)
        found[ident] = None if own or name.startswith("<frozen") else (id(frame), frame.f_lasti)
    return found


def others_exist() -> bool:
    """Whether any thread but this one and our own samplers executes Python code."""
    own = {t.ident for t in threading.enumerate() if t.name.startswith("dftracer-")}
    own.add(threading.get_ident())
    return any(ident not in own for ident in sys._current_frames())


def _switches(native_id: int | None) -> int:
    """How often a thread has given up its processor by itself."""
    try:
        with open(f"/proc/self/task/{native_id}/status", "rb", buffering=0) as file:
            for line in file.read().splitlines():
                if line.startswith(b"voluntary_ctxt_switches"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _hold_the_lock() -> None:
    end = time.monotonic() + _HOLD_S
    while time.monotonic() < end:
        pass


def wait_for_operators(limit_s: float) -> bool:
    """Whether every operator that other Python threads were in has ended, after at most `limit_s`."""
    pending = {ident: at for ident, at in _positions().items() if at is not None}
    if not pending:
        return True
    native = {thread.ident: thread.native_id for thread in threading.enumerate()}
    before = {ident: _switches(native.get(ident)) for ident in pending}
    end = time.monotonic() + limit_s
    rounds = 0
    while pending:
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
        now = _positions()
        pending = {ident: at for ident, at in pending.items() if ident in now and now[ident] == at}
        rounds += 1
        if rounds > _SWITCHES and pending:
            # A loop around a single operator is always found at the same position.
            _hold_the_lock()
            pending = {
                ident: at
                for ident, at in pending.items()
                if _switches(native.get(ident)) - before[ident] < _SWITCHES
            }
    return True


# --- Beside the program's own profilers
#
# The program's own profilers and observers come first: we end our window when one of them starts.
# torch allows one Kineto session and one execution trace observer per process. A second observer
# replaces the first and both end wrong; a second profiler empties the first one.


class OtherProfilers:
    """Tracks the program's own profilers; ends our window before one of them starts."""

    def __init__(self, torch: Any, end_window: Callable[[str], None]) -> None:
        self._observer_class = torch.profiler.ExecutionTraceObserver
        self._profile_class = torch.autograd.profiler.profile
        self._enabled = torch.autograd._profiler_enabled
        self._end_window = end_window
        self._ours = 0
        self._observers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._profilers: weakref.WeakSet[Any] = weakref.WeakSet()  # those warming up or recording
        self._patches = Patches()

    def watch(self) -> None:
        """Find the observers already registered, and watch for new ones."""
        for candidate in gc.get_objects():
            if type(candidate) is self._observer_class:
                self._observers.add(candidate)

        def around_register(original: Callable[..., Any]) -> Callable[..., Any]:
            def register_callback(observer: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._ours:
                    self._observers.add(observer)
                    self._program_starts_one("the program started an execution trace of its own")
                return original(observer, *args, **kwargs)

            return register_callback

        def around_prepare(original: Callable[..., Any]) -> Callable[..., Any]:
            def prepare_trace(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._ours:
                    self._profilers.add(profiler)
                    self._program_starts_one("the program started a profiler of its own")
                return original(profiler, *args, **kwargs)

            return prepare_trace

        def around_exit(original: Callable[..., Any]) -> Callable[..., Any]:
            def leave(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                self._profilers.discard(profiler)
                return original(profiler, *args, **kwargs)

            return leave

        self._patches.around(self._observer_class, "register_callback", around_register)
        self._patches.around(self._profile_class, "_prepare_trace", around_prepare)
        self._patches.around(self._profile_class, "__exit__", around_exit)

    def _program_starts_one(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            self._end_window(reason)

    def unwatch(self) -> None:
        """Put torch back as it was."""
        self._patches.undo_all()

    def __enter__(self) -> OtherProfilers:
        """What starts inside is ours."""
        self._ours += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._ours -= 1

    def present(self) -> str | None:
        """Which kind of other profiler is on in this process, if any."""
        if self._enabled() or self._profilers:
            return "the program runs a profiler of its own"
        if any(observer.is_registered for observer in self._observers):
            return "the program records an execution trace of its own"
        return None


# --- One window

_OPERATOR_LIMIT_S = 10.0


class _NoObserver:
    """Keeps torch from making an observer of its own (ENABLE_PYTORCH_EXECUTION_TRACE) for our profiler."""

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""

    def cleanup(self) -> None:
        """Nothing."""


class Window:
    """Kineto, the observer, and the region `ProfilerStep#n` of each active step."""

    def __init__(self, collection: Collection, index: int, prefix: str) -> None:
        self._torch = collection.torch
        self._options = collection.options
        self._health = collection.health
        self.index = index
        self.et_path = f"{prefix}.et.json"
        self.kineto_path = f"{prefix}.kineto.json"
        self._profiler: Any = None
        self._observer: Any = None
        self._region: Any = None
        self._all_threads = False
        self._pid = os.getpid()
        self.prepared = False
        self.recording = False
        self.has_et = False
        self.has_kineto = False

    # Phases ---------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Warm up: Kineto is on and what it records is thrown away."""
        self.prepared = True
        if "kineto" not in self._options.traces or not self._health.works("kineto"):
            return
        with self._health.guard("kineto"):
            self._profiler = self._make_profiler()
            _prepare(self._profiler, self._torch)

    def start(self, step: int) -> None:
        """Record from here on."""
        if not self.prepared:
            self.prepare()
        self.recording = True
        protect(self)
        if self._profiler is not None:
            try:
                self._profiler.start_trace()
            except Exception as error:
                self._profiler = None
                self._health.fail("kineto", error)
        if self._options.wants_et(self.index) and self._health.works("et"):
            with self._health.guard("et"):
                self._start_observer()
        self.open_step(step)

    def open_step(self, step: int) -> None:
        """Begin the region of a step."""
        try:
            self._region = self._torch.profiler.record_function(f"ProfilerStep#{step}")
            self._region.__enter__()
        except Exception as error:
            self._region = None
            self._health.fail("step regions", error)

    def close_step(self) -> None:
        """End the region of a step."""
        region, self._region = self._region, None
        if region is not None:
            with self._health.guard("step regions"):
                region.__exit__(None, None, None)

    def stop(self) -> None:
        """End the window; the observer's file is whole afterwards, Kineto's results wait for `export`."""
        self.close_step()
        if not self.recording:
            self._cancel()
            return
        self.recording = False
        observer, self._observer = self._observer, None
        if observer is not None:
            with self._health.guard("et"):
                observer.stop()
                self.has_et = True
        if self._profiler is not None:
            self._stop_profiler()
        if observer is not None:
            with self._health.guard("et"):
                observer.unregister_callback()
        unprotect(self)

    def export(self) -> None:
        """Write Kineto's file; it can be asked for once."""
        if self._profiler is None or not self.has_kineto:
            return
        with self._health.guard("kineto"):
            self._profiler.export_chrome_trace(self.kineto_path)
        if not os.path.isfile(self.kineto_path):
            self.has_kineto = False
            self._health.warn(
                f"window {self.index} has no Kineto trace: another profiler ran in the same window"
            )

    @property
    def profiler(self) -> Any:
        """torch's profiler object, for plug-ins."""
        return self._profiler

    # Inside ---------------------------------------------------------------------------------------

    def _make_profiler(self) -> Any:
        profiler = self._torch.profiler
        options = self._options
        more: dict[str, Any] = {}
        # All threads and memory events exclude each other in torch: memory was asked for by name.
        if options.threads == "all" and not options.profile_memory:
            config = _all_threads_config(profiler)
            if config is not None:
                more["experimental_config"] = config
                self._all_threads = True
        return profiler.profile(
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=options.with_stack,
            with_flops=options.with_flops,
            with_modules=options.with_modules,
            execution_trace_observer=_NoObserver(),
            **more,
        )

    def _start_observer(self) -> None:
        directory = os.path.dirname(self.et_path)
        # torch would fail silently, here and for every later observer of the process.
        if not os.access(directory, os.W_OK | os.X_OK):
            raise OSError(f"{directory} cannot be written to")
        observer = self._torch.profiler.ExecutionTraceObserver()
        observer.register_callback(self.et_path)
        observer.start()
        self._observer = observer

    def _stop_profiler(self) -> None:
        if self._all_threads and others_exist():
            try:
                activity = self._torch.profiler.ProfilerActivity.CPU
                self._profiler.profiler.toggle_collection_dynamic(False, {activity})
                safe = wait_for_operators(_OPERATOR_LIMIT_S)
            except Exception as error:
                safe = False
                self._health.warn(f"threads: {type(error).__name__}: {error}")
            if not safe:
                # Stopping now could crash the program; an unfinished profiler only keeps its memory.
                self._profiler = None
                self._health.fail(
                    "kineto", f"another thread stays in one operator for more than {_OPERATOR_LIMIT_S:.0f} s"
                )
                return
        try:
            self._profiler.stop_trace()
            self.has_kineto = True
        except Exception as error:
            self._profiler = None
            self._health.fail("kineto", error)

    def _cancel(self) -> None:
        """A window that was prepared and never started (the loop ended while warming up)."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            with self._health.guard("kineto"):
                profiler.start_trace()
                profiler.stop_trace()

    def abandon_in_child(self) -> None:
        """In a forked child: record nothing, write nothing into the parent's file."""
        self._region = None
        observer, self._observer = self._observer, None
        profiler, self._profiler = self._profiler, None
        self.recording = False
        if observer is not None:
            observer.stop()
            silence(self.et_path)
            # Its destructor would finish the parent's file.
            observer._registered = False
        if profiler is not None:
            activity = self._torch.profiler.ProfilerActivity.CPU
            profiler.profiler.toggle_collection_dynamic(False, {activity})
            _kept_in_child.append(profiler)


class _WithoutInductor:
    """torch, but for the attribute that would import its compiler."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        if name == "_inductor":
            raise AttributeError(name)
        return getattr(self._torch, name)


def _prepare(profiler: Any, torch: Any) -> None:
    """`prepare_trace`, which asks whether CUDA graphs are on and so imports the whole compiler (seconds).

    A program that has not imported it has no graphs to ask for.
    """
    method = type(profiler).prepare_trace
    if "torch._inductor" in sys.modules or not isinstance(method, types.FunctionType):
        profiler.prepare_trace()
        return
    names = {**method.__globals__, "torch": _WithoutInductor(torch)}
    types.FunctionType(method.__code__, names, closure=method.__closure__)(profiler)


# Taking these apart in a child would wait for threads that were not forked.
_kept_in_child: list[Any] = []


def _all_threads_config(profiler: Any) -> Any:
    try:
        return profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):  # torch < 2.6 has no such switch
        return None


# --- Under Nsight Systems

# nsys wraps a process from outside, and excludes Kineto (one CUPTI client a process). So the command
# starts it, and the window says when to record, by cudaProfilerStart and cudaProfilerStop.


def find_nsys() -> str | None:
    """The nsys of this machine."""
    return shutil.which("nsys")


def nsys_command(nsys: str, directory: str, rank: str, program: Sequence[str], windows: int = 1) -> list[str]:
    """The program under nsys, recording its windows only."""
    end = "stop" if windows == 1 else "repeat" + (f":{windows}" if windows else "")
    return [
        nsys,
        "profile",
        "--output",
        os.path.join(directory, f"nsys_{rank}"),
        "--force-overwrite",
        "true",
        "--trace",
        "cuda,nvtx,osrt",
        "--sample",
        "none",
        "--capture-range",
        "cudaProfilerApi",
        "--capture-range-end",
        end,
        "--",
        *program,
    ]


def _under_nsys() -> bool:
    return any(name.startswith(("NSYS_", "QUADD_")) for name in os.environ)


class _NsysRange:
    """Tells nsys, if it is there, when a window begins and ends; says once what to do if it is not."""

    def __init__(self, torch: Any, health: Health) -> None:
        self._torch = torch
        self._health = health
        self._nvtx: Any = None
        if not _under_nsys():
            words = nsys_command("nsys", "OUT", "%q{RANK}", [sys.executable, *sys.argv])
            absent = "" if find_nsys() else "nsys is not on the PATH; "
            health.warn(
                f"no nsys trace: {absent}start each rank as: {shlex.join(words)}  (or: dftracer collect "
                "--traces pfw,nsys ...)"
            )

    def start(self) -> None:
        """Record from here on, operators as NVTX ranges."""
        if _under_nsys() and self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            with self._health.guard("nsys"):
                self._torch.cuda.synchronize()
                self._torch.cuda.profiler.start()
                self._nvtx = self._torch.autograd.profiler.emit_nvtx(record_shapes=True)
                self._nvtx.__enter__()

    def stop(self) -> None:
        """The window is over."""
        nvtx, self._nvtx = self._nvtx, None
        if nvtx is not None:
            with self._health.guard("nsys"):
                nvtx.__exit__(None, None, None)
                self._torch.cuda.synchronize()
                self._torch.cuda.profiler.stop()


# --- All of them


class Windows:
    """The one that is open, if any."""

    def __init__(self, collection: Collection, entries: Entries) -> None:
        self._collection = collection
        self._entries = entries
        self._pid = os.getpid()
        # Ranks of several hosts may share a directory.
        self._prefix = os.path.join(
            collection.names.directory, f".collect-{self._pid}-{os.urandom(3).hex()}-w"
        )
        self._nsys = (
            _NsysRange(collection.torch, collection.health) if "nsys" in collection.options.traces else None
        )
        self._others = OtherProfilers(collection.torch, self._end_early)
        with collection.health.guard("profilers of the program"):
            self._others.watch()
        self._open: Window | None = None
        self._step = 0

    def begin_step(self, step: int, before: ScheduledStep, scheduled: ScheduledStep) -> None:
        """A step begins: `scheduled` now, after `before`."""
        self._step = step
        if scheduled != before or before.last:
            self._enter(before, scheduled)
        elif scheduled.phase == "active" and self._open is not None:
            self._open.open_step(step)

    def end_step(self, scheduled: ScheduledStep) -> None:
        """The step has ended, and the window with its last one."""
        if scheduled.phase == "active" and self._open is not None:
            self._open.close_step()
            if scheduled.last:
                self._end("the schedule")

    def close(self, reason: str) -> None:
        """No more windows; one that records is kept."""
        self._leave(reason)
        self._others.unwatch()

    def _enter(self, before: ScheduledStep, scheduled: ScheduledStep) -> None:
        if scheduled.phase == "warmup" and (before.phase != "warmup" or before.window != scheduled.window):
            self._make(scheduled.window)
            if self._open is not None:
                with self._others:
                    self._open.prepare()
        elif scheduled.phase == "active":
            if self._open is None and (before.phase != "active" or before.last):
                self._make(scheduled.window)
            if self._open is not None:
                if self._open.recording:
                    self._open.open_step(self._step)
                else:
                    self._start(self._open)

    def _end_early(self, reason: str) -> None:
        """A profiler of the program starts: our window ends here."""
        if self._open is not None and os.getpid() == self._pid:
            self._collection.health.warn(f"window {self._open.index} ended early: {reason}")
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
        other = self._others.present()
        if other is not None:
            self._collection.health.warn(f"window {index} is skipped: {other}")
            return
        self._open = Window(self._collection, index, f"{self._prefix}{index}")

    def _start(self, window: Window) -> None:
        began = time.perf_counter()
        entry = self._entries.begin(window.index, self._step)
        self._collection.plugins.window_start(window.index, self._step)
        with self._others, self._collection.recording.hidden():
            window.start(self._step)
        if self._nsys is not None:
            self._nsys.start()
        entry["start_us"] = self._collection.recording.time_ns() / 1000
        self._collection.costs.add("start_s", time.perf_counter() - began)

    def _end(self, reason: str) -> None:
        window, self._open = self._open, None
        if window is None:
            return
        entry = self._entries.all[-1]
        entry["end_us"] = self._collection.recording.time_ns() / 1000
        entry["steps"][1] = self._step
        entry["ended_by"] = reason
        began = time.perf_counter()
        if self._nsys is not None:
            self._nsys.stop()
        with self._others, self._collection.recording.hidden():
            window.stop()
            stopped = time.perf_counter()
            window.export()
        self._collection.costs.add("stop_s", stopped - began)
        self._collection.costs.add("export_s", time.perf_counter() - stopped)
        self._collection.plugins.window_end(window.index, self._step)
        self._collection.recording.window(window.index, int(entry["start_us"]), int(entry["end_us"]))
        self._entries.finish(window, f"{self._prefix}{window.index}")
