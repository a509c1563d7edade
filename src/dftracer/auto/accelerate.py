"""Accelerate: its loaders, backward and optimizers are recorded at torch's boundaries."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import auto
from dftracer.torch.patches import Patches

__all__ = ["NAME", "install"]

NAME = ""  # announced when an accelerator prepares something: other frameworks import it too


def install(module: ModuleType, patches: Patches) -> None:
    """Note that the program itself uses Accelerate."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(*args: Any, **kwargs: Any) -> Any:
            auto.found_unless("Accelerate", "Hugging Face Trainer")
            return original(*args, **kwargs)

        return prepare

    patches.around(module.Accelerator, "prepare", around)
