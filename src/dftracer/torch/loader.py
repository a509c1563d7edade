"""Batches: how they are made, in a loader's workers or in the training process, and where that waits for one.

Nothing that belongs to the program is replaced. While one of torch's fetchers makes a batch, torch's own code
runs on a stand-in for the *fetcher*, which measures how long the data set and the collation take; the fetcher
itself, the data set and the function that collates stay the objects they are. Transforms are seen where their
library's class can be observed (torchvision's `Compose`).

What is known about an iterator is in a separate table. A batch is identified by the loader's task number,
which the events of workers carry.
"""

from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer import _core
from dftracer._core import AutoEvent, around_fetch, mute_models, set_task, training
from dftracer.torch.boundaries import notify
from dftracer.torch.patches import Patches, failed, hide_from_dynamo, safely
from dftracer.torch.rule import COLLATE, ITEM, PREPROCESS, Pass, now

if TYPE_CHECKING:
    from dftracer.torch.patches import Around

_passes: weakref.WeakKeyDictionary[Any, Pass] = weakref.WeakKeyDictionary()

# Loaders are told apart by numbers: `for batch in make_loader():` keeps none, and the next may get its address.
_numbers = itertools.count(1)
_numbered: dict[int, tuple[weakref.ref[Any], int]] = {}  # by address: what is there, and its number


# --- The loop that reads batches: where one is awaited, and which worker made it


def install(module: ModuleType, patches: Patches) -> None:
    """Watch `torch.utils.data.dataloader`."""
    counting: list[bool] = []

    def count_samples() -> None:  # only for workers: otherwise the items themselves are seen
        if not counting:
            counting.append(True)
            patches.around(module._BaseDataLoaderIter, "_next_index", _around_index)

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def loader_iter(self: Any) -> Any:
            notify("loader", True)
            try:
                if vars(self).get("num_workers"):
                    safely(count_samples)
                began = now()
                iterator = original(self)
                safely(_began, self, iterator, began)
            finally:
                notify("loader", False)
            return iterator

        return loader_iter

    patches.around(module.DataLoader, "__iter__", around)
    pass_of = functools.partial(safely, _pass_of)
    patches.around(module._BaseDataLoaderIter, "__next__", lambda next_: _core.around_next(next_, pass_of))
    _watch_order(module, patches)
    _watch_making(module, patches)


def _number_of(loader: Any) -> int:
    address = id(loader)
    known = _numbered.get(address)
    if known is not None and known[0]() is loader:
        return known[1]
    number = next(_numbers)
    _numbered[address] = weakref.ref(loader, lambda _: _numbered.pop(address, None)), number
    return number


def _began(loader: Any, iterator: Any, began: int) -> None:
    before = _passes.get(iterator)  # persistent workers: the same iterator begins again
    restarts = 0
    if before is not None:
        before.iterator = None
        restarts = before.restarts + 1
    loader_pass = Pass(_number_of(loader), began, now(), restarts)
    if vars(loader).get("persistent_workers"):
        loader_pass.of_iterator(iterator)
    else:
        loader_pass.follow(iterator)
    _passes[iterator] = loader_pass


def _pass_of(iterator: Any) -> Pass:
    loader_pass = _passes.get(iterator)
    if loader_pass is None:
        loader_pass = _passes[iterator] = Pass(next(_numbers), 0, 0)
        loader_pass.follow(iterator)
    return loader_pass


# The number of samples in each task of a worker.
_sizes: weakref.WeakKeyDictionary[Any, dict[int, int]] = weakref.WeakKeyDictionary()
# For loaders that do not preserve order: the task that arrived last.
_arrived: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


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
            answer = original(self)
            if not getattr(self, "_in_order", True) and type(answer) is tuple and type(answer[0]) is int:
                _arrived[self] = answer[0]
            return answer

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
    """Note which task's batch `__next__` is about to return, and which worker made it."""
    training_state = training()
    loader_pass = training_state.latest
    if loader_pass is None or loader_pass.iterator is None or loader_pass.iterator() is not iterator:
        loader_pass = _pass_of(iterator)
    task = iterator._rcvd_idx - 1 if getattr(iterator, "_in_order", True) else _arrived.get(iterator, 0)
    if worker is None:
        facts: tuple[Any, ...] = ("batch", task)
    else:
        facts = ("batch", task, "worker", worker, "worker_pid", iterator._workers[worker].pid)
    size = _sizes.get(iterator, {}).pop(task, None)
    if size is not None:
        facts += ("samples", size)
    training_state.facts = (*facts, "pass", loader_pass.restarts) if loader_pass.restarts else facts


# --- Making batches: items, transforms, collation

# Module -> class and the method that applies all of its transforms.
TRANSFORMS = {
    "torchvision.transforms.transforms": ("Compose", "__call__"),
    "torchvision.transforms.v2._container": ("Compose", "forward"),
}


_ABSENT = object()
# The names that `fetch` of torch's fetchers uses; ours have all of them.
_KNOWN = {
    *("StopIteration", "append", "hasattr", "len", "next", "__getitems__"),
    *("auto_collation", "collate_fn", "dataset", "dataset_iter", "drop_last", "ended"),
}


class _Task:
    """The batch this process is making."""

    def __init__(self) -> None:
        self.batch: int | None = None
        self.restarts = 0
        self.worker = False
        self.transforming = False


_task = _Task()


def in_worker() -> bool:
    """Whether this process makes batches for another."""
    return _task.worker


def _log(event: AutoEvent, start: int, *pairs: Any) -> None:
    """An event that ends now, with the task it belongs to; a mistake costs the event, not the batch."""
    try:
        if _task.batch is None:
            event.log(start, 0, *pairs)
        elif _task.restarts:
            event.log(start, 0, *pairs, "batch", _task.batch, "pass", _task.restarts)
        else:
            event.log(start, 0, *pairs, "batch", _task.batch)
    except Exception as error:
        failed("batch", error)


class _Tasks:
    """A worker's queue of tasks that remembers the latest; only torch's loop holds it."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def get(self, *args: Any, **kwargs: Any) -> Any:
        task = self._queue.get(*args, **kwargs)
        if isinstance(task, tuple):
            _task.batch = task[0]
        elif task is not None:
            _task.restarts += 1
        set_task(_task.batch, _task.restarts)
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _ItemsTogether:
    """Stands in for a data set that makes items together, while torch's fetcher makes one batch of it.

    For any other data set, `_core.Items` does.
    """

    __slots__ = ("_first", "dataset")

    def __init__(self, dataset: Any, first: Any) -> None:
        self.dataset, self._first = dataset, first

    @property
    def __getitems__(self) -> Any:
        """Read from the data set as often as torch would read it; the first time has already happened."""
        many, self._first = self._first, _ABSENT
        return _Many(self.dataset.__getitems__ if many is _ABSENT else many)

    def __getitem__(self, index: Any) -> Any:
        start = now()
        item = self.dataset[index]
        if type(index) is int:
            _log(ITEM, start, "image_idx", index)
        else:
            _log(ITEM, start)
        return item


class _Many:
    """A data set's `__getitems__`."""

    __slots__ = ("_many",)

    def __init__(self, many: Any) -> None:
        self._many = many

    def __bool__(self) -> bool:
        return bool(self._many)

    def __call__(self, indices: Any) -> Any:
        start = now()
        found = self._many(indices)
        if type(indices) is list:
            _log(ITEM, start, "items", len(indices))
        else:
            _log(ITEM, start)
        return found


class _Stream:
    """Stands in for the iterator of an iterable data set while torch's fetcher makes one batch of it."""

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        start = now()
        item = next(self._iterator)
        _log(ITEM, start)
        return item


class _IterableFetcher:
    """Stands in for torch's fetcher of an iterable data set inside one call of its `fetch`."""

    __slots__ = ("_collate", "_fetcher", "auto_collation", "dataset_iter", "drop_last")

    def __init__(self, fetcher: Any) -> None:
        self._fetcher = fetcher
        self.auto_collation, self.drop_last = fetcher.auto_collation, fetcher.drop_last
        self.dataset_iter = _Stream(fetcher.dataset_iter)
        self._collate = fetcher.collate_fn

    def collate_fn(self, items: Any) -> Any:
        start = now()
        batch = self._collate(items)
        if type(items) is list:
            _log(COLLATE, start, "items", len(items))
        else:
            _log(COLLATE, start)
        return batch

    @property
    def ended(self) -> bool:
        return bool(self._fetcher.ended)

    @ended.setter
    def ended(self, value: bool) -> None:
        """Set by torch when there are no more items."""
        self._fetcher.ended = value


def _watch_making(module: ModuleType, patches: Patches) -> None:
    """Watch the fetchers of `torch.utils.data`, and the workers' loop."""
    for ours in (
        _ItemsTogether.__getitem__,
        _Many.__call__,
        _Stream.__next__,
        _IterableFetcher.collate_fn,
        _log,
    ):
        safely(hide_from_dynamo, ours)
    fetchers: Any = module._utils.fetch
    of_map, of_iterable = fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher

    def around_iterable(original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(self: Any, index: Any) -> Any:
            # A subclass may rely on `self` being its own instance.
            return original(_IterableFetcher(self) if type(self) is of_iterable else self, index)

        return fetch

    _watch_fetch(
        of_map, patches, lambda original: around_fetch(original, of_map, _ItemsTogether, ITEM, COLLATE)
    )
    _watch_fetch(of_iterable, patches, around_iterable)

    # Spawned workers look it up by name: their own copy, observed only if they are traced.
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def worker_loop(dataset_kind: Any, dataset: Any, index_queue: Any, *args: Any, **kwargs: Any) -> Any:
            _task.worker, _task.batch, _task.restarts = True, None, 0
            set_task(None, 0)
            mute_models(True)
            return original(dataset_kind, dataset, _Tasks(index_queue), *args, **kwargs)

        return worker_loop

    patches.around(sys.modules["torch.utils.data._utils.worker"], "_worker_loop", around)


def _watch_fetch(owner: Any, patches: Patches, around: Around) -> None:
    # If a version of torch needs more of a fetcher than ours has, its batches are not looked into.
    if _KNOWN.issuperset(owner.fetch.__code__.co_names):
        patches.around(owner, "fetch", around)


def install_transforms(module: ModuleType, patches: Patches) -> None:
    """Watch the class that applies a list of transforms to items; one inside another is a part of that."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*args: Any, **kwargs: Any) -> Any:
            if _task.transforming or not (_task.worker or training().fetching):
                return original(*args, **kwargs)
            _task.transforming = True
            start = now()
            try:
                result = original(*args, **kwargs)
            finally:
                _task.transforming = False
            _log(PREPROCESS, start)
            return result

        return apply

    owner, name = TRANSFORMS[module.__name__]
    patches.around(getattr(module, owner), name, around)
