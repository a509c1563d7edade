"""The twin of amp.py."""

import torch
from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start

model, optimizer = start()
scaler = torch.amp.GradScaler("cpu")
with ai.pipeline.train:
    for i, (x, y) in fetch.iter(enumerate(started(DataLoader(Items(), batch_size=1)))):
        with forward, torch.autocast("cpu", torch.bfloat16):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
        with backward:
            scaler.scale(loss * float("inf") if i == 2 else loss).backward()
        with step:
            scaler.step(optimizer)
            scaler.update()
print(f"loss {loss.item():.17g} scale {scaler.get_scale()}")
