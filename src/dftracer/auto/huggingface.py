"""Hugging Face `Trainer`: its steps, epochs and evaluations.

Under `dftracer run` every trainer is recognised automatically. To set it up, with DFTRACER_ENABLE=1::

    from dftracer.auto.huggingface import DFTracerCallback

    trainer = Trainer(..., callbacks=[DFTracerCallback()])
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer import auto
from dftracer._packages import need
from dftracer.metrics import ask
from dftracer.torch.patches import Patches, safely

if TYPE_CHECKING:

    class TrainerCallback:
        """Stands in for the framework's own where types are checked."""

else:
    TrainerCallback = need("transformers.trainer_callback", "hf").TrainerCallback

__all__ = ["NAME", "DFTracerCallback", "install"]

NAME = "Hugging Face Trainer"


class DFTracerCallback(TrainerCallback):
    """Marks the trainer's steps; automatic tracing records what happens inside them.

    `metrics` are targets in the form of DFTRACER_METRICS: `DFTracerCallback(metrics="prometheus:9464")`.
    """

    def __init__(self, metrics: str | None = None) -> None:
        ask(metrics)
        auto.install()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A resumed run continues counting where the earlier one stopped."""
        if not _observed:
            safely(_begins, state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped; saving, logging and evaluation come after it."""
        if not _observed:
            safely(_step_ends)


_observed = False  # whether every trainer's callbacks are observed: then our own callback has nothing to add


def _begins(state: Any) -> None:
    training_state = auto.training_state()
    if training_state is not None and state.global_step:
        training_state.resume(int(state.global_step), int(state.epoch or 0))


def _step_ends() -> None:
    training_state = auto.training_state()
    if training_state is not None:
        training_state.step_ends()


def install(module: ModuleType, patches: Patches) -> None:
    """Learn when a `transformers.Trainer` steps or evaluates; its callbacks are left alone."""
    global _observed  # noqa: PLW0603
    from dftracer.torch.rule import evaluating  # noqa: PLC0415

    def around_begin(original: Callable[..., Any]) -> Callable[..., Any]:
        def on_train_begin(self: Any, args: Any, state: Any, *more: Any, **kwargs: Any) -> Any:
            control = original(self, args, state, *more, **kwargs)
            safely(_begins, state)
            return control

        return on_train_begin

    def around_step(original: Callable[..., Any]) -> Callable[..., Any]:
        def on_step_end(*args: Any, **kwargs: Any) -> Any:
            control = original(*args, **kwargs)
            safely(_step_ends)
            return control

        return on_step_end

    handler = module.CallbackHandler
    patches.around(handler, "on_train_begin", around_begin)
    patches.around(handler, "on_step_end", around_step)
    for name in ("evaluate", "predict"):
        patches.around(module.Trainer, name, evaluating)
    _observed = True
    patches.on_undo(_stop_observing)


def _stop_observing() -> None:
    global _observed  # noqa: PLW0603
    _observed = False
