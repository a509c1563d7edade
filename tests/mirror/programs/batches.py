"""Batches of the user's own types: nobody but the program reads them."""

from collections import UserDict, namedtuple

import torch
from looking import exact, look_at
from torch.utils.data import DataLoader

COUNT = {}


def counted(name):
    COUNT[name] = COUNT.get(name, 0) + 1


class Batch:
    def __init__(self, items):
        self.items = torch.stack(items)

    @property
    def data(self):
        counted("data")
        return self.items

    @property
    def shape(self):
        raise SystemExit("nobody asked for the shape")

    def values(self):
        counted("values")
        return [self.items]

    def __len__(self):
        counted("len")
        return len(self.items)

    def __getitem__(self, i):
        counted("getitem")
        return self.items[i]

    def __iter__(self):
        counted("iter")
        return iter(self.items)

    def to(self, device):
        counted("to")
        return self

    def pin_memory(self):
        counted("pin")
        return self


class Mapped(UserDict):
    def __getitem__(self, key):
        counted("mapped")
        return super().__getitem__(key)

    def __len__(self):
        counted("mapped len")
        return super().__len__()


class List(list):
    def __getitem__(self, i):
        counted("list getitem")
        return super().__getitem__(i)

    def __len__(self):
        counted("list len")
        return super().__len__()

    def __iter__(self):
        counted("list iter")
        return super().__iter__()


Pair = namedtuple("Pair", "x y")
data = [torch.arange(4.0) + i for i in range(24)]
makers = (
    Batch,
    lambda items: Mapped(x=torch.stack(items)),
    lambda items: List([torch.stack(items)]),
    lambda items: Pair(torch.stack(items), None),
)
for make in makers:
    for workers in (0, 1):
        for batch in DataLoader(data, batch_size=6, collate_fn=make, num_workers=workers):
            x = batch.__dict__.get("items") if isinstance(batch, Batch) else None
            if x is not None:
                exact("sum", x.sum())
        look_at("batch", batch)
print(sorted(COUNT.items()))
