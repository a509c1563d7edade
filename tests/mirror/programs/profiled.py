"""A program that uses torch's profiler itself."""

import json

import torch
from looking import exact
from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(17)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def ready(p):
    print("ready", p.step_num)


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=ready
) as p:
    for _ in range(5):
        with record_function("my step"):
            loss = model(torch.ones(2, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        exact("loss", loss)
        p.step()
names = {e.key for e in p.key_averages()}
print("my step" in names, "aten::addmm" in names)
with profile(activities=[ProfilerActivity.CPU]) as p:
    model(torch.ones(2, 4))
p.export_chrome_trace("own.json")
with open("own.json") as file:
    print(any(e.get("name") == "aten::addmm" for e in json.load(file)["traceEvents"]))
