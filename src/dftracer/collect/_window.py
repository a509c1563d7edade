"""One window: Kineto and an execution trace of the same operators, each in a file of its own.

The order is what makes the join whole. Kineto is on before the observer and off after it, so that every
operator of the execution trace is one of Kineto's; record function ids are given only while the observer is
on. Each window has a fresh observer, finished when the window ends.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from dftracer.collect._forks import protect, silence, unprotect
from dftracer.collect._health import Health
from dftracer.collect._options import Options
from dftracer.collect._threads import others_exist, wait_for_operators

__all__ = ["Window"]

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

    def __init__(self, torch: Any, options: Options, health: Health, index: int, prefix: str) -> None:
        self._torch = torch
        self._options = options
        self._health = health
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
