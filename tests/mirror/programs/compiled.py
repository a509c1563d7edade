"""Dynamo: graphs, breaks and guards are the same, and so are the results."""

import torch
import torch._dynamo
from looking import exact, look_at

torch.manual_seed(9)
graphs = []


def backend(graph, inputs):
    graphs.append([n.name for n in graph.graph.nodes])
    return graph.forward


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)).to(torch.float32)).square().mean()


model = Model()
compiled = torch.compile(model, backend=backend)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    optimizer.zero_grad()
    loss = compiled(torch.ones(2, 3))
    loss.backward()
    optimizer.step()
    exact("loss", loss)
print(graphs)
result = torch._dynamo.explain(model)(torch.ones(2, 3))
print(result.graph_count, result.graph_break_count)
eager = torch.compile(lambda x: torch.sin(x).to(torch.float64).sum(), backend="aot_eager", fullgraph=True)
exact("aot", eager(torch.ones(3)))
print(dict(torch._dynamo.utils.counters["stats"]))
look_at("compiled", compiled)
