"""Making batches, in a loader's workers or in the main process: items, transforms, collation.

The data set itself is not changed: the fetcher that torch makes around it is given a stand-in that
measures time. In workers, events carry the task number, by which the main process identifies the
batch.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from dftracer._core import items, mute_models
from dftracer.auto._events import COLLATE, ITEM, PREPROCESS, Word, now
from dftracer.torch.patches import Patches, failed, out_of_sight, safely

__all__ = ["in_worker", "install"]

_TRANSFORMS = ("transform", "target_transform", "transforms")


class _Task:
    """The batch this process is making."""

    def __init__(self) -> None:
        self.batch: int | None = None
        self.restarts = 0
        self.worker = False


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
    """A worker's queue of tasks that remembers the latest."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def get(self, *args: Any, **kwargs: Any) -> Any:
        task = self._queue.get(*args, **kwargs)
        if isinstance(task, tuple):
            _task.batch = task[0]
        elif task is not None:
            _task.restarts += 1
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Items:
    """A data set as its fetcher sees it."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._many = getattr(dataset, "__getitems__", None)

    def __getitem__(self, index: Any) -> Any:
        start = now()
        item = self._dataset[index]
        if isinstance(index, int):
            _log(ITEM, start, "image_idx", index)
        else:
            _log(ITEM, start)
        return item

    def __getitems__(self, indices: Any) -> Any:
        """The items of a batch, as the fetcher itself would get them."""
        if not self._many:
            return items(ITEM, self._dataset, indices, _task.batch, _task.restarts)
        start = now()
        found = self._many(indices)
        _log(ITEM, start, "items", len(indices))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


class _Stream:
    """The iterator of an iterable data set."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        start = now()
        item = next(self._iterator)
        _log(ITEM, start)
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


class _Transform:
    """A transform of the data set that measures time; otherwise it behaves like the original."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        start = now()
        result = self._transform(*args, **kwargs)
        _log(PREPROCESS, start)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transform, name)

    def __reduce__(self) -> Any:
        return _itself, (self._transform,)


def _itself(value: Any) -> Any:
    return value


def _timed_collate(collate: Any) -> Any:
    log = COLLATE.log

    def timed(items: Any) -> Any:
        start = now()
        batch = collate(items)
        if type(items) is list and _task.batch is None:
            log(start, 0, "items", len(items))
        elif isinstance(items, list):
            _log(COLLATE, start, "items", len(items))
        else:
            _log(COLLATE, start)
        return batch

    safely(out_of_sight, timed)
    return timed


def _datasets(dataset: Any) -> list[Any]:
    """The data set and those it draws from (`Subset`)."""
    found: list[Any] = []
    while dataset is not None and len(found) < 8:
        found.append(dataset)
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
    return found


def _swap_transforms(dataset: Any) -> list[tuple[Any, str, Any]]:
    swapped = []
    for each in _datasets(dataset):
        for name in _TRANSFORMS:
            own = vars(each).get(name) if hasattr(each, "__dict__") else None
            if callable(own) and not isinstance(own, _Transform):
                vars(each)[name] = _Transform(own)
                swapped.append((each, name, own))
                if name == "transform":
                    break  # torchvision keeps `transforms` around `transform`
    return swapped


def _swap_back(swapped: list[tuple[Any, str, Any]]) -> None:
    for owner, name, own in swapped:
        if isinstance(vars(owner).get(name), _Transform):
            vars(owner)[name] = own


def install(module: ModuleType, patches: Patches) -> None:
    """Watch the fetchers of `torch.utils.data`, and the workers' loop."""
    for ours in (_Items.__getitem__, _Items.__getitems__, _Stream.__next__, _Transform.__call__, _log):
        safely(out_of_sight, ours)
    kind: Any = module._DatasetKind
    create_original = kind.create_fetcher

    @functools.wraps(create_original)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = create_original(*args, **kwargs)
        safely(_watch, fetcher)
        return fetcher

    patches.replace(kind, "create_fetcher", staticmethod(create_fetcher))

    loop_module: Any = sys.modules["torch.utils.data._utils.worker"]
    loop_original = loop_module._worker_loop

    # Spawned workers find it by its name: their own, or torch's where nothing is watched.
    @functools.wraps(loop_original)
    def worker_loop(dataset_kind: Any, dataset: Any, index_queue: Any, *args: Any, **kwargs: Any) -> Any:
        _task.worker, _task.batch, _task.restarts = True, None, 0
        mute_models(True)
        safely(_swap_transforms, dataset)
        return loop_original(dataset_kind, dataset, _Tasks(index_queue), *args, **kwargs)

    patches.replace(loop_module, "_worker_loop", worker_loop)


def _watch(fetcher: Any) -> None:
    fetcher.collate_fn = _timed_collate(fetcher.collate_fn)
    if hasattr(fetcher, "dataset_iter"):
        fetcher.dataset_iter = _Stream(fetcher.dataset_iter)
    else:
        fetcher.dataset = _Items(fetcher.dataset)
    if in_worker():
        return
    fetch = fetcher.fetch
    dataset = fetcher.dataset._dataset if isinstance(fetcher.dataset, _Items) else fetcher.dataset
    swapped_now = _swap_transforms(dataset)
    _swap_back(swapped_now)
    if not swapped_now:
        return

    # In the program's own process its data set is another's only for as long as a batch is made.
    def fetch_swapped(index: Any) -> Any:
        swapped = safely(_swap_transforms, dataset) or []
        try:
            return fetch(index)
        finally:
            _swap_back(swapped)

    fetcher.fetch = fetch_swapped
