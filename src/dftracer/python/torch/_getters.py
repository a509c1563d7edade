"""How to read a profiler's activities: the getters this torch offers, by what they return.

`prof.events()` reads tens of thousands of events per second and keeps kilobytes for each. The results behind
it offer the same facts through plain getters, which the recorder calls itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Recorded", "Window", "guess_category", "open_window"]

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
