"""Columns of a profiler window, read from Kineto without building torch's event tree.

`prof.events()` reads tens of thousands of events a second and keeps kilobytes of each. The results behind it
have the same facts as plain getters; calling one getter over many activities with `map` keeps the loop in C.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dftracer.python.torch._details import OperatorDetails, describe_inputs, parse_object

__all__ = ["DEVICE_TYPES", "INSTANT_TYPES", "OPERATOR_TYPES", "WORK_TYPES", "Source", "open_source"]

DEVICE_TYPES = frozenset(
    {
        "kernel",
        "concurrent_kernel",
        "gpu_memcpy",
        "gpu_memset",
        "gpu_user_annotation",
        "gpu_pm_counter",
        "mtia_ccp_events",
        "cuda_sync",
    }
)
# Annotations and waits on a device span work that is counted itself.
WORK_TYPES = frozenset({"kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset"})
INSTANT_TYPES = frozenset({"cpu_instant_event"})
OPERATOR_TYPES = frozenset({"cpu_op", "user_annotation"})
_UNREADABLE = "(name is not valid UTF-8)"

Getter = Callable[[Any], Any]


def _getter(kind: type, *names: str) -> Getter | None:
    """The plain function behind a bound C++ method: calling it skips the wrapper object."""
    for name in names:
        found = kind.__dict__.get(name)
        if found is not None:
            return getattr(found, "__func__", found)  # type: ignore[no-any-return]
    return None


def _column(getter: Getter, activities: Iterable[Any], missing: Any) -> list[Any]:
    """One getter over many activities; one with undecodable text does not spoil the others."""
    activities = list(activities)
    try:
        return list(map(getter, activities))
    except UnicodeDecodeError:
        return [_value(getter, one, missing) for one in activities]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


def _value(getter: Getter, activity: Any, missing: Any) -> Any:
    try:
        return getter(activity)
    except UnicodeDecodeError:
        return missing


class Source:
    """One window: the activities and how to read them."""

    def __init__(self, activities: Sequence[Any], flops: dict[int, int]) -> None:
        self.activities = activities
        self._flops = flops
        kind = type(activities[0])
        self._name = self._need(kind, "name")
        self._tid = self._need(kind, "resource_id", "device_resource_id")
        self._device = self._need(kind, "device_id", "device_index")
        self._correlation = self._need(kind, "correlation_id")
        self._linked = self._need(kind, "linked_correlation_id")
        self.starts = array("q", map(self._need(kind, "timestamp", "start_ns"), activities))
        self.durations = array("q", map(self._need(kind, "duration", "duration_ns"), activities))
        self.types = self._types(kind)
        self.kinds = frozenset(self.types)
        if not self.kinds.isdisjoint(INSTANT_TYPES):
            for index, category in enumerate(self.types):
                # Kineto gives instants the rest of the window as their duration.
                if category in INSTANT_TYPES:
                    self.durations[index] = 0

    @staticmethod
    def _need(kind: type, *names: str) -> Getter:
        found = _getter(kind, *names)
        if found is None:
            raise AttributeError(f"{kind.__name__} has none of {', '.join(names)}")
        return found

    def _types(self, kind: type) -> list[str]:
        return list(map(sys.intern, map(self._need(kind, "type"), self.activities)))

    def names(self, low: int, high: int) -> list[str]:
        return _column(self._name, self.activities[low:high], _UNREADABLE)

    def tids(self, low: int, high: int) -> list[int]:
        return list(map(self._tid, self.activities[low:high]))

    def devices(self, low: int, high: int) -> list[int]:
        return list(map(self._device, self.activities[low:high]))

    def correlations(self, low: int, high: int) -> list[int]:
        return list(map(self._correlation, self.activities[low:high]))

    def linked(self, low: int, high: int) -> list[int]:
        return list(map(self._linked, self.activities[low:high]))

    def tid(self, index: int) -> int:
        return int(self._tid(self.activities[index]))

    def name(self, index: int) -> str:
        return str(_value(self._name, self.activities[index], _UNREADABLE))

    def flops(self, correlation: int) -> int:
        return self._flops.get(correlation, 0)

    details: OperatorDetails

    def raw_details(self, low: int, high: int) -> list[Any]:
        """Kineto's text of operators and memory events; of others, what `device` takes."""
        raise NotImplementedError

    def instants(self, indices: list[int]) -> Iterator[tuple[int, int, str, int, bool]]:
        """Index, thread, name, bytes and whether they are on a device, of instants."""
        raise NotImplementedError

    def device(self, raw: Any) -> dict[str, Any]:
        """Args of a kernel, a copy or a runtime call."""
        raise NotImplementedError


class ActivitySource(Source):
    """Kineto's activities themselves (`trace_activities()`, torch >= 2.12)."""

    def __init__(self, activities: Sequence[Any], flops: dict[int, int]) -> None:
        super().__init__(activities, flops)
        self._metadata = self._need(type(activities[0]), "metadata_json")
        self.details = OperatorDetails()

    def raw_details(self, low: int, high: int) -> list[str]:
        return _column(self._metadata, self.activities[low:high], "")

    def instants(self, indices: list[int]) -> Iterator[tuple[int, int, str, int, bool]]:
        activities = [self.activities[index] for index in indices]
        names = _column(self._name, activities, _UNREADABLE)
        texts = _column(self._metadata, activities, "")
        for index, tid, name, text in zip(indices, map(self._tid, activities), names, texts, strict=True):
            start = text.find('"Bytes": ') + 9
            end = text.find(",", start)
            size = text[start : end if end > 0 else None]
            yield index, tid, name, _number(size), '"Device Type": 0' not in text

    def device(self, raw: str) -> dict[str, Any]:
        return device_fields(parse_object(raw))


class EventSource(Source):
    """The profiler's event objects (`events()`), for torch without `trace_activities()`."""

    def __init__(self, activities: Sequence[Any], flops: dict[int, int]) -> None:
        super().__init__(activities, flops)
        kind = type(activities[0])
        self.details = OperatorDetails()
        self._shapes = self._need(kind, "structured_input_shapes", "shapes")
        self._dtypes = self._need(kind, "dtypes")
        self._sequence = self._need(kind, "sequence_nr")
        self._forward_thread = self._need(kind, "fwd_thread_id")
        self._stack = self._need(kind, "stack")
        self._python = [
            (key, getter)
            for key in ("python_id", "python_parent_id", "python_module_id")
            if (getter := _getter(kind, key)) is not None
        ]

    def _types(self, kind: type) -> list[str]:
        getter = _getter(kind, "activity_type")
        if getter is not None:
            return list(map(sys.intern, map(getter, self.activities)))
        return [sys.intern(_guess_type(one)) for one in self.activities]

    def raw_details(self, low: int, high: int) -> list[Any]:
        """Text as Kineto would give it, for what the recorder reads itself; the event for the rest."""
        events = self.activities[low:high]
        known = self.details.known
        raws: list[Any] = []
        for event, kind in zip(events, self.types[low:high], strict=True):
            if kind in INSTANT_TYPES:
                size, on_device = self._change(event)
                place = event.device_index() if on_device else -1
                raws.append(f'"Bytes": {size}, "Device Type": {int(on_device)}, "Device Id": {place}')
            elif kind in DEVICE_TYPES or kind.startswith(("cuda_", "privateuse1_")):
                raws.append(event)
            else:
                shapes, types = self._shapes(event), self._dtypes(event)
                sequence, thread = self._sequence(event), self._forward_thread(event)
                stack = _value(self._stack, event, ())
                python = (
                    tuple((key, getter(event)) for key, getter in self._python) if kind == _PYTHON else ()
                )
                key = f"{shapes}{types}{thread}{stack or ''}{python or ''}"
                if key not in known:
                    self.details.keep(key, _event_args(shapes, types, thread, stack, python))
                raws.append(f'"Sequence number": {sequence}, {key}' if sequence >= 0 else key)
        return raws

    @staticmethod
    def _change(event: Any) -> tuple[int, bool]:
        kind = event.device_type()
        return int(event.nbytes()), int(getattr(kind, "value", kind)) != 0

    def instants(self, indices: list[int]) -> Iterator[tuple[int, int, str, int, bool]]:
        for index in indices:
            size, on_device = self._change(self.activities[index])
            yield index, self.tid(index), self.name(index), size, on_device

    def device(self, raw: Any) -> dict[str, Any]:
        return device_fields(parse_object(_text(raw, "metadata_json")))


_PYTHON = "python_function"


def _event_args(
    shapes: list[Any],
    types: list[str],
    thread: int,
    stack: Sequence[str],
    python: tuple[tuple[str, int], ...],
) -> dict[str, Any]:
    args: dict[str, Any] = dict(python)
    if types:
        args.update(describe_inputs(shapes, types))
    if thread:
        args["forward_thread"] = thread
    if stack:
        args["stack"] = ";".join(stack)
    return args


def _text(event: Any, method: str) -> str:
    getter = getattr(event, method, None)
    if getter is None:
        return ""
    try:
        return str(getter())
    except UnicodeDecodeError:
        return ""


_DEVICE_FIELDS = {
    "correlation": "correlation",
    "grid": "grid",
    "block": "block",
    "registers per thread": "registers",
    "shared memory": "shared_memory",
    "est. achieved occupancy %": "occupancy_percent",
    "bytes": "bytes",
    "memory bandwidth (GB/s)": "bandwidth_gb_s",
    "cbid": "cbid",
    "Collective name": "collective",
    "In msg nelems": "in_elements",
    "Out msg nelems": "out_elements",
    "Group size": "group_size",
    "Process Group Name": "process_group",
}


def device_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The args kept of a kernel, a copy or a runtime call; lists as text, as shapes are."""
    args: dict[str, Any] = {}
    for key, name in _DEVICE_FIELDS.items():
        value = fields.get(key)
        if value is not None:
            args[name] = ",".join(map(str, value)) if isinstance(value, list) else value
    return args


def _flag(event: Any, method: str) -> bool:
    getter = getattr(event, method, None)
    return bool(getter()) if getter is not None else False


def _guess_type(event: Any) -> str:
    """Kineto's category of an event of a torch that does not tell it."""
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


def open_source(results: Any, with_flops: bool) -> Source | None:
    """The fastest way into `results` this torch offers; None for an empty window."""
    direct = getattr(results, "trace_activities", None)
    if direct is None or with_flops:
        events = results.events()
        flops = (
            {event.correlation_id(): event.flops() for event in events if event.flops()} if with_flops else {}
        )
        if direct is None:
            return EventSource(events, flops) if events else None
        del events
    else:
        flops = {}
    activities = direct()
    return ActivitySource(activities, flops) if activities else None
