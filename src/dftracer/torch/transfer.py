"""Copies between devices, and pinning: `device/transfer` with the bytes moved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer._core import training
from dftracer.torch.boundaries import tell
from dftracer.torch.events import TRANSFER, now
from dftracer.torch.patches import Patches, failed, out_of_sight, safely
from dftracer.torch.tensors import plain_types, size_of, unseen

__all__ = ["install", "install_pinning"]


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch `Tensor.to` and `Tensor.cuda`; a call that gives another dtype only is passed on at once."""
    for ours in (_after, _copied):
        safely(out_of_sight, ours)
    for name in ("to", "cuda"):
        patches.after_method(torch.Tensor, name, _after, plain_types(), torch.dtype)


def _after(source: Any, result: Any, start: int) -> None:
    end = now()
    try:
        with unseen():
            _copied(source, result, start, end)
    except Exception as error:
        failed("transfer", error)


def _copied(source: Any, result: Any, start: int, end: int) -> None:
    if source.device != result.device:
        moved = source.numel() * source.element_size()
        kind = f"{source.device.type} to {result.device.type}"
        training().write(TRANSFER, start, end, bytes=moved, kind=kind)
        tell("transfer", False, moved)


_pinning = threading.local()


def install_pinning(module: ModuleType, patches: Patches) -> None:
    """Watch the loader's pinning of batches, on its own thread or in the main one."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def pin_memory(*args: Any, **kwargs: Any) -> Any:
            if getattr(_pinning, "inside", False):  # it goes through a batch by calling itself
                return original(*args, **kwargs)
            _pinning.inside = True
            start = now()
            try:
                pinned = original(*args, **kwargs)
            finally:
                _pinning.inside = False
            safely(lambda: TRANSFER.write(start, now(), {"bytes": size_of(pinned)[0], "kind": "pin"}))
            return pinned

        return pin_memory

    patches.around(module, "pin_memory", around)
