"""The twin of gan.py."""

import torch
from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import Model, Optimizer, loss_of, start

generator, step_generator = start()
critic = Model(0.03, 0.05)
step_critic = Optimizer(critic.parameters(), 0.03)
with ai.pipeline.train:
    for x, y in fetch.iter(started(DataLoader(Items(), batch_size=1))):
        with forward:
            step_critic.zero_grad()
            fake = torch.nn.functional.pad(generator(x), (0, 7)).detach()
            loss = loss_of(critic(x), y) - 0.01 * critic(fake).mean()
        with backward:
            loss.backward()
        with step:
            step_critic.step()
        with forward:
            step_generator.zero_grad()
            loss = critic(torch.nn.functional.pad(generator(x), (0, 7))).mean()
        with backward:
            loss.backward()
        with step:
            step_generator.step()
print(f"loss {loss.item():.17g}")
