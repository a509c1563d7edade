"""The twin of no_loader.py."""

import torch
from annotated import ai, backward, fetch, forward, step
from parts import STEPS, Model, Optimizer, loss_of, start

model, optimizer = start()
other = Model(0.03, 0.02)
step_other = Optimizer(other.parameters(), 0.03)
with ai.pipeline.train:
    for i in fetch.iter(range(STEPS)):
        x = torch.full((1, 8), float(i % 5))
        for each, stepper in ((model, optimizer), (other, step_other)):
            with forward:
                stepper.zero_grad()
                loss = loss_of(each(x), x.sum()[None, None])
            with backward:
                loss.backward()
            with step:
                stepper.step()
print(f"loss {loss.item():.17g}")
