"""Compilations by `torch.compile`: the one place that listens to torch's callbacks.

Automatic tracing writes one `compile` or `recompile` event per compilation when it ends, from what the
callbacks say. For what a backend of ours compiles, torch's own records (`get_compilation_metrics`) are
written instead, with function, guards and reason, and graph breaks as well. Torch does not announce when a
record is complete: records are collected before the next compilation, before the next run of a compiled
graph and at the end of the trace, and written with the times torch measured. Graphs of other backends run
without our knowledge, so their records would come in a later step, or never where the program is killed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from dftracer import _core
from dftracer._session import before_finalize
from dftracer.torch.hang import COMPILE
from dftracer.torch.patches import Patches, safely

_CATEGORY = "dynamo"
_WITHOUT_RECORD = "cudagraph_recording", "triton_autotuning"  # triggers of callbacks


def install(module: ModuleType, patches: Patches) -> None:
    """Record every compilation, from now on; `module` is torch._dynamo.callback."""
    handler = getattr(module, "callback_handler", None)
    if handler is not None:
        compile_events.start_automatic(handler)
        patches.on_undo(lambda: compile_events.stop_automatic(handler))


class CompileEvents:
    """Writes the compilations of this process, each once."""

    def __init__(self) -> None:
        self.pending = False
        self._automatic = False  # from what the callbacks say
        self._from_records = False  # from torch's own records
        self._begun_ns: int | None = None
        self._ours = False  # the compilation that is going on calls a backend of ours
        self._our_ids: set[str] = set()  # compilations left to torch's records, a backward may still come
        self._written_ids: set[str] = set()
        self._lock = threading.RLock()
        self._seen_metrics: list[Any] = []
        self._seen_breaks = 0

    def start_automatic(self, handler: Any) -> None:
        """Write compilations that no record will describe, and tell the hang watch of all."""
        self._automatic = True
        self._register(handler)

    def stop_automatic(self, handler: Any) -> None:
        """Undo `start_automatic`."""
        self._automatic = False
        if self._from_records:
            return
        for callbacks, ours in (
            (handler.start_callbacks, self._compile_begins),
            (handler.end_callbacks, self._compile_ends),
        ):
            if ours in callbacks:  # not after torch._dynamo.reset()
                callbacks.remove(ours)

    def watch(self) -> None:
        """Write torch's records from now on. Called for every backend: `torch._dynamo.reset()` drops callbacks."""
        self.pending = self._ours = True
        handler = getattr(torch._dynamo, "callback_handler", None)
        if handler is not None:
            self._register(handler)
        if not self._from_records:
            self._from_records = True
            # Earlier compilations belong to another part of the program.
            self._seen_metrics = _metrics()
            before_finalize(self.collect)

    def _register(self, handler: Any) -> None:
        if self._compile_begins not in handler.start_callbacks:
            handler.register_start_callback(self._compile_begins)
        if self._compile_ends not in handler.end_callbacks:
            handler.register_end_callback(self._compile_ends)

    def _compile_begins(self, *_: Any) -> None:
        """Of nested compilations, torch announces the outermost."""
        self._begun_ns = _core.time_ns()
        self._ours = False
        if self._automatic:
            _core.busy_begins(COMPILE)
        if self._from_records:
            with contextlib.suppress(Exception):
                self.collect()
            self.pending = True

    def _compile_ends(self, *args: Any) -> None:
        begun_ns, self._begun_ns = self._begun_ns, None
        if self._from_records:
            with contextlib.suppress(Exception):
                self.collect_breaks()
        if self._automatic:
            _core.busy_ends(COMPILE)
            if begun_ns is not None and not self._leave_to_records(args):
                safely(_write_automatic, begun_ns, args)

    def _leave_to_records(self, args: tuple[Any, ...]) -> bool:
        """Whether torch's record will describe the compilation that has just ended."""
        if not (self._from_records and _has_record(args)):
            return False
        compile_id = _compile_id(args)
        if not compile_id:  # older versions of torch: only their records say what was compiled
            return True
        if self._ours:
            self._our_ids.add(compile_id)
            self._written_ids.discard(compile_id)  # reset() counts from 0 again
        elif compile_id not in self._our_ids or _trigger(args) == "dynamo":
            self._our_ids.discard(compile_id)
            self._written_ids.add(compile_id)
        return compile_id in self._our_ids

    def collect(self) -> None:
        """Write what is new since the last time."""
        from dftracer.python.torch import clock_offset_ns  # noqa: PLC0415 - there is a backend of ours

        with self._lock:
            self.pending = False
            self.collect_breaks()
            current = _metrics()
            seen = {id(one) for one in self._seen_metrics}
            offset = clock_offset_ns()
            for one in current:
                if id(one) not in seen and str(getattr(one, "compile_id", "")) not in self._written_ids:
                    _write_compilation(one, offset)
            # Holding the objects keeps their ids from being used again.
            self._seen_metrics = current

    def collect_pending(self) -> None:
        """The same inside the program, once after a compilation."""
        if self.pending:
            safely(self.collect)

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
            self.collect_pending()
            return graph(inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def _trigger(args: tuple[Any, ...]) -> str | None:
    """What made torch call a callback; None in older versions of torch."""
    trigger = getattr(args[0], "callback_trigger", None) if args else None
    return None if trigger is None else trigger.name.lower()


def _compile_id(args: tuple[Any, ...]) -> str:
    """Frame "/" how often it was compiled before, the same for forward and backward; older torch has none."""
    return str(getattr(args[0], "compile_id", "") or "") if args else ""


def _has_record(args: tuple[Any, ...]) -> bool:
    """Whether torch keeps a record of a compilation that has just ended."""
    return hasattr(torch._dynamo.utils, "get_compilation_metrics") and _trigger(args) not in _WITHOUT_RECORD


def _write_automatic(begun_ns: int, args: tuple[Any, ...]) -> None:
    trigger = _trigger(args)
    facts = {"auto": 1} if trigger is None else {"auto": 1, "trigger": trigger}
    again = _compile_id(args).rpartition("/")[2]
    name = "recompile" if again.isdigit() and int(again) else "compile"
    _core.log_event(name, _CATEGORY, begun_ns, _core.time_ns() - begun_ns, facts)


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
