"""Detail inside the model, on request: `compute/forward.<class>` for every module that is called.

torch's global module hooks add a cost to every module call, and switch off its fastest path; compiled parts
are left alone.
"""

from __future__ import annotations

import sys
import threading
from types import ModuleType, TracebackType
from typing import Any

from dftracer import _core
from dftracer.torch.patches import Patches

__all__ = ["install", "modules"]

_open = threading.local()


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch every module's forward."""
    hooks = torch.nn.modules.module
    compiling = torch.compiler.is_compiling

    def before(module: Any, args: Any) -> None:
        if not compiling():
            _stack().append((module, _core.time_ns()))

    def after(module: Any, args: Any, output: Any) -> None:
        if compiling():
            return
        stack = _stack()
        while stack:
            entered, start = stack.pop()
            if entered is module:
                name = f"forward.{type(module).__name__}"
                _core.log_event(name, "compute", start, _core.time_ns() - start, {"auto": 1})
                return

    patches.later(hooks.register_module_forward_pre_hook(before).remove)
    patches.later(hooks.register_module_forward_hook(after).remove)


def _stack() -> list[tuple[Any, int]]:
    found: list[tuple[Any, int]] | None = getattr(_open, "stack", None)
    if found is None:
        found = _open.stack = []
    return found


class modules:  # noqa: N801 - used as a word: `with modules():`
    """Watch modules for the time of a block."""

    def __init__(self) -> None:
        self._patches = Patches()

    def __enter__(self) -> modules:
        install(sys.modules["torch"], self._patches)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.take_back()
