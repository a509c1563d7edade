"""Runs each model traced and untraced, and prints which results and gradients are equal bit by bit.

Untraced means eagerly, but for models of which torch itself, compiling, splits an operation.
"""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from dftracer.python import dftracer, dftracer_dynamo_backend, dynamo

Step = Callable[[Any], list[torch.Tensor]]


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 15 * 15, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(x.flatten(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[1], 8)
        for moment in x:
            state = self.cell(moment, state)
        return state


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.fc(x)
        y.mul_(2).add_(self.calls)
        y[0].zero_()
        return torch.relu_(y)


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.fc(x), 0.3, self.training) + torch.rand(64)


class NoGradInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        with torch.no_grad():
            scale = y.abs().mean()
        return y / scale


class Checkpoint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)


class GraphBreaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        torch._dynamo.graph_break()
        if y.sum().item() > 0:
            y = y * 2
        return self.second(y)


def inputs_of(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape) for shape in shapes]


def train(
    model: nn.Module, call: Any, inputs: list[torch.Tensor], context: Any = contextlib.nullcontext
) -> list[Any]:
    """Three kinds of facts: outputs, gradients and buffers."""
    torch.manual_seed(7)
    facts: list[Any] = []
    for one in inputs:
        x = one.clone().requires_grad_()
        with context():
            out = call(x)
            loss = out.float().square().mean()
        if loss.requires_grad:
            loss.backward()
            facts.append(x.grad)
        facts.append(out.detach())
    facts += [parameter.grad for parameter in model.parameters()]
    facts += [buffer.clone() for buffer in model.buffers()]
    return facts


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(left, right, strict=True)
    )


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def run_ddp(model: nn.Module, inputs: list[torch.Tensor], compiled: bool) -> list[Any]:
    wrapped = nn.parallel.DistributedDataParallel(model)
    call = dynamo.compile(wrapped) if compiled else wrapped
    return train(model, call, inputs)


CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[int, ...]], dict[str, Any], Any]] = {
    "conv": (Conv, [(2, 3, 32, 32)] * 3, {}, contextlib.nullcontext),
    "attention": (Attention, [(2, 6, 16)] * 2, {}, contextlib.nullcontext),
    "rnn": (Rnn, [(5, 2, 8)] * 2, {}, contextlib.nullcontext),
    "dynamic shapes": (
        Attention,
        [(2, 6, 16), (3, 7, 16), (4, 9, 16)],
        {"dynamic": True},
        contextlib.nullcontext,
    ),
    "recompiles": (NoGradInside, [(2, 8), (3, 8), (5, 8)], {"dynamic": False}, contextlib.nullcontext),
    "in-place": (InPlace, [(4, 8)] * 3, {}, contextlib.nullcontext),
    "dropout": (Dropout, [(4, 8)] * 2, {}, contextlib.nullcontext),
    "no_grad": (Conv, [(2, 3, 32, 32)] * 2, {}, torch.no_grad),
    "no_grad inside": (NoGradInside, [(4, 8)] * 2, {"fullgraph": True}, contextlib.nullcontext),
    "autocast": (Attention, [(2, 6, 16)] * 2, {}, autocast),
    "checkpoint": (Checkpoint, [(4, 8)] * 2, {}, contextlib.nullcontext),
    "graph breaks": (GraphBreaks, [(4, 8)] * 2, {}, contextlib.nullcontext),
}


# Eager torch runs a GRU cell as one kernel, AOTAutograd as its parts: on some CPUs the last bits differ.
SPLIT_BY_TORCH = {"rnn"}


def untraced(name: str, model: nn.Module) -> Any:
    return torch.compile(model, backend="aot_eager") if name in SPLIT_BY_TORCH else model


def main() -> None:
    log = dftracer.initialize_log("numerics.pfw", None, -1)
    results: dict[str, Any] = {}
    for name, (kind, shapes, options, context) in CASES.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        eager = kind()
        ours = copy.deepcopy(eager)
        inputs = inputs_of(*shapes)
        expected = train(eager, untraced(name, eager), inputs, context)
        torch._dynamo.reset()
        found = train(ours, dynamo.compile(ours, **options), inputs, context)
        results[name] = same(expected, found)

    torch._dynamo.reset()
    first, second = Conv(), NoGradInside()
    pair = [copy.deepcopy(first), copy.deepcopy(second)]
    expected = train(first, first, inputs_of((2, 3, 32, 32))) + train(second, second, inputs_of((4, 8)))
    compiled = [torch.compile(one, backend=dftracer_dynamo_backend) for one in pair]
    found = train(pair[0], compiled[0], inputs_of((2, 3, 32, 32)))
    results["several graphs"] = same(expected, found + train(pair[1], compiled[1], inputs_of((4, 8))))

    torch._dynamo.reset()
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    eager = Conv()
    ours = copy.deepcopy(eager)
    inputs = inputs_of((2, 3, 32, 32), (2, 3, 32, 32))
    results["DDP"] = same(run_ddp(eager, inputs, False), run_ddp(ours, inputs, True))
    torch.distributed.destroy_process_group()

    log.finalize()
    sys.stdout.write("\n" + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
