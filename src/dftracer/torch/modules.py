"""Detail inside the model, on request: `compute/forward.<class>` for every module that is called.

The calls are seen where those of models are (native/module/model_calls.hpp). A hook of torch would switch off
its fastest path and change compiled graphs, which are left alone.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType, TracebackType

from dftracer import _core
from dftracer.torch import rule
from dftracer.torch.patches import Patches

__all__ = ["install", "modules"]


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch every module's forward."""
    rule.watch_models(torch, patches)
    _core.record_modules(True)
    patches.later(functools.partial(_core.record_modules, False))


class modules:  # noqa: N801 - used as a word: `with modules():`
    """Watch modules for the time of a block."""

    def __init__(self) -> None:
        self._patches = Patches()

    def __enter__(self) -> modules:
        install(sys.modules["torch"], self._patches)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.take_back()
