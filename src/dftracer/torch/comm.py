"""Collectives that the program calls: `comm/*` with bytes, group and sequence number.

What DDP and FSDP issue below Python is not a call: it is recorded where gloo or NCCL runs it
(native/intercept), and so is a call of gloo that does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import _core, _messages
from dftracer._core import training
from dftracer.python import ai
from dftracer.torch import collectives as calls
from dftracer.torch.events import Word
from dftracer.torch.patches import Patches
from dftracer.torch.tensors import size_of

__all__ = ["install"]

_WORDS = {
    name: Word(name, "comm", (getattr(ai.comm, name),))
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


class _Calls:
    """Writes each call as an event, unless a collection does."""

    below_python = False

    def __init__(self) -> None:
        self._groups = calls.Groups()
        self._failed = False

    def called(self, name: str, get: Callable[[str], Any], start_ns: int, end_ns: int, work: Any) -> None:
        """One call has returned."""
        kind, sent, received = calls.CALLS[name]
        group = None if self._failed or calls.others_than(self) else self._groups.of(get("group"))
        if group is None:
            return
        sent_bytes, dtype = size_of(get(sent) if sent else None)
        received_bytes, other = size_of(get(received) if received else None)
        waits = not (name in calls.ALWAYS_ASYNC or (bool(get("async_op")) and work is not None))
        counted = self._groups.sequence(group, kind)
        seen = _core.collective_ends()
        if seen and bool(get("async_op")):
            return
        training().write(
            _WORDS[calls.EVENT.get(kind, kind)],
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
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available():
        listener = _Calls()
        calls.listen(torch, listener)
        patches.later(lambda: calls.unlisten(listener))
