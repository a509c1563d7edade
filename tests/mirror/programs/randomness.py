"""The states of all generators: nobody draws from them but the program."""

import os
import random

import numpy
import torch
from looking import exact
from torch.utils.data import DataLoader

random.seed(16)
numpy.random.seed(16)
torch.manual_seed(16)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = [torch.rand(4) for _ in range(16)]
for epoch in range(2):
    for x in DataLoader(data, batch_size=4, shuffle=True, num_workers=epoch):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        exact("loss", loss)
    model.eval()
    with torch.no_grad():
        exact("evaluation", model(torch.ones(1, 4)))
    model.train()
print(hash(torch.get_rng_state().numpy().tobytes()) if os.environ.get("PYTHONHASHSEED") else "")
print(random.random(), numpy.random.rand(), torch.rand(1).item())
print(torch.get_num_threads() > 0, torch.is_grad_enabled(), torch.get_default_dtype(), torch.initial_seed())
