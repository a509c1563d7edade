"""Training in threads, each with its own model; what threads there are, and what is in them."""

import threading

import torch
from looking import exact, look_at

torch.manual_seed(1)
torch.set_num_threads(1)
losses = {}
local = threading.local()


def train(n):
    local.n = n
    generator = torch.Generator().manual_seed(n)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    for p in model.parameters():
        torch.nn.init.uniform_(p, -0.5, 0.5, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    out = []
    for _ in range(10):
        loss = model(torch.rand(16, 4, generator=generator)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    losses[n] = out
    assert local.n == n


all_threads = [threading.Thread(target=train, args=(n,), name=f"trainer {n}") for n in range(4)]
for t in all_threads:
    t.start()
print(sorted(t.name for t in threading.enumerate() if t.name.startswith(("trainer", "Main"))))
for t in all_threads:
    t.join()
for n in sorted(losses):
    exact(f"losses {n}", *losses[n])
print(threading.active_count(), threading.gettrace(), threading.getprofile())
print(sorted(t.name for t in threading.enumerate()))
look_at("thread", all_threads[0])
