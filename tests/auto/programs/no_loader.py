"""Batches out of nowhere, and two optimizers."""

import torch
from parts import STEPS, Model, Optimizer, loss_of, start

model, optimizer = start()
other = Model(0.03, 0.02)
step_other = Optimizer(other.parameters(), 0.03)
for i in range(STEPS):
    x = torch.full((1, 8), float(i % 5))
    for each, stepper in ((model, optimizer), (other, step_other)):
        stepper.zero_grad()
        loss = loss_of(each(x), x.sum()[None, None])
        loss.backward()
        stepper.step()
print(f"loss {loss.item():.17g}")
