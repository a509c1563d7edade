"""Lightning: steps, validation and the costs of hooks.

Under `dftracer run` every trainer is recognised automatically. To set it up, with DFTRACER_ENABLE=1::

    from dftracer.auto.lightning import DFTracerCallback, DFTracerProfiler

    trainer = Trainer(..., callbacks=[DFTracerCallback()], profiler=DFTracerProfiler())

The callback marks steps and evaluations. The profiler adds `forward` as Lightning itself sees it,
and an event of category `lightning` for each hook of the module and its callbacks.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer import auto
from dftracer._packages import need
from dftracer.metrics import ask
from dftracer.torch.patches import Patches, safely

if TYPE_CHECKING:

    class Callback:
        """Stands in for the framework's own where types are checked."""

    class Profiler:
        """Stands in for the framework's own where types are checked."""

        def __init__(self, dirpath: str | None = None, filename: str | None = None) -> None: ...

else:
    # The two distributions have separate classes; the one that the program has imported is used.
    _PACKAGE = (
        "pytorch_lightning"
        if "pytorch_lightning" in sys.modules
        or (importlib.util.find_spec("lightning") is None and importlib.util.find_spec("pytorch_lightning"))
        else "lightning.pytorch"
    )
    Callback = need(f"{_PACKAGE}.callbacks", "lightning").Callback
    Profiler = need(f"{_PACKAGE}.profilers", "lightning").Profiler

__all__ = ["NAME", "DFTracerCallback", "DFTracerProfiler", "install"]

NAME = "Lightning"
_HOOKS = ("[Callback]", "[LightningModule]")


def _now() -> int:
    from dftracer import _core  # noqa: PLC0415

    return _core.time_ns()


def _mark(method: str, *args: Any) -> None:
    def mark() -> None:
        training_state = auto.training_state()
        if training_state is not None:
            getattr(training_state, method)(*args)

    safely(mark)


# Hook of a trainer's callbacks -> the call of the step rule. A batch that was only accumulated ends no step.
_MARKS = {
    "on_train_batch_end": "batch_ends",
    "on_validation_start": "evaluation_begins",
    "on_validation_end": "evaluation_ends",
    "on_test_start": "evaluation_begins",
    "on_test_end": "evaluation_ends",
    "on_predict_start": "evaluation_begins",
    "on_predict_end": "evaluation_ends",
}
_observed = False  # whether every trainer's hooks are observed: then our own callback has nothing to add


def _hook(trainer: Any, name: str) -> None:
    """A trainer calls this hook of its callbacks."""
    if name in _MARKS:
        _mark(_MARKS[name])
    elif name == "on_train_start" and trainer.global_step:
        # A resumed run continues counting where the earlier one stopped.
        _mark("resume", int(trainer.global_step), int(trainer.current_epoch))


class DFTracerCallback(Callback):
    """Marks the trainer's steps and evaluations; automatic tracing records what happens inside.

    `metrics` are targets in the form of DFTRACER_METRICS: `DFTracerCallback(metrics="prometheus:9464")`.
    """

    def __init__(self, metrics: str | None = None) -> None:
        super().__init__()
        ask(metrics)
        auto.install()

    def _marks(self, trainer: Any, name: str) -> None:
        if not _observed:
            _hook(trainer, name)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_train_start")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._marks(trainer, "on_train_batch_end")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_validation_start")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_validation_end")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_test_start")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_test_end")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_predict_start")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._marks(trainer, "on_predict_end")


class DFTracerProfiler(Profiler):
    """Writes what Lightning profiles to the trace."""

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
            _mark("forward_begins")

    def stop(self, action_name: str) -> None:
        """And ends it."""
        start = self._open.pop(action_name, None)
        if start is None:
            return
        end = _now()
        if _is_forward(action_name):
            _mark("forward_ends")
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
    """Observe the hooks that a `Trainer` calls; its callbacks are left alone."""
    global _observed  # noqa: PLW0603

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def call_callback_hooks(trainer: Any, hook_name: str, *args: Any, **kwargs: Any) -> Any:
            safely(_hook, trainer, hook_name)
            return original(trainer, hook_name, *args, **kwargs)

        return call_callback_hooks

    patches.around(module.call, "_call_callback_hooks", around)
    _observed = True
    patches.on_undo(_stop_observing)


def _stop_observing() -> None:
    global _observed  # noqa: PLW0603
    _observed = False
