"""Decorated code stays compilable: `torch.compile(fullgraph=True)` goes through."""

from __future__ import annotations

import json

import pytest

from support.process import PRELUDE, Run, run_program

pytest.importorskip("torch", reason="PyTorch is not installed")

# One process for all: importing torch costs more than everything below.
PROGRAM = """
import copy, json, pickle, traceback, warnings
warnings.simplefilter("error")
import torch
from torch._dynamo.testing import CompileCounter

@ai.compute.forward
def relu(x): return torch.relu(x) + 1
@ai.compute.backward(args={"k": 1})
def double(x): return x * 2
@dft_fn("c").log
def minus(x, step=0): return x - 1
def outer(x): return minus(double(relu(x)), step=3)

def through_decorated_functions():
    x = torch.arange(4.0) - 2
    compiled = torch.compile(outer, fullgraph=True, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(x), outer(x))

def a_decorated_function_itself():
    counter = CompileCounter()
    @ai.compute.forward
    def f(x): return (x * 2).sum()
    g = torch.compile(f, fullgraph=True, backend=counter)
    for _ in range(3):
        assert g(torch.ones(3)) == 6
    assert counter.frame_count == 1, counter.frame_count

def a_decorator_outside():
    @ai.comm.send
    @torch.compile(fullgraph=True, backend="eager")
    def h(x): return x + 1
    for _ in range(5): h(torch.ones(2))

class Net(torch.nn.Module):
    @ai.compute.init
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
    @ai.comm.receive
    def forward(self, x): return self.fc(x).relu()

def a_decorated_module():
    net = Net()
    out = net(torch.ones(1, 4))
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    for _ in range(3):
        compiled(torch.ones(1, 4)).sum().backward()
    assert torch.equal(out, compiled(torch.ones(1, 4)))
    assert net.fc.weight.grad is not None
    copy.deepcopy(net); pickle.loads(pickle.dumps(net))

def a_block_inside():
    @torch.compile(backend="eager")
    def f(x):
        with ai.compute.forward:
            return x + 1
    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))

def a_training_loop():
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    @ai.data.item
    def forward(net, x): return net(x).sum()
    @ai.data.preprocess
    def backward(loss): loss.backward()
    for epoch in ai.pipeline.epoch.iter(range(2)):
        for step, x in ai.dataloader.fetch.iter(enumerate(torch.ones(4, 2, 3))):
            ai.update(epoch=epoch, step=torch.tensor(step), args={"loss": torch.tensor(0.5)})
            backward(forward(net, x))
            with ai.compute.step:
                optimizer.step()

results = {}
for part in (through_decorated_functions, a_decorated_function_itself, a_decorator_outside,
             a_decorated_module, a_block_inside, a_training_loop):
    try:
        part()
        results[part.__name__] = ""
    except Exception:
        results[part.__name__] = traceback.format_exc()
print(json.dumps(results))
"""

PARTS = [
    "through_decorated_functions",
    "a_decorated_function_itself",
    "a_decorator_outside",
    "a_decorated_module",
    "a_block_inside",
    "a_training_loop",
]


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The program above, run once."""
    return run_program(tmp_path_factory.mktemp("torch"), PROGRAM, prelude=PRELUDE, forked=True)


@pytest.mark.parametrize("part", PARTS)
def test_compiles_whole_and_right(part: str, torch_run: Run) -> None:
    """No graph break, no warning, the results of the undecorated code."""
    assert json.loads(torch_run.stdout.splitlines()[-1])[part] == ""


def test_events_at_the_boundary(torch_run: Run) -> None:
    """Calls from plain Python are events, whatever the callee is."""
    trace = torch_run.trace
    assert len(trace.named("send")) == 5, "a decorator outside of a compiled function sees each call"
    assert len(trace.named("compute.init")) == 1
    assert len(trace.named("receive")) >= 1
    assert len(trace.named("item")) == len(trace.named("preprocess")) == len(trace.named("step")) == 8
    assert torch_run.stderr == ""
