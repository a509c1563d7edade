"""Inspects the tensors of a batch without running the program's code, and observes copies between devices.

Only plain tensors and parameters, and exact dicts, lists and tuples around them, are inspected, with
`__torch_function__` modes off: subclasses and modes run the program's own code, which may do anything.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

from dftracer import _core
from dftracer.torch.patches import Patches, failed, safely
from dftracer.torch.rule import TRANSFER, now

_DEPTH = 3

_plain: tuple[type, ...] = ()
_nothing = nullcontext()


def plain_types() -> tuple[type, ...]:
    """The types of tensors that may be inspected; torch is imported by now."""
    global _plain  # noqa: PLW0603 - known after the first time
    if not _plain:
        torch = sys.modules["torch"]
        _plain = (torch.Tensor, torch.nn.Parameter)
    return _plain


def without_modes() -> AbstractContextManager[Any]:
    """Inside it, inspecting tensors does not call the program's modes."""
    native: Any = sys.modules["torch"]._C
    context: AbstractContextManager[Any] = (
        native.DisableTorchFunction() if native._len_torch_function_stack() else _nothing
    )
    return context


def tensors_in(value: Any, most: int) -> list[Any]:
    """The plain tensors of a batch, as far as it is made of builtin containers; at most `most`."""
    found: list[Any] = []
    _find(value, plain_types(), found, most, _DEPTH)
    return found


def _find(value: Any, plain: tuple[type, ...], found: list[Any], most: int, depth: int) -> None:
    kind = type(value)
    if kind in plain:
        found.append(value)
    elif depth and (kind is dict or kind is list or kind is tuple):
        for each in value.values() if kind is dict else value:
            if len(found) >= most:
                return
            _find(each, plain, found, most, depth - 1)


def size_of(value: Any) -> tuple[int, str | None]:
    """Bytes and dtype of the plain tensors in `value`; the dtype is that of the first."""
    tensors = tensors_in(value, sys.maxsize)
    if not tensors:
        return 0, None
    with without_modes():
        size = sum(each.numel() * each.element_size() for each in tensors)
        return int(size), str(tensors[0].dtype).removeprefix("torch.")


# --- Copies between devices, and pinning: `device/transfer` with the bytes moved


def install_transfers(torch: ModuleType, patches: Patches) -> None:
    """Watch `Tensor.to` and `Tensor.cuda`; a call that only changes the dtype is passed on at once."""
    native: Any = torch._C
    after = _core.after_copy(
        TRANSFER, native._len_torch_function_stack, native.DisableTorchFunction, partial(failed, "transfer")
    )
    for name in ("to", "cuda"):
        patches.after_method(torch.Tensor, name, after, plain_types(), torch.dtype)


_pinning = threading.local()


def install_pinning(module: ModuleType, patches: Patches) -> None:
    """Watch the loader's pinning of batches, on its own thread or in the main one."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def pin_memory(*args: Any, **kwargs: Any) -> Any:
            if getattr(_pinning, "inside", False):  # it walks a batch recursively
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
