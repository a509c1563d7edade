"""Making batches, in a loader's workers or in the main process: items, transforms, collation.

Nothing of the program's is replaced. While a fetcher of torch's makes a batch, torch's own code runs on a
stand-in for the *fetcher*, which measures how long the data set and the collation take; the fetcher itself,
the data set and the function that collates stay the objects they are. Transforms are seen where their
library's class can be observed (torchvision's `Compose`). In workers, events carry the task number, by which
the main process identifies the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dftracer._core import around_fetch, mute_models, set_task, training
from dftracer.torch.events import COLLATE, ITEM, PREPROCESS, Word, now
from dftracer.torch.patches import Patches, failed, out_of_sight, safely

if TYPE_CHECKING:
    from dftracer.torch.patches import Around

__all__ = ["TRANSFORMS", "in_worker", "install", "install_transforms"]

# Module -> class and the method that applies all of its transforms.
TRANSFORMS = {
    "torchvision.transforms.transforms": ("Compose", "__call__"),
    "torchvision.transforms.v2._container": ("Compose", "forward"),
}


_ABSENT = object()
# The names that `fetch` of torch's fetchers uses, all of which ours have.
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


def _log(word: Word, start: int, *pairs: Any) -> None:
    """An event that ends now, with the task it belongs to; a mistake costs the event, not the batch."""
    try:
        if _task.batch is None:
            word.log(start, 0, *pairs)
        elif _task.restarts:
            word.log(start, 0, *pairs, "batch", _task.batch, "pass", _task.restarts)
        else:
            word.log(start, 0, *pairs, "batch", _task.batch)
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
    """A data set that makes items together, for the time torch's fetcher makes one batch of it.

    Any other is `_core.Items` meanwhile.
    """

    __slots__ = ("_first", "dataset")

    def __init__(self, dataset: Any, first: Any) -> None:
        self.dataset, self._first = dataset, first

    @property
    def __getitems__(self) -> Any:
        """The data set is asked for it as often as torch would ask it; once it has been."""
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
    """The iterator of an iterable data set, for the time torch's fetcher makes one batch of it."""

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
    """Takes the place of torch's fetcher of an iterable data set inside one call of its `fetch`."""

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
        """Torch notes here that there is no more."""
        self._fetcher.ended = value


def install(module: ModuleType, patches: Patches) -> None:
    """Watch the fetchers of `torch.utils.data`, and the workers' loop."""
    for ours in (
        _ItemsTogether.__getitem__,
        _Many.__call__,
        _Stream.__next__,
        _IterableFetcher.collate_fn,
        _log,
    ):
        safely(out_of_sight, ours)
    fetchers: Any = module._utils.fetch
    of_map, of_iterable = fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher

    def around_iterable(original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(self: Any, index: Any) -> Any:
            # A subclass may expect itself.
            return original(_IterableFetcher(self) if type(self) is of_iterable else self, index)

        return fetch

    _watch_fetch(
        of_map, patches, lambda original: around_fetch(original, of_map, _ItemsTogether, ITEM, COLLATE)
    )
    _watch_fetch(of_iterable, patches, around_iterable)

    # Spawned workers find it by its name: their own, or torch's where nothing is watched.
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def worker_loop(dataset_kind: Any, dataset: Any, index_queue: Any, *args: Any, **kwargs: Any) -> Any:
            _task.worker, _task.batch, _task.restarts = True, None, 0
            set_task(None, 0)
            mute_models(True)
            return original(dataset_kind, dataset, _Tasks(index_queue), *args, **kwargs)

        return worker_loop

    patches.around(sys.modules["torch.utils.data._utils.worker"], "_worker_loop", around)


def _watch_fetch(owner: Any, patches: Patches, around: Around) -> None:
    # In a torch whose fetcher needs more than ours has, batches are not looked into.
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
