"""Keras 3, with any backend: batches, epochs and evaluations.

To set it up yourself, with DFTRACER_ENABLE=1::

    from dftracer.auto.keras import DFTracerCallback

    model.fit(..., callbacks=[DFTracerCallback()])

`dftracer run` recognises every `fit` automatically. What a backend does inside a batch is not recorded: a
batch is one `compute/compute` event, and the time between two batches is waiting for data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer import _core, _session, auto
from dftracer._packages import need
from dftracer.python import ai
from dftracer.torch.patches import Patches, safely
from dftracer.torch.rule import BLOCK, EPOCH, EVALUATE, FETCH, TRAIN

if TYPE_CHECKING:

    class Callback:
        """Stands in for the framework's own where types are checked."""

else:
    # Not by its public name: that is not there yet when the list of callbacks has just been imported.
    Callback = need("keras.src.callbacks.callback").Callback

__all__ = ["NAME", "DFTracerCallback", "install"]

NAME = "Keras"

_COMPUTE = _core.AutoEvent("compute", "compute", (ai.compute,))


class DFTracerCallback(Callback):
    """Records what `fit` and `evaluate` do."""

    def __init__(self) -> None:
        super().__init__()
        _session.arm()
        self._numbers = {"step": 0, "epoch": 0}
        self._train = self._epoch = self._waiting = self._batch = self._test = 0

    def on_train_begin(self, logs: Any = None) -> None:
        _mute_torch(True)
        self._train = _core.time_ns()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._numbers["epoch"] = int(epoch)
        self._epoch = self._waiting = _core.time_ns()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._batch = _core.time_ns()
        self._write(FETCH, self._waiting, self._batch, **self._numbers)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        end = _core.time_ns()
        self._write(_COMPUTE, self._batch, end, **self._numbers)
        self._write(BLOCK, self._batch, end, **self._numbers)
        self._numbers["step"] += 1
        self._waiting = end

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write(EPOCH, self._epoch, _core.time_ns(), epoch=int(epoch))

    def on_test_begin(self, logs: Any = None) -> None:
        _mute_torch(True)
        self._test = _core.time_ns()

    def on_test_end(self, logs: Any = None) -> None:
        end = _core.time_ns()
        self._write(EVALUATE, self._test, end)
        self._waiting = end
        if not self._train:
            _mute_torch(False)

    def on_train_end(self, logs: Any = None) -> None:
        self._write(TRAIN, self._train, _core.time_ns())
        self._train = 0
        _mute_torch(False)

    def _write(self, event: _core.AutoEvent, start: int, end: int, **numbers: int) -> None:
        if start:
            safely(event.write, start, end, dict(numbers))


def _mute_torch(on: bool) -> None:
    """Keras reports its own steps, and its optimizers are not torch's: mute torch's boundaries meanwhile."""
    from dftracer.torch import rule  # noqa: PLC0415 - only where torch may be watched

    if not auto.installed() or "torch" not in sys.modules:
        return
    if on:  # Keras looks at a batch before it trains
        rule.forget_this()
    _core.training().muted = on


def install(module: ModuleType, patches: Patches) -> None:
    """Every list of callbacks that `fit` and `evaluate` make gets one of ours."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
            original(self, safely(_with_ours, callbacks) or callbacks, *args, **kwargs)

        return init

    patches.around(module.CallbackList, "__init__", around)


def _with_ours(callbacks: Any) -> list[Any]:
    given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
    return given if any(isinstance(c, DFTracerCallback) for c in given) else [*given, DFTracerCallback()]
