"""torch.export, scripting and tracing: the programs they make are the same."""

import torch
from looking import exact, look_at

torch.manual_seed(10)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2)

    def forward(self, x):
        return torch.relu(self.inner(x)).to(torch.float64).sum()


model = Model()
program = torch.export.export(model, (torch.ones(2, 3),))
print(program.graph)
exact("exported", program.module()(torch.ones(2, 3)))
torch.export.save(program, "program.pt2")
exact("loaded", torch.export.load("program.pt2").module()(torch.ones(2, 3)))
traced = torch.jit.trace(model, torch.ones(2, 3))
print(traced.code)
exact("traced", traced(torch.ones(2, 3)))


@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64) * 2


print(scripted.code)
symbolic = torch.fx.symbolic_trace(model)
print(symbolic.code)
look_at("program", program)
