"""Accelerate: prepared model, optimizer and loader, accumulation."""

import accelerate
from parts import Items, loss_of, start
from torch.utils.data import DataLoader

accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer = start()
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Items(), batch_size=1))
for x, y in loader:
    with accelerator.accumulate(model):
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
print(f"loss {loss.item():.17g}")
