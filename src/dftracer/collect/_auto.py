"""Collecting without code changes: begins at the first sign of training, and follows its steps.

`dftracer.torch.boundaries` reports what happens, and the steps are those of `dftracer run`. A launcher such
as torchrun imports torch too, but makes no optimizer and reads no batch: it collects nothing.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from typing import Any

from dftracer import _messages
from dftracer.collect._options import Options, from_environment
from dftracer.torch import boundaries

_driver: _Driver | None = None


def install() -> None:
    """Collect in this process if the environment asks for it."""
    global _driver  # noqa: PLW0603 - one collection per process
    if _driver is not None:
        return
    try:
        options = from_environment()
    except ValueError as error:
        _messages.always(f"collect: {error}")
        return
    if options is not None:
        from dftracer import auto  # noqa: PLC0415 - the settings are complete only now

        _driver = _Driver(options)
        auto.watch()


def collector() -> Any:
    """The collection of this process, if it has begun."""
    return None if _driver is None else _driver.collector


class _Driver:
    """Begins the collection of this process, tells it of each step, and ends it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.collector: Any = None
        self._failed = False
        self._thread = 0  # whose steps these are
        self._optimizer: weakref.ref[Any] | None = None
        self._batches = 0
        signs = ("loader", "optimizer made")
        self._unsubscribe = [boundaries.subscribe(kind, self._training_begins) for kind in signs]
        kind, subscriber = {
            "auto": ("step", self._step_is_over),
            "optimizer": ("optimizer", self._optimizer_stepped),
            "loader": ("batch", self._batch),
        }[options.steps]
        self._unsubscribe.append(boundaries.subscribe(kind, subscriber))

    def _training_begins(self, begins: bool, _: object) -> None:
        if not begins or self.collector is not None or self._failed or _is_worker():
            return
        try:
            from dftracer.collect._collector import Collector  # noqa: PLC0415 - torch is there by now

            self.collector = Collector(self._options)
            self.collector.start()
            atexit.register(self._end)
        except Exception as error:
            self._fail(error)

    def _end(self) -> None:
        from dftracer import auto  # noqa: PLC0415

        auto.finish()  # the last step may be known to be over only now
        self._leave()
        self.collector.close()

    def _step_is_over(self, begins: bool, number: int) -> None:
        """A step of the first thread that trained: other threads count their own."""
        thread = threading.get_ident()
        self._thread = self._thread or thread
        if thread == self._thread:
            self._step(number)

    def _optimizer_stepped(self, begins: bool, optimizer: Any) -> None:
        if begins:
            return
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self._step()

    def _batch(self, begins: bool, _: object) -> None:
        """A batch is asked for: the step with the batch before has ended."""
        if begins:
            self._batches += 1
            if self._batches > 1:
                self._step()

    def _step(self, number: int | None = None) -> None:
        if self.collector is not None and not self._failed:
            try:
                self.collector._step_is_over(number)
                if not self.collector._running:
                    self._leave()
            except Exception as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failed = True
        self._leave()
        _messages.always(f"collect: nothing is collected: {type(error).__name__}: {error}")

    def _leave(self) -> None:
        while self._unsubscribe:
            self._unsubscribe.pop()()


def _is_worker() -> bool:
    """Whether this is a worker of a data loader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
