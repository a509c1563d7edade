"""Copies between devices, and pinning: `device/transfer` with the bytes moved."""

from __future__ import annotations

import functools
import sys
import threading
from types import ModuleType
from typing import Any

from dftracer._core import training
from dftracer.auto._events import TRANSFER, now
from dftracer.torch.patches import Patches, safely

__all__ = ["install", "install_pinning"]


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch `Tensor.to` and `Tensor.cuda`; a call that gives another dtype only is passed on at once."""
    owner: Any = torch.Tensor
    dtype = torch.dtype
    compiling = torch.compiler.is_compiling
    for name in ("to", "cuda"):
        patches.replace(owner, name, _timed(getattr(owner, name), dtype, compiling))


def _timed(original: Any, dtype: Any, compiling: Any) -> Any:
    # One argument is the usual call, and passing it on as it came is half the price of a repacked list.
    @functools.wraps(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (args and type(args[0]) is dtype) or compiling():
            return original(self, *args, **kwargs)
        start = now()
        if len(args) == 1 and not kwargs:
            result = original(self, args[0])
            if result is self:
                return result
        else:
            result = original(self, *args, **kwargs)
        if result is not self and result.device != self.device:
            safely(_copied, self, result, start, now())
        return result

    return copy


def _copied(source: Any, result: Any, start: int, end: int) -> None:
    if type(source).__name__ == "FakeTensor" or type(result).__name__ == "FakeTensor":
        return  # a compiler is tracing it
    moved = source.numel() * source.element_size()
    kind = f"{source.device.type} to {result.device.type}"
    training().write(TRANSFER, start, end, bytes=moved, kind=kind)


_pinning = threading.local()


def install_pinning(module: ModuleType, patches: Patches) -> None:
    """Watch the loader's pinning of batches, on its own thread or in the main one."""
    original = module.pin_memory
    tensor = sys.modules["torch"].Tensor

    @functools.wraps(original)
    def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(_pinning, "inside", False):  # it goes through a batch by calling itself
            return original(data, *args, **kwargs)
        _pinning.inside = True
        start = now()
        try:
            pinned = original(data, *args, **kwargs)
        finally:
            _pinning.inside = False
        safely(lambda: TRANSFER.write(start, now(), {"bytes": _bytes(pinned, tensor), "kind": "pin"}))
        return pinned

    patches.replace(module, "pin_memory", pin_memory)


def _bytes(value: Any, tensor: Any) -> int:
    if isinstance(value, tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, dict):
        return sum(_bytes(each, tensor) for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(_bytes(each, tensor) for each in value)
    return 0
