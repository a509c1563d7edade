"""Lightning: steps, validation and the costs of hooks.

Under `dftracer run` every trainer is recognised automatically. To set it up, with DFTRACER_ENABLE=1::

    from dftracer.auto.lightning import DFTracerCallback, DFTracerProfiler

    trainer = Trainer(..., callbacks=[DFTracerCallback()], profiler=DFTracerProfiler())

The callback marks steps and evaluations. The profiler adds `forward` as Lightning itself sees it,
and an event of category `lightning` for each hook of the module and its callbacks.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer import auto
from dftracer.auto._required import required
from dftracer.torch.patches import Patches, safely

if TYPE_CHECKING:
    from dftracer._core import Training

    class Callback:
        """Stands in for the framework's own where types are checked."""

    class Profiler:
        """Stands in for the framework's own where types are checked."""

        def __init__(self, dirpath: str | None = None, filename: str | None = None) -> None: ...

else:
    # The two distributions have classes of their own; the one that the program has imported counts.
    _PACKAGE = (
        "pytorch_lightning"
        if "pytorch_lightning" in sys.modules
        or (importlib.util.find_spec("lightning") is None and importlib.util.find_spec("pytorch_lightning"))
        else "lightning.pytorch"
    )
    Callback = required(f"{_PACKAGE}.callbacks", "lightning").Callback
    Profiler = required(f"{_PACKAGE}.profilers", "lightning").Profiler

__all__ = ["NAME", "DFTracerCallback", "DFTracerProfiler", "install"]

NAME = "Lightning"
_HOOKS = ("[Callback]", "[LightningModule]")


def _here() -> Training | None:
    if not auto.installed():
        return None
    from dftracer._core import training  # noqa: PLC0415 - the recorder is loaded on use

    return training()


def _now() -> int:
    from dftracer import _core  # noqa: PLC0415

    return _core.time_ns()


def _tell(method: str, *args: Any) -> None:
    def tell() -> None:
        here = _here()
        if here is not None:
            getattr(here, method)(*args)

    safely(tell)


class DFTracerCallback(Callback):
    """Marks the trainer's steps and evaluations; automatic tracing records what happens inside."""

    def __init__(self) -> None:
        super().__init__()
        auto.install()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """A resumed run continues counting where the earlier one stopped."""
        if trainer.global_step:
            _tell("resume", int(trainer.global_step), int(trainer.current_epoch))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch that was only accumulated does not end a step."""
        _tell("batch_ends")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        _tell("evaluation_begins")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        _tell("evaluation_ends")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        _tell("evaluation_begins")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        _tell("evaluation_ends")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        _tell("evaluation_begins")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        _tell("evaluation_ends")


class DFTracerProfiler(Profiler):
    """Puts what Lightning profiles into the trace."""

    def __init__(self) -> None:
        super().__init__(dirpath=None, filename=None)
        auto.install()
        self._open: dict[str, int] = {}

    def start(self, action_name: str) -> None:
        """Lightning begins something."""
        if not auto.installed():
            return
        self._open[action_name] = _now()
        if _is_forward(action_name):
            _tell("forward_begins")

    def stop(self, action_name: str) -> None:
        """And ends it."""
        start = self._open.pop(action_name, None)
        if start is None:
            return
        end = _now()
        if _is_forward(action_name):
            _tell("forward_ends")
        elif action_name.startswith(_HOOKS) and ".on_" in action_name:
            safely(_write_hook, action_name, start, end)

    def summary(self) -> str:
        """The report of the trace is `dftracer report`."""
        return ""


def _is_forward(action_name: str) -> bool:
    return action_name.startswith("[Strategy]") and action_name.endswith(".training_step")


def _write_hook(name: str, start: int, end: int) -> None:
    from dftracer import _core  # noqa: PLC0415

    _core.log_event(name, "lightning", start, end - start, {"auto": 1})


def install(module: ModuleType, patches: Patches) -> None:
    """Give every `Trainer` the callback."""
    owner: Any = module.Trainer
    original = owner.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        safely(_add, self)

    patches.replace(owner, "__init__", init)


def _add(trainer: Any) -> None:
    if not any(isinstance(c, DFTracerCallback) for c in trainer.callbacks):
        trainer.callbacks.insert(0, DFTracerCallback())  # checkpoints stay the last ones
