"""DeepSpeed: `engine.step` is the optimizer step, however many its own optimizer makes of it."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from dftracer.auto._events import now
from dftracer.auto._patches import Patches, safely
from dftracer.auto._training import training

__all__ = ["NAME", "install"]

NAME = "DeepSpeed"


def install(module: ModuleType, patches: Patches) -> None:
    """Watch `DeepSpeedEngine.step`; between the borders of accumulation it does nothing, and no step is made of it."""
    owner: Any = module.DeepSpeedEngine
    original = owner.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_gradient_accumulation_boundary():
            return original(self, *args, **kwargs)
        here, key = training(), id(self)
        safely(here.optimizer_begins, key, now())
        here.spanned = True
        try:
            return original(self, *args, **kwargs)
        finally:
            here.spanned = False
            safely(lambda: here.optimizer_ends(key, now()))

    patches.replace(owner, "step", step)
