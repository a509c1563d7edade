"""Mixed precision with a gradient scaler, which skips the third step."""

import torch
from parts import Items, loss_of, start
from torch.utils.data import DataLoader

model, optimizer = start()
scaler = torch.amp.GradScaler("cpu")
for i, (x, y) in enumerate(DataLoader(Items(), batch_size=1)):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model(x), y)
    scaler.scale(loss * float("inf") if i == 2 else loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(f"loss {loss.item():.17g} scale {scaler.get_scale()}")
