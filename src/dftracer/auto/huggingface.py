"""Hugging Face `Trainer`: its steps, epochs and evaluations.

Under `dftracer run` every trainer is recognised automatically. To set it up, with DFTRACER_ENABLE=1::

    from dftracer.auto.huggingface import DFTracerCallback

    trainer = Trainer(..., callbacks=[DFTracerCallback()])
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer import auto
from dftracer.auto._required import required
from dftracer.torch.patches import Patches, safely

if TYPE_CHECKING:
    from dftracer._core import Training

    class TrainerCallback:
        """Stands in for the framework's own where types are checked."""

else:
    TrainerCallback = required("transformers.trainer_callback", "hf").TrainerCallback

__all__ = ["NAME", "DFTracerCallback", "install"]

NAME = "Hugging Face Trainer"


class DFTracerCallback(TrainerCallback):
    """Marks the trainer's steps; automatic tracing records what happens inside them."""

    def __init__(self) -> None:
        auto.install()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A resumed run continues counting where the earlier one stopped."""
        safely(_begins, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped; saving, logging and evaluation come after it."""
        safely(_step_ends)


def _here() -> Training | None:
    if not auto.installed():
        return None
    from dftracer._core import training  # noqa: PLC0415 - the recorder is loaded on use

    return training()


def _begins(state: Any) -> None:
    here = _here()
    if here is not None and state.global_step:
        here.resume(int(state.global_step), int(state.epoch or 0))


def _step_ends() -> None:
    here = _here()
    if here is not None:
        here.step_ends()


def install(module: ModuleType, patches: Patches) -> None:
    """Give every `transformers.Trainer` the callback, and know when it evaluates."""
    from dftracer.auto._steps import evaluating  # noqa: PLC0415

    owner: Any = module.Trainer
    original = owner.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        safely(_add, self)

    patches.replace(owner, "__init__", init)
    for name in ("evaluate", "predict"):
        patches.replace(owner, name, evaluating(getattr(owner, name)))


def _add(trainer: Any) -> None:
    if not any(isinstance(c, DFTracerCallback) for c in trainer.callback_handler.callbacks):
        trainer.add_callback(DFTracerCallback())
