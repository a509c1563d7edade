"""A program that traces itself: settrace, setprofile, and sys.monitoring where there is one."""

import sys
import threading

import torch
from looking import exact

torch.manual_seed(3)
calls = []
mine = __file__


def profile(frame, event, arg):
    if frame.f_code.co_filename == mine:
        calls.append((event, frame.f_code.co_name))


def trace(frame, event, arg):
    if frame.f_code.co_filename == mine:
        calls.append((event, frame.f_code.co_name, frame.f_lineno))
        return trace
    return None


def step(model, optimizer):
    loss = model(torch.ones(4, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


print(sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for install in (sys.setprofile, sys.settrace):
    install(profile if install is sys.setprofile else trace)
    exact("loss", step(model, optimizer))
    install(None)
if hasattr(sys, "monitoring"):
    print([sys.monitoring.get_tool(n) for n in range(6)])
    sys.monitoring.use_tool_id(2, "mine")
    sys.monitoring.register_callback(
        2, sys.monitoring.events.PY_START, lambda code, at: calls.append(code.co_name)
    )
    sys.monitoring.set_local_events(2, step.__code__, sys.monitoring.events.PY_START)
    exact("loss", step(model, optimizer))
    sys.monitoring.free_tool_id(2)
print(calls)
print(sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval())
