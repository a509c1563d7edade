"""Collectives that the program calls: one set of hooks serves all listeners, and one of them writes events.

What DDP and FSDP issue below Python is not a call: it is recorded where gloo or NCCL runs it
(native/intercept), and so is a call of gloo that does not wait.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from dftracer import _core, _messages
from dftracer._core import AutoEvent, training
from dftracer.python import ai
from dftracer.torch.boundaries import notify
from dftracer.torch.hang import BARRIER, COLLECTIVE
from dftracer.torch.patches import Patches
from dftracer.torch.tensors import size_of

# Function -> (type, tensors sent, tensors received); the names are those of the parameters.
CALLS: dict[str, tuple[str, str | None, str | None]] = {
    "all_reduce": ("all_reduce", "tensor", "tensor"),
    "all_reduce_coalesced": ("all_reduce", "tensors", "tensors"),
    "broadcast": ("broadcast", "tensor", "tensor"),
    "reduce": ("reduce", "tensor", "tensor"),
    "all_gather": ("all_gather", "tensor", "tensor_list"),
    "all_gather_into_tensor": ("all_gather", "input_tensor", "output_tensor"),
    "gather": ("gather", "tensor", "gather_list"),
    "scatter": ("scatter", "scatter_list", "tensor"),
    "reduce_scatter": ("reduce_scatter", "input_list", "output"),
    "reduce_scatter_tensor": ("reduce_scatter", "input", "output"),
    "all_to_all": ("all_to_all", "input_tensor_list", "output_tensor_list"),
    "all_to_all_single": ("all_to_all", "input", "output"),
    "barrier": ("barrier", None, None),
    "send": ("send", "tensor", None),
    "isend": ("send", "tensor", None),
    "recv": ("recv", None, "tensor"),
    "irecv": ("recv", None, "tensor"),
}
# The names in `ai.comm`, which reports count as communication.
EVENT = {"broadcast": "bcast", "recv": "receive"}
ALWAYS_ASYNC = ("isend", "irecv")


class Listener(Protocol):
    """Is notified of calls."""

    below_python: bool  # it also records what is issued below Python, and calls that do not wait

    def called(self, name: str, get: Callable[[str], Any], start_ns: int, end_ns: int, work: Any) -> None:
        """A call has returned `work`; `get` gives its arguments by name."""

    def call_failed(self, error: Exception) -> None:
        """`called` raised."""


_listeners: list[Listener] = []
_inside = threading.local()  # `send` calls `isend`: only the call the program made is recorded
_patches = Patches()


def distributed() -> Any:
    """torch.distributed if its default group exists, otherwise None."""
    module = sys.modules.get("torch.distributed")
    try:
        if module is not None and module.is_available() and module.is_initialized():
            return module
    except Exception:
        return None
    return None


def listen(torch: Any, listener: Listener) -> None:
    """Notify `listener` of every call from now on."""
    _listeners.append(listener)
    _core.skip_collectives(_some_record_all())
    if len(_listeners) > 1:
        return
    module = torch.distributed.distributed_c10d
    if hasattr(module, "_new_process_group_helper"):
        _patches.around(module, "_new_process_group_helper", _named)
    for name in CALLS:
        if hasattr(module, name):
            _patches.around(module, name, _observed(name, torch.compiler.is_compiling))


def others_than(listener: Listener) -> bool:
    """Whether there is another listener."""
    return any(each is not listener for each in _listeners)


def unlisten(listener: Listener) -> None:
    """Stop notifying it; without listeners, everything is restored."""
    if listener in _listeners:
        _listeners.remove(listener)
    _core.skip_collectives(_some_record_all())
    if not _listeners:
        _patches.undo_all()


def _some_record_all() -> bool:
    return any(each.below_python for each in _listeners)


def _named(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the native side the name under which all ranks know a new group."""

    def create(*args: Any, **kwargs: Any) -> Any:
        created = original(*args, **kwargs)
        group = created[0] if isinstance(created, tuple) else created
        name = getattr(group, "group_name", "")
        if isinstance(name, str) and name:
            _core.name_groups(name)
        return created

    return create


def _observed(name: str, compiling: Callable[[], bool]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        function = getattr(sys.modules["torch"].distributed.distributed_c10d, name)
        kind = BARRIER if name == "barrier" else COLLECTIVE
        places = {parameter: at for at, parameter in enumerate(inspect.signature(function).parameters)}

        def call(*args: Any, **kwargs: Any) -> Any:
            # Compilers see through to the original, which they know by name.
            if compiling() or not _listeners or getattr(_inside, "call", False):
                return original(*args, **kwargs)

            def get(parameter: str) -> Any:
                at = places.get(parameter, -1)
                return args[at] if 0 <= at < len(args) else kwargs.get(parameter)

            # Only gloo knows when a collective that the call does not wait for is over.
            _core.collective_begins(not get("async_op") or _some_record_all())
            notify("collective", True, name)
            start = _core.time_ns()
            _inside.call = True
            _core.busy_begins(kind)
            try:
                work = original(*args, **kwargs)
            finally:
                _inside.call = False
                _core.busy_ends(kind)
                _core.collective_ends()
                notify("collective", False, name)
            end = _core.time_ns()

            for listener in tuple(_listeners):
                try:
                    listener.called(name, get, start, end, work)
                except Exception as error:
                    listener.call_failed(error)
            return work

        return call

    return around


class Groups:
    """The process groups encountered so far, and how far each has counted."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, int] = {}
        self.messages: dict[str, int] = {}  # by group: sends and receives among what the backend counts

    def of(self, group: Any) -> dict[str, Any] | None:
        """The facts of a group (None: the default one)."""
        module = distributed()
        if module is None:
            return None
        if group is None or group is getattr(module.GroupMember, "NON_GROUP_MEMBER", None):
            group = module.group.WORLD
        name = str(getattr(group, "group_name", "") or id(group))
        known = self.known.get(name)
        if known is None:
            ranks = module.get_process_group_ranks(group)
            known = self.known[name] = {
                "name": name,
                "desc": str(getattr(group, "group_desc", "") or ""),
                "ranks": list(ranks),
                "backend": str(module.get_backend(group)),
                "group": group,
            }
        return known

    def sequence(self, group: dict[str, Any], kind: str) -> int:
        """The number of the call just made, the same on all ranks of the group."""
        name = group["name"]
        if kind not in ("send", "recv"):
            issued = issued_by(group["group"])
            if issued is not None:
                return issued - self.messages.get(name, 0)
        elif counts_messages(group):
            self.messages[name] = self.messages.get(name, 0) + 1
        key = f"{name}/{kind if kind in ('send', 'recv') else ''}"
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]


def issued_by(group: Any) -> int | None:
    """How many operations a group has begun; None for a backend that does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except Exception:
        return None


def counts_messages(group: dict[str, Any]) -> bool:
    """Whether the group's own count includes sends and receives; torch's flight recorder's never does."""
    return "gloo" in group["backend"]


# --- Each call as an event, with bytes, group and sequence number

_EVENTS = {
    name: AutoEvent(name, "comm", (getattr(ai.comm, name),))
    for name in (
        "send",
        "receive",
        "barrier",
        "bcast",
        "reduce",
        "all_reduce",
        "gather",
        "all_gather",
        "scatter",
        "reduce_scatter",
        "all_to_all",
    )
}


class _EventWriter:
    """Writes each call as an event, unless a collection does."""

    below_python = False

    def __init__(self) -> None:
        self._groups = Groups()
        self._failed = False

    def called(self, name: str, get: Callable[[str], Any], start_ns: int, end_ns: int, work: Any) -> None:
        """One call has returned."""
        kind, sent, received = CALLS[name]
        group = None if self._failed or others_than(self) else self._groups.of(get("group"))
        if group is None:
            return
        sent_bytes, dtype = size_of(get(sent) if sent else None)
        received_bytes, other = size_of(get(received) if received else None)
        waits = not (name in ALWAYS_ASYNC or (bool(get("async_op")) and work is not None))
        counted = self._groups.sequence(group, kind)
        seen = _core.collective_ends()
        if seen and bool(get("async_op")):
            return
        training().write(
            _EVENTS[EVENT.get(kind, kind)],
            start_ns,
            end_ns,
            bytes=sent_bytes or received_bytes,
            dtype=dtype or other or "",
            group=group["name"],
            ranks=len(group["ranks"]),
            seq=seen or counted,
            **({} if waits else {"async": True}),
            **({"followed": 1} if seen else {}),
        )

    def call_failed(self, error: Exception) -> None:
        """After a call that cannot be described, calls are no longer recorded."""
        self._failed = True
        _messages.always(f"auto: collectives are no longer recorded: {type(error).__name__}: {error}")


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch the calls of torch.distributed."""
    module = getattr(torch, "distributed", None)
    if module is not None and module.is_available():
        listener = _EventWriter()
        listen(torch, listener)
        patches.on_undo(lambda: unlisten(listener))
