"""What the programs are made of: a model, an optimizer and data sets whose time is known: it is slept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

FETCH, FORWARD, BACKWARD, STEP = 0.03, 0.06, 0.04, 0.02  # seconds of a step, unless a program says otherwise
STEPS = 12

torch.set_num_threads(1)


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, forward: Any, backward: Any) -> Any:
        ctx.backward_s = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Model(nn.Module):
    """One layer, and time."""

    def __init__(self, forward: float = FORWARD, backward: float = BACKWARD) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.seconds = forward, backward

    def forward(self, x: Any) -> Any:
        return _Slept.apply(self.layer(x), *self.seconds)


class Optimizer(torch.optim.SGD):
    """SGD, and time."""

    def __init__(self, parameters: Any, seconds: float = STEP) -> None:
        super().__init__(parameters, lr=0.01)
        self.seconds = seconds

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        time.sleep(self.seconds)
        super().step()
        return loss


class Items(Dataset):
    """An item takes its time."""

    def __init__(self, n: int = STEPS, seconds: float = FETCH) -> None:
        self.n, self.seconds = n, seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        x = torch.full((8,), float(index % 5))
        return x, x.sum()[None]


class Stream(IterableDataset):
    """The same without an index."""

    def __init__(self, n: int = STEPS, seconds: float = FETCH) -> None:
        self.n, self.seconds = n, seconds

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = torch.utils.data.get_worker_info()
        at, of = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(at, self.n, of):
            yield Items(self.n, self.seconds)[index]


def loss_of(y: Any, target: Any) -> Any:
    return nn.functional.mse_loss(y, target)


def start() -> Any:
    """The same numbers in every run."""
    torch.manual_seed(0)
    model = Model()
    return model, Optimizer(model.parameters())
