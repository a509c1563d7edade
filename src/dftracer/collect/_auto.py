"""Collecting without a change of code: armed when torch is imported, begun at the first sign of training.

The steps come from the program's optimizer; where there is none (inference), from its data loader. A launcher
such as torchrun imports torch too, but makes no optimizer and reads no batch: it collects nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from dftracer import _messages
from dftracer.collect._options import Options, from_environment

__all__ = ["collector", "install"]

_options: Options | None = None
_collector: Any = None
_installed = False
_driver: weakref.ref[Any] | None = None
_batches = 0
_failed = False


def install() -> None:
    """Collect in this process if the environment asks for it."""
    global _options, _installed  # noqa: PLW0603 - one collection per process
    if _installed:
        return
    try:
        _options = from_environment()
    except ValueError as error:
        _messages.always(f"collect: {error}")
    if _options is None:
        return
    _installed = True
    torch = sys.modules.get("torch")
    if torch is not None:
        _arm(torch)
    else:
        sys.meta_path.insert(0, _AfterImport())


def collector() -> Any:
    """The collection of this process, if it has begun."""
    return _collector


class _AfterImport:
    """Ignores every import except the first one of torch, and does its work after that."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """The spec of torch, whose execution ends with ours."""
        if name != "torch":
            return None
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _arm(module)

            with contextlib.suppress(AttributeError):
                loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _arm(torch: Any) -> None:
    try:
        optimizer = importlib.import_module("torch.optim.optimizer")
        loader = importlib.import_module("torch.utils.data.dataloader")
        _before(optimizer.Optimizer, "__init__", _begin)
        _before(loader.DataLoader, "__iter__", _begin)
        _before(loader._BaseDataLoaderIter, "__next__", _batch)
        optimizer.register_optimizer_step_post_hook(_optimizer_stepped)
    except Exception as error:
        _fail(error)


def _before(owner: Any, name: str, call: Any) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call()
        return original(*args, **kwargs)

    setattr(owner, name, wrapper)


def _fail(error: BaseException) -> None:
    global _failed  # noqa: PLW0603
    _failed = True
    _messages.always(f"collect: nothing is collected: {type(error).__name__}: {error}")


def _begin() -> None:
    global _collector  # noqa: PLW0603
    if _collector is not None or _failed or _options is None or _is_worker():
        return
    try:
        from dftracer.collect._collector import Collector  # noqa: PLC0415 - torch is there by now

        _collector = Collector(_options)
        _collector.start()
        atexit.register(_collector.close)
    except Exception as error:
        _fail(error)


def _is_worker() -> bool:
    """Whether this is a worker of a data loader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _step() -> None:
    if _collector is not None and not _failed:
        try:
            _collector.step()
        except Exception as error:
            _fail(error)


def _optimizer_stepped(optimizer: Any, *_: Any) -> None:
    global _driver  # noqa: PLW0603
    if _options is None or _options.steps == "loader":
        return
    if _driver is None or _driver() is None:
        _driver = weakref.ref(optimizer)
    if _driver() is optimizer:
        _step()


def _batch() -> None:
    """A batch is asked for: without an optimizer, the step with the batch before has ended."""
    global _batches  # noqa: PLW0603
    if _options is None or _options.steps == "optimizer" or _collector is None:
        return
    if os.getpid() != getattr(_collector, "_pid", 0):
        return
    if _options.steps == "auto":
        torch = sys.modules["torch"]
        # Batches before the first optimizer step are counted only where nothing can be learnt from them.
        if _driver is not None or torch.is_grad_enabled():
            return
    _batches += 1
    if _batches > 1:
        _step()
