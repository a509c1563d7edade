"""The twin of compiled.py."""

import torch
from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import Model, Optimizer, loss_of

torch.manual_seed(0)
inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
outer = Model()
compiled = torch.compile(inner, backend="aot_eager", fullgraph=True)
optimizer = Optimizer([*inner.parameters(), *outer.parameters()])
compiled(torch.zeros(1, 8))
with ai.pipeline.train:
    for x, y in fetch.iter(started(DataLoader(Items(), batch_size=1))):
        with forward:
            optimizer.zero_grad()
            loss = loss_of(outer(compiled(x.to(torch.float32))), y)
        with backward:
            loss.backward()
        with step:
            optimizer.step()
counters = torch._dynamo.utils.counters
print(f"loss {loss.item():.17g} graphs {counters['stats']['unique_graphs']} {dict(counters['graph_break'])}")
