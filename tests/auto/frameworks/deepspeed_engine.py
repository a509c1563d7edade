"""DeepSpeed's own loader, repeated, with evaluation between; then accumulation by the program itself."""

import os
import sys
import warnings

import deepspeed
import torch
import torch.distributed as dist
from parts import Items, Model, Optimizer, loss_of
from torch.utils.data import DataLoader

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes
warnings.simplefilter("ignore", FutureWarning)  # torch's, about calls that DeepSpeed makes
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "steps_per_print": None}


def engine_of(stage: int, batches: int, **more):
    torch.manual_seed(0)
    model = Model(0.0, 0.0)
    config = {
        **CONFIG,
        "gradient_accumulation_steps": batches,
        "zero_optimization": {"stage": stage, "sub_group_size": 4},
        **more,
    }
    data = torch.utils.data.TensorDataset(torch.arange(8.0).repeat(8, 1), torch.ones(8, 1))
    return deepspeed.initialize(
        model=model, optimizer=Optimizer(model.parameters(), 0.0), config=config, training_data=data
    )


def pieces():
    owner = deepspeed.DeepSpeedEngine
    return owner.__init__, owner.backward, owner.step


os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)

# Two epochs of four steps of two batches; three items are evaluated after each.
engine, _, loader, _ = engine_of(3, 2)
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
engine, _, loader, _ = engine_of(3, 1, managed_gradient_accumulation=False)
for at, (x, y) in enumerate(loader):
    loss = loss_of(engine(x), y)
    engine.backward(loss * float("inf") if at == 2 else loss)
    if at % 2:
        engine.step()
print(f"loss {loss.item():.17g} after {engine.global_steps}, {engine.skipped_steps} skipped")

if "dftracer.auto._switch" in sys.modules:
    from dftracer import auto

    patched = pieces()
    auto.uninstall()
    assert all(ours.__wrapped__ is theirs for ours, theirs in zip(patched, pieces(), strict=True))
