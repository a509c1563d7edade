"""How a program ends: an exception in a step, with what was registered for the end."""

import atexit
import sys

import torch
from looking import exact

atexit.register(print, "registered first")
atexit.register(print, "registered last")


def hook(kind, value, trace):
    names = []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    print("hook", kind.__name__, value, [n for n in names if n in ("<module>", "forward", "train")])


sys.excepthook = hook


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.steps = torch.nn.Linear(2, 1), 0

    def forward(self, x):
        self.steps += 1
        if self.steps == 4:
            raise RuntimeError("out of luck")
        return self.inner(x)


def train():
    torch.manual_seed(4)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        loss = model(torch.ones(2, 2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        exact("loss", loss)


train()
