"""PyTorch's profiler in the trace: `torch.profiler.profile(..., on_trace_ready=trace_handler)`."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from dftracer import _core, _messages
from dftracer._session import before_finalize
from dftracer.format.records import stream_lane
from dftracer.python import TagDType, TagType, TagValue, dftracer, get_time_scale  # noqa: F401 - see the end

__all__ = ["count_flops", "trace_handler"]

# --- How to read a profiler's activities: the getters this torch offers, by what they return
#
# `prof.events()` reads tens of thousands of events per second and keeps kilobytes for each. The results
# behind it offer the same facts through plain getters, which the recorder calls itself.

Getter = Callable[[Any], Any]

_ALWAYS = {
    "name": ("name",),
    "start": ("timestamp", "start_ns"),
    "duration": ("duration", "duration_ns"),
    "tid": ("resource_id", "device_resource_id"),
    "device": ("device_id", "device_index"),
    "correlation": ("correlation_id",),
    "linked": ("linked_correlation_id",),
    "metadata": ("metadata_json",),
}
_ACTIVITIES = {"type": ("type",)}
_EVENTS = {
    "type": ("activity_type",),
    "annotation": ("is_user_annotation",),
    "bytes": ("nbytes",),
    "device_type": ("device_type",),
    "sequence": ("sequence_nr",),
    "forward_thread": ("fwd_thread_id",),
    "python_id": ("python_id",),
    "python_parent_id": ("python_parent_id",),
    "python_module_id": ("python_module_id",),
}
_EVENTS_WITH_SHAPES = {"shapes": ("structured_input_shapes", "shapes"), "dtypes": ("dtypes",)}
_EVENTS_WITH_STACK = {"stack": ("stack",)}
_EVENTS_WITH_FLOPS = {"flops": ("flops",)}


class Recorded(NamedTuple):
    """What the profiler was told to record; leaving out the rest costs nothing."""

    shapes: bool = True
    stack: bool = True
    flops: bool = False

    @classmethod
    def of(cls, profiler: Any) -> Recorded:
        return cls(
            shapes=bool(getattr(profiler, "record_shapes", True)),
            stack=bool(getattr(profiler, "with_stack", True)),
            flops=bool(getattr(profiler, "with_flops", False)),
        )


class Window(NamedTuple):
    """The activities of one window, how to read them, and the flops of operators by their ids."""

    activities: list[Any]
    getters: dict[str, Getter]
    flops: dict[int, int]


def _getter(kind: type, names: tuple[str, ...]) -> Getter | None:
    """The plain function behind a bound C++ method: calling it skips the wrapper object."""
    for name in names:
        found = kind.__dict__.get(name)
        if found is not None:
            return getattr(found, "__func__", found)  # type: ignore[no-any-return]
    return None


def _getters(kind: type, wanted: dict[str, tuple[str, ...]]) -> dict[str, Getter]:
    found = {key: _getter(kind, names) for key, names in wanted.items()}
    return {key: getter for key, getter in found.items() if getter is not None}


def open_window(results: Any, recorded: Recorded) -> Window | None:
    """The fastest way into `results` this torch offers; None for an empty window."""
    activities_of = getattr(results, "trace_activities", None)
    if activities_of is None:
        return _of_events(results.events(), recorded)
    flops: dict[int, int] = {}
    if recorded.flops:
        # Kineto's own activities do not have them.
        flops = {event.correlation_id(): count for event in results.events() if (count := event.flops())}
    activities = activities_of()
    if not activities:
        return None
    return Window(activities, _getters(type(activities[0]), _ALWAYS | _ACTIVITIES), flops)


def _of_events(events: list[Any], recorded: Recorded) -> Window | None:
    """The profiler's event objects, for torch without `trace_activities()`."""
    if not events:
        return None
    wanted = _ALWAYS | _EVENTS
    if recorded.shapes:
        wanted |= _EVENTS_WITH_SHAPES
    if recorded.stack:
        wanted |= _EVENTS_WITH_STACK
    if recorded.flops:
        wanted |= _EVENTS_WITH_FLOPS
    getters = _getters(type(events[0]), wanted)
    if "type" not in getters:
        getters["guess"] = guess_category
    return Window(events, getters, {})


def guess_category(event: Any) -> str:
    """Kineto's category of an event, for versions of torch that do not provide it."""
    name = _text(event, "name")
    on_host = str(event.device_type()).endswith("CPU")
    if name == "[memory]":
        return "cpu_instant_event"
    if _flag(event, "is_python_function"):
        return "python_function"
    if _flag(event, "is_user_annotation"):
        return "user_annotation" if on_host else "gpu_user_annotation"
    kinds = _HOST_NAMES if on_host else _DEVICE_NAMES
    otherwise = "cpu_op" if on_host else "kernel"
    return next((kind for pattern, kind in kinds if pattern.match(name)), otherwise)


def _text(event: Any, method: str) -> str:
    getter = getattr(event, method, None)
    if getter is None:
        return ""
    try:
        return str(getter())
    except UnicodeDecodeError:
        return ""


def _flag(event: Any, method: str) -> bool:
    getter = getattr(event, method, None)
    return bool(getter()) if getter is not None else False


_HOST_NAMES = (
    (re.compile("(cuda|hip)[A-Z]"), "cuda_runtime"),
    (re.compile("cu[A-Z]"), "cuda_driver"),
    (re.compile(r"[^ ]+\.py\(\d+\): |<built-in |nn\.Module: "), "python_function"),
    (
        re.compile("(Runtime|Lazy|Command|Activity) .*(Loading|Full|Request)$|Buffer Flush$|Resource$"),
        "overhead",
    ),
)
_DEVICE_NAMES = (
    (re.compile("Memcpy"), "gpu_memcpy"),
    (re.compile("Memset"), "gpu_memset"),
    (re.compile("(Stream|Context|Event) (Wait|Sync)"), "cuda_sync"),
)


# --- A profiler window becomes events of the trace: category `PP`, the trace's clock, real lanes

CATEGORY = "PP"
device_lane = stream_lane


def clock_offset_ns() -> int:
    """Trace clock minus system clock, with which Kineto stamps; it may have been slewed since the start."""
    best: tuple[int, int] | None = None
    for _ in range(5):
        before = _core.time_ns()
        system = time.time_ns()
        after = _core.time_ns()
        width = after - before
        if best is None or width < best[0]:
            best = (width, (before + after) // 2 - system)
    return best[1] if best else 0


def write_window(results: Any, recorded: Recorded, hurry: bytearray) -> int:
    """Write every activity of `results`; `hurry[0]` is 0 as long as the program may need the lock."""
    # torch creates an object for each activity in one go.
    _core.wait_for_turn(hurry)
    window = open_window(results, recorded)
    if window is None:
        return 0
    count = len(window.activities)
    lanes = _core.write_profiler_window(
        CATEGORY,
        window.activities,
        window.getters,
        window.flops,
        int(results.trace_start_ns()),
        clock_offset_ns(),
        hurry,
    )
    for lane, device, stream in lanes:
        _core.log_metadata("CM", f"lane.{lane}", f"GPU {device} stream {stream}")
    return count


# --- The profiler's callback: takes a finished window and passes it to a thread that writes it

_Window = tuple[Any, Recorded]
# A waiting window keeps Kineto's memory alive: the third one waits in the training thread instead.
_WAITING_WINDOWS = 2


class _Writer:
    """One thread, started with the first window; `drain` returns when all windows are written."""

    def __init__(self) -> None:
        self._windows: queue.Queue[_Window] = queue.Queue(_WAITING_WINDOWS)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # Counts the waiters; the writer, which otherwise yields to the program, checks it as it goes.
        self._hurry = bytearray(1)

    def submit(self, window: _Window) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dftracer-profiler", daemon=True)
                self._thread.start()
        try:
            self._windows.put_nowait(window)
        except queue.Full:
            with self._waiting():
                self._windows.put(window)

    def drain(self) -> None:
        if self._thread is None or self._thread is threading.current_thread():
            return
        with self._waiting():
            self._windows.join()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._lock:
            self._hurry[0] += 1
        try:
            yield
        finally:
            with self._lock:
                self._hurry[0] -= 1

    def _run(self) -> None:
        while True:
            results, recorded = self._windows.get()
            try:
                write_window(results, recorded, self._hurry)
            except Exception as error:
                _report(error)
            finally:
                # The window's memory must not wait for the next one.
                del results
                self._windows.task_done()


def _report(error: BaseException) -> None:
    """The traced program must not fail because a window could not be read."""
    _messages.error(f"a profiler window was not written: {type(error).__name__}: {error}")


_writer = _Writer()


def _restart_in_child() -> None:
    global _writer  # noqa: PLW0603 - threads do not survive a fork, their queue must not either
    _writer = _Writer()


os.register_at_fork(after_in_child=_restart_in_child)


def _drain() -> None:
    _writer.drain()


before_finalize(_drain)


def trace_handler(profiler_result: Any) -> None:
    """Write a finished window of `torch.profiler.profile` to the trace.

    Pass it as `on_trace_ready`, or call it from your own handler next to `export_chrome_trace` and
    `export_stacks`. Returns at once; the events are written by another thread, at the latest in `finalize()`.
    """
    if not _core.active():
        return
    inner = getattr(profiler_result, "profiler", profiler_result)
    results = getattr(inner, "kineto_results", None)
    if results is None:
        return
    try:
        _writer.submit((results, Recorded.of(profiler_result)))
    except Exception as error:
        _report(error)


# --- The FLOPs of one step, counted once


@contextlib.contextmanager
def count_flops(*, samples: float | None = None, tokens: float | None = None) -> Iterator[Any]:
    """Count the FLOPs of the step inside, for the report's FLOP/s and MFU; also its samples and tokens.

    torch's counter sees every operator and is slow: use it for one step only. Yields the counter.
    """
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - only where it is used

    with FlopCounterMode(display=False) as counter:
        yield counter
    for key, value in (("flops", counter.get_total_flops()), ("samples", samples), ("tokens", tokens)):
        if value is not None:
            _core.log_metadata("CM", f"step.{key}", str(value))


# Where some programs import these from, and what the callback logs with.
common = profiler = sys.modules[__name__]
sys.modules.update({f"{__name__}.common": common, f"{__name__}.profiler": profiler})
