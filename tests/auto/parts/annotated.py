"""The parts, annotated by hand."""

from typing import Any

import parts
from torch.utils.data import DataLoader

from dftracer.python import ai, dftracer

__all__ = ["DataLoader", "Items", "Stream", "ai", "backward", "fetch", "forward", "log", "started", "step"]

log = dftracer.initialize_log()
fetch, forward, backward, step = ai.dataloader.fetch, ai.compute.forward, ai.compute.backward, ai.compute.step


class Items(parts.Items):
    """With the event of an item."""

    @ai.data.item
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)


class Stream(parts.Stream):
    """With the event of an item, as an iterator can have it."""

    def __iter__(self) -> Any:
        items = super().__iter__()
        while True:
            with ai.data.item:
                item = next(items, None)
            if item is None:
                return
            yield item


def started(loader: Any) -> Any:
    """So that the loader's start, `iter(loader)`, lies in the first wait."""
    yield from loader
