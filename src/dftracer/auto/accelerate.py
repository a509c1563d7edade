"""Accelerate: its loaders, `accelerator.backward` and its optimizers are torch's, met where torch is."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import auto
from dftracer.torch.patches import Patches

__all__ = ["NAME", "install"]

NAME = ""  # announced when an accelerator prepares something: other frameworks import it too


def install(module: ModuleType, patches: Patches) -> None:
    """Know that the program itself uses it."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(*args: Any, **kwargs: Any) -> Any:
            auto.found_unless("Accelerate", "Hugging Face Trainer")
            return original(*args, **kwargs)

        return prepare

    patches.around(module.Accelerator, "prepare", around)
