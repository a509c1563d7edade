"""Collectives that the program calls: each is described once, written as an event, and told to the listeners.

What DDP and FSDP issue below Python is not a call: it is recorded where gloo or NCCL runs it
(native/intercept), and so is a call of gloo that does not wait.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Call:
    """A call that has returned."""

    name: str
    kind: str
    group: dict[str, Any]  # see Groups
    seq: int
    dtype: str | None
    in_bytes: int
    out_bytes: int
    waits: bool
    start_ns: int
    end_ns: int
    get: Callable[[str], Any]  # returns an argument by its name


class Listener(Protocol):
    """Is notified of calls; while there is one, calls are written as events."""

    below_python: bool  # it also records what is issued below Python, and calls that do not wait
    step_number: int | None  # if it counts the steps itself

    def called(self, call: Call) -> None:
        """A call has returned."""

    def call_failed(self, error: Exception) -> None:
        """A call could not be described, or `called` raised."""


_listeners: list[Listener] = []
_indescribable = False
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
    global _indescribable  # noqa: PLW0603 - one set of hooks per process
    _listeners.append(listener)
    _core.skip_collectives(_some_record_all())
    if len(_listeners) > 1:
        return
    _indescribable = False
    for event in _EVENTS.values():
        event.forget_annotations()
    module = torch.distributed.distributed_c10d
    if hasattr(module, "_new_process_group_helper"):
        _patches.around(module, "_new_process_group_helper", _named)
    for name in CALLS:
        if hasattr(module, name):
            _patches.around(module, name, _observed(name, torch.compiler.is_compiling))


def unlisten(listener: Listener) -> None:
    """Stop notifying it; without listeners, everything is restored."""
    if listener in _listeners:
        _listeners.remove(listener)
    _core.skip_collectives(_some_record_all())
    if not _listeners:
        _patches.undo_all()
        groups.forget()


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
            _returned(name, get, start, _core.time_ns(), work)
            return work

        return call

    return around


class Groups:
    """The process groups encountered so far, and how far each has counted."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
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
        # A default group that is made anew has the name of the one before.
        if known is None or known["group"] is not group:
            self.messages.pop(name, None)
            for kind in ("", "send", "recv"):
                self._counts.pop(f"{name}/{kind}", None)
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


groups = Groups()


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


def _returned(name: str, get: Callable[[str], Any], start_ns: int, end_ns: int, work: Any) -> None:
    """Describe the call, write its event and notify the listeners; the program continues whatever fails."""
    global _indescribable  # noqa: PLW0603 - a call that cannot be described is the last that is
    if _indescribable:
        return
    try:
        call = _described(name, get, start_ns, end_ns, work)
        if call is None:
            return
        _write(call)
    except Exception as error:
        _indescribable = True
        for listener in tuple(_listeners):
            listener.call_failed(error)
        return
    for listener in tuple(_listeners):
        try:
            listener.called(call)
        except Exception as error:
            listener.call_failed(error)


def _described(name: str, get: Callable[[str], Any], start_ns: int, end_ns: int, work: Any) -> Call | None:
    """Everything about the call; None without a default group."""
    kind, sent, received = CALLS[name]
    group = groups.of(get("group"))
    if group is None:
        return None
    in_bytes, dtype = size_of(get(sent) if sent else None)
    out_bytes, other = size_of(get(received) if received else None)
    return Call(
        name,
        kind,
        group,
        groups.sequence(group, kind),
        dtype or other,
        in_bytes,
        out_bytes,
        not (name in ALWAYS_ASYNC or (bool(get("async_op")) and work is not None)),
        start_ns,
        end_ns,
        get,
    )


def _write(call: Call) -> None:
    followed = 0 if _some_record_all() else _core.collective_ends()
    if followed and bool(call.get("async_op")):
        return  # gloo's own record says when it was over
    event = _EVENTS[EVENT.get(call.kind, call.kind)]
    args = {
        "bytes": call.in_bytes or call.out_bytes,
        "dtype": call.dtype or "",
        "group": call.group["name"],
        "ranks": len(call.group["ranks"]),
        "seq": followed or call.seq,
        "async": not call.waits,
        **({"followed": 1} if followed else {}),
    }
    step = next((each.step_number for each in _listeners if each.step_number is not None), None)
    if step is None:
        training().write(event, call.start_ns, call.end_ns, **args)
    else:
        event.write(call.start_ns, call.end_ns, {**args, "step": step})


class _Automatic:
    """Listens for the sake of the events."""

    below_python = False
    step_number: int | None = None

    def called(self, call: Call) -> None:
        """Nothing is left to do."""

    def call_failed(self, error: Exception) -> None:
        """Calls are no longer recorded: say so."""
        _messages.always(f"auto: collectives are no longer recorded: {type(error).__name__}: {error}")


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch the calls of torch.distributed."""
    module = getattr(torch, "distributed", None)
    if module is not None and module.is_available():
        listener = _Automatic()
        listen(torch, listener)
        patches.on_undo(lambda: unlisten(listener))
