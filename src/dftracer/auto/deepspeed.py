"""DeepSpeed: `engine.backward` and `engine.step` are the boundaries, whatever ZeRO does inside them.

A step of the engine is one optimizer step, though ZeRO may step an optimizer once for each sub-group of
parameters; between two boundaries of gradient accumulation `engine.step` is none.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import auto
from dftracer._core import training
from dftracer.torch.patches import Patches, safely
from dftracer.torch.rule import ANY_OPTIMIZER

NAME = ""  # announced when an engine is made: other frameworks import it without using it


def install(module: ModuleType, patches: Patches) -> None:
    """Watch the engine that `deepspeed.initialize` makes."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*args: Any, **kwargs: Any) -> None:
            safely(auto.found, "DeepSpeed")
            original(*args, **kwargs)

        return init

    owner: Any = module.DeepSpeedEngine
    patches.around(owner, "__init__", around)
    patches.around(owner, "backward", _backward)
    patches.around(owner, "step", _step)


def _backward(original: Any) -> Any:
    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        training_state = training()
        safely(training_state.backward_begins)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            safely(training_state.backward_ends, error)
            raise
        safely(training_state.backward_ends)
        return result

    return backward


def _step(original: Any) -> Any:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        training_state = training()
        if training_state.scaling or not safely(_updates, self):
            return original(self, *args, **kwargs)
        safely(training_state.optimizer_begins, self)
        training_state.scaling = ANY_OPTIMIZER
        try:
            return original(self, *args, **kwargs)
        finally:
            training_state.scaling = 0
            safely(lambda: training_state.optimizer_ends(self, not self.was_step_applied()))

    return step


def _updates(engine: Any) -> bool:
    """Whether the coming `engine.step` is a boundary of gradient accumulation."""
    managed = getattr(engine, "managed_gradient_accumulation", None)
    if managed is not None and not managed():  # the program itself counts, and calls it once
        return True
    return bool(engine.is_gradient_accumulation_boundary())
