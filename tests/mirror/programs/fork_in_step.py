"""A child made in the middle of a step, which trains on."""

import os
import sys

import torch
from looking import exact

torch.manual_seed(2)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(6):
    x = torch.randn(8, 4)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step == 3:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            optimizer.step()
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                exact("child", loss)
                sys.stdout.flush()
                optimizer.step()
            os._exit(11)
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    optimizer.step()
    exact("parent", loss)
sys.exit(5)
