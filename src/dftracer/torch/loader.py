"""`DataLoader` in the process that trains: where a batch is awaited, and which worker made it.

What is known about an iterator is in a separate table, and a batch is identified by the loader's task number.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import _core
from dftracer._core import training
from dftracer.torch import worker
from dftracer.torch.boundaries import tell
from dftracer.torch.events import now
from dftracer.torch.patches import Patches, failed, safely
from dftracer.torch.rule import Pass

__all__ = ["install"]

_passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()


def install(module: ModuleType, patches: Patches) -> None:
    """Watch `torch.utils.data.dataloader`."""
    counting: list[bool] = []

    def count_samples() -> None:  # only for workers: otherwise the items themselves are seen
        if not counting:
            counting.append(True)
            patches.around(module._BaseDataLoaderIter, "_next_index", _around_index)

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def loader_iter(self: Any) -> Any:
            tell("loader", True)
            if vars(self).get("num_workers"):
                safely(count_samples)
            began = now()
            iterator = original(self)
            safely(_began, self, iterator, began)
            tell("loader", False)
            return iterator

        return loader_iter

    patches.around(module.DataLoader, "__iter__", around)
    pass_of = functools.partial(safely, _pass_of)
    patches.around(module._BaseDataLoaderIter, "__next__", lambda next_: _core.around_next(next_, pass_of))
    _watch_order(module, patches)
    worker.install(module, patches)


def _began(loader: Any, iterator: Any, began: int) -> None:
    before = _passes.get(iterator)  # persistent workers: the same iterator begins again
    restarts = 0
    if before is not None:
        before.iterator = None
        restarts = before.restarts + 1
    of = Pass(id(loader), began, now(), restarts)
    if vars(loader).get("persistent_workers"):
        of.of_iterator(iterator)
    else:
        of.follow(iterator)
    _passes[iterator] = of


def _pass_of(iterator: Any) -> Pass:
    of = _passes.get(iterator)
    if of is None:
        of = _passes[iterator] = Pass(id(iterator), 0, 0)
        of.follow(iterator)
    return of


# How many samples a worker was asked for, by task.
_sizes: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
# For loaders that do not preserve order: the task that arrived last.
_got: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _around_index(original: Callable[..., Any]) -> Callable[..., Any]:
    def next_index(self: Any) -> Any:
        index = original(self)
        task = getattr(self, "_send_idx", None)
        if type(task) is int:  # of a loader with workers
            _sizes.setdefault(self, {})[task] = len(index) if type(index) is list else 1
        return index

    return next_index


def _watch_order(module: ModuleType, patches: Patches) -> None:
    def around_get(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_data(self: Any) -> Any:
            got = original(self)
            if not getattr(self, "_in_order", True) and type(got) is tuple and type(got[0]) is int:
                _got[self] = got[0]
            return got

        return get_data

    def around_process(original: Callable[..., Any]) -> Callable[..., Any]:
        def process_data(self: Any, data: Any, *worker: Any) -> Any:
            try:
                _handed_out(self, worker[0] if worker else None)
            except Exception as error:
                failed("handed_out", error)
            return original(self, data, *worker)

        return process_data

    patches.around(module._MultiProcessingDataLoaderIter, "_get_data", around_get)
    patches.around(module._MultiProcessingDataLoaderIter, "_process_data", around_process)


def _handed_out(iterator: Any, worker: int | None) -> None:
    """Which task's batch `__next__` is about to give, and which worker made it: keys and values in turns."""
    here = training()
    of = here.latest
    if of is None or of.iterator is None or of.iterator() is not iterator:
        of = _pass_of(iterator)
    task = iterator._rcvd_idx - 1 if getattr(iterator, "_in_order", True) else _got.get(iterator, 0)
    if worker is None:
        facts: tuple[Any, ...] = ("batch", task)
    else:
        facts = ("batch", task, "worker", worker, "worker_pid", iterator._workers[worker].pid)
    size = _sizes.get(iterator, {}).pop(task, None)
    if size is not None:
        facts += ("samples", size)
    here.facts = (*facts, "pass", of.restarts) if of.restarts else facts
