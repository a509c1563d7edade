"""A model compiled in one graph, in a step that is not."""

import torch
from parts import Items, Model, Optimizer, loss_of
from torch.utils.data import DataLoader

torch.manual_seed(0)
inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
outer = Model()
compiled = torch.compile(inner, backend="aot_eager", fullgraph=True)
optimizer = Optimizer([*inner.parameters(), *outer.parameters()])
compiled(torch.zeros(1, 8))
for x, y in DataLoader(Items(), batch_size=1):
    optimizer.zero_grad()
    loss = loss_of(outer(compiled(x.to(torch.float32))), y)
    loss.backward()
    optimizer.step()
counters = torch._dynamo.utils.counters
print(f"loss {loss.item():.17g} graphs {counters['stats']['unique_graphs']} {dict(counters['graph_break'])}")
