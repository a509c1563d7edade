"""Why a step was slow: compilations, recompilations and graph breaks as events.

torch keeps a record of each compilation (`torch._dynamo.utils.get_compilation_metrics`) and of each graph
break, but does not announce when they are complete. They are collected before the next compilation, before
the next run of a compiled graph and at the end of the trace, and written with the times torch measured.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from dftracer import _core
from dftracer._session import before_finalize

_CATEGORY = "dynamo"


class CompileEvents:
    def __init__(self) -> None:
        self.pending = False
        self._lock = threading.RLock()
        self._watching = False
        self._seen_metrics: list[Any] = []
        self._seen_breaks = 0

    def watch(self) -> None:
        """Start to follow compilations; repeated after `torch._dynamo.reset()`, which forgets callbacks."""
        self.pending = True
        handler = getattr(torch._dynamo, "callback_handler", None)
        if handler is not None:
            if self._compile_starts not in handler.start_callbacks:
                handler.register_start_callback(self._compile_starts)
            if self._compile_ends not in handler.end_callbacks:
                handler.register_end_callback(self._compile_ends)
        if not self._watching:
            self._watching = True
            # Earlier compilations belong to another part of the program.
            self._seen_metrics = _metrics()
            before_finalize(self.collect)

    def _compile_starts(self, *_: Any) -> None:
        with contextlib.suppress(Exception):
            self.collect()
        self.pending = True

    def _compile_ends(self, *_: Any) -> None:
        with contextlib.suppress(Exception):
            self.collect_breaks()

    def collect(self) -> None:
        """Write what is new since the last time."""
        with self._lock:
            self.pending = False
            self.collect_breaks()
            current = _metrics()
            seen = {id(one) for one in self._seen_metrics}
            offset = _core.time_ns() - time.time_ns()
            for one in current:
                if id(one) not in seen:
                    _write_compilation(one, offset)
            # Holding the objects keeps their ids from being used again.
            self._seen_metrics = current

    def collect_breaks(self) -> None:
        """Write graph breaks; called while the compilation that caused them is still running."""
        with self._lock:
            reasons = _graph_break_reasons()
            if len(reasons) < self._seen_breaks:
                self._seen_breaks = 0
            for reason in reasons[self._seen_breaks :]:
                _write_break(reason)
            self._seen_breaks = len(reasons)

    def then_collect(self, graph: Callable[..., Any]) -> Callable[..., Any]:
        """A boxed graph whose first run after a compilation writes that compilation."""

        def run(inputs: list[Any]) -> Any:
            if self.pending:
                self.collect()
            return graph(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _metrics() -> list[Any]:
    getter = getattr(torch._dynamo.utils, "get_compilation_metrics", None)
    return list(getter()) if getter is not None else []


def _graph_break_reasons() -> list[Any]:
    return getattr(torch._dynamo.utils, "graph_break_reasons", [])


def _write_break(reason: Any) -> None:
    frames = list(getattr(reason, "user_stack", ()) or ())
    text = str(reason.reason)
    args: dict[str, Any] = {"reason": text.partition("\n")[0].strip(), "detail": text}
    if frames:
        args["source"] = f"{frames[-1].filename}:{frames[-1].lineno}"
        args["function"] = frames[-1].name
        if frames[-1].line:
            args["code"] = frames[-1].line
    _core.log_event("graph_break", _CATEGORY, _core.time_ns(), 0, args)


_COUNTS = {
    "graph_op_count": "ops",
    "graph_input_count": "inputs",
    "guard_count": "guards",
    "cache_size": "cache_size",
    "num_graph_breaks": "graph_breaks",
    "fail_type": "error",
    "fail_reason": "error_reason",
}
_TIMES = {
    "dynamo_cumulative_compile_time_us": "dynamo_us",
    "aot_autograd_cumulative_compile_time_us": "aot_autograd_us",
    "inductor_cumulative_compile_time_us": "inductor_us",
    "inductor_code_gen_cumulative_compile_time_us": "code_generation_us",
    "triton_compile_time_us": "triton_us",
    "backward_cumulative_compile_time_us": "backward_us",
}


def _write_compilation(metrics: Any, offset_ns: int) -> None:
    start, duration = _times(metrics)
    if start is None:
        return
    reason = getattr(metrics, "recompile_reason", None)
    args: dict[str, Any] = {"compile_id": str(getattr(metrics, "compile_id", "") or "")}
    function = getattr(metrics, "co_name", None)
    if function:
        args["function"] = function
        args["source"] = f"{metrics.co_filename}:{metrics.co_firstlineno}"
    if getattr(metrics, "is_forward", None) is False:
        args["phase"] = "backward"
    if reason:
        args["reason"] = str(reason)
    restarts = getattr(metrics, "restart_reasons", None)
    if restarts:
        args["restarts"] = "; ".join(sorted(str(one).partition("\n")[0] for one in restarts))
    line = getattr(metrics, "fail_user_frame_lineno", None)
    if line is not None:
        args["error_source"] = f"{metrics.fail_user_frame_filename}:{line}"
    for attribute, name in {**_COUNTS, **_TIMES}.items():
        value = getattr(metrics, attribute, None)
        if value is not None:
            args[name] = value
    recompiled = bool(reason) or (getattr(metrics, "cache_size", None) or 0) > 0
    name = "recompile" if recompiled else "compile"
    _core.log_event(name, _CATEGORY, start + offset_ns, duration, args)


def _times(metrics: Any) -> tuple[int | None, int]:
    """Start and duration in ns; torch 2.5 had seconds where later versions have microseconds."""
    start = getattr(metrics, "start_time_us", None)
    if start is not None:
        duration = getattr(metrics, "duration_us", None)
        if duration is None:
            end = getattr(metrics, "end_time_us", None)
            duration = end - start if end is not None else 0
        return int(start) * 1000, int(duration) * 1000
    seconds = getattr(metrics, "start_time", None)
    if seconds is None:
        return None, 0
    return int(seconds * 1e9), int((getattr(metrics, "entire_frame_compile_time_s", None) or 0) * 1e9)


compile_events = CompileEvents()
