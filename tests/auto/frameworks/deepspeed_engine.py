"""DeepSpeed's own loader, repeated, with evaluation between; then accumulation by the program itself."""

import os
import sys
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from parts import Items, Model, Optimizer, loss_of
from torch.utils.data import DataLoader, TensorDataset
from zero_engine import engine_of


def made(batches: int, **more: Any) -> Any:
    torch.manual_seed(0)
    model = Model(0.0, 0.0)
    data = TensorDataset(torch.arange(8.0).repeat(8, 1), torch.ones(8, 1))
    return engine_of(3, batches, model, Optimizer(model.parameters(), 0.0), data, **more)


def pieces() -> tuple[Any, Any, Any]:
    owner = deepspeed.DeepSpeedEngine
    return owner.__init__, owner.backward, owner.step


os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)

# Two epochs of four steps of two batches; three items are evaluated after each.
engine, loader = made(2)
batches = iter(deepspeed.utils.RepeatingLoader(loader))
for _ in range(2):
    for _ in range(8):
        x, y = next(batches)
        loss = loss_of(engine(x), y)
        engine.backward(loss)
        engine.step()
    with torch.no_grad():
        for x, y in DataLoader(Items(3, 0.0)):
            loss_of(engine(x), y)
print(f"loss {loss.item():.17g} after {engine.global_steps}")

# The program itself says when its two batches are a step; the second one has no finite gradients.
engine, loader = made(1, managed_gradient_accumulation=False)
for at, (x, y) in enumerate(loader):
    loss = loss_of(engine(x), y)
    engine.backward(loss * float("inf") if at == 2 else loss)
    if at % 2:
        engine.step()
print(f"loss {loss.item():.17g} after {engine.global_steps}, {engine.skipped_steps} skipped")

if "dftracer.auto" in sys.modules:
    from dftracer import auto

    observed = pieces()
    codes = [piece.__code__ for piece in observed]
    auto.uninstall()
    for piece, now, code in zip(observed, pieces(), codes, strict=True):
        assert now is piece  # a function that is observed stays the object it is
        assert now.__code__ is not code
