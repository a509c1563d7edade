"""Two networks, each with its optimizer, in one loop."""

import torch
from parts import Items, Model, Optimizer, loss_of, start
from torch.utils.data import DataLoader

generator, step_generator = start()
critic = Model(0.03, 0.05)
step_critic = Optimizer(critic.parameters(), 0.03)
for x, y in DataLoader(Items(), batch_size=1):
    step_critic.zero_grad()
    fake = torch.nn.functional.pad(generator(x), (0, 7)).detach()
    loss = loss_of(critic(x), y) - 0.01 * critic(fake).mean()
    loss.backward()
    step_critic.step()
    step_generator.zero_grad()
    loss = critic(torch.nn.functional.pad(generator(x), (0, 7))).mean()
    loss.backward()
    step_generator.step()
print(f"loss {loss.item():.17g}")
