"""Decorated code stays compilable: `torch.compile(fullgraph=True)` goes through."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_fullgraph_through_decorated_functions(traced: Callable[..., Run]) -> None:
    """Inside a graph a decorated function is traced through; at its boundary it is an event."""
    run = traced(
        """
        import torch
        @ai.compute.forward
        def inner(x): return torch.relu(x) + 1
        @ai.compute.backward(args={"k": 1})
        def inner2(x): return x * 2
        @dft_fn("c").log
        def inner3(x, step=0): return x - 1
        def outer(x): return inner3(inner2(inner(x)), step=3)
        x = torch.arange(4.0) - 2
        compiled = torch.compile(outer, fullgraph=True, backend="eager")
        for _ in range(3):
            assert torch.equal(compiled(x), outer(x))
        """,
        timeout=300,
    )
    assert run.stderr == ""


def test_compile_a_decorated_function_itself(traced: Callable[..., Run]) -> None:
    """The decorated function given to `torch.compile` runs compiled, without a break."""
    run = traced(
        """
        import torch
        from torch._dynamo.testing import CompileCounter
        counter = CompileCounter()
        @ai.compute.forward
        def f(x): return (x * 2).sum()
        g = torch.compile(f, fullgraph=True, backend=counter)
        for _ in range(3):
            assert g(torch.ones(3)) == 6
        assert counter.frame_count == 1, counter.frame_count
        @ai.compute.step
        @torch.compile(fullgraph=True, backend="eager")
        def h(x): return x + 1
        for _ in range(5): h(torch.ones(2))
        """,
        timeout=300,
    )
    assert len(run.trace.named("step")) == 5, "a decorator outside of the compiled function sees each call"


def test_decorated_module_forward(traced: Callable[..., Run]) -> None:
    """A module whose `forward` is decorated compiles whole and trains."""
    run = traced(
        """
        import torch
        class Net(torch.nn.Module):
            @ai.compute.init
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(4, 2)
            @ai.compute.forward
            def forward(self, x): return self.fc(x).relu()
        net = Net()
        out = net(torch.ones(1, 4))
        compiled = torch.compile(net, fullgraph=True, backend="eager")
        for _ in range(3):
            loss = compiled(torch.ones(1, 4)).sum()
            loss.backward()
        assert torch.equal(out, compiled(torch.ones(1, 4)))
        assert net.fc.weight.grad is not None
        import copy, pickle
        copy.deepcopy(net); pickle.loads(pickle.dumps(net))
        """,
        timeout=300,
    )
    trace = run.trace
    assert len(trace.named("compute.init")) == 1
    assert len(trace.named("forward")) >= 1


def test_context_manager_in_a_compiled_function(traced: Callable[..., Run]) -> None:
    """`with node:` inside compiled code gives the right result."""
    run = traced(
        """
        import torch
        @torch.compile(backend="eager")
        def f(x):
            with ai.compute.forward:
                return x + 1
        for _ in range(3):
            assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
        """,
        timeout=300,
    )
    assert "Error" not in run.stderr


def test_annotated_training_step(traced: Callable[..., Run]) -> None:
    """A real training loop with real modules, optimiser and tensors as arguments."""
    run = traced(
        """
        import torch
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        @ai.compute.forward
        def forward(net, x): return net(x).sum()
        @ai.compute.backward
        def backward(loss): loss.backward()
        for epoch in ai.pipeline.epoch.iter(range(2)):
            for step, x in ai.dataloader.fetch.iter(enumerate(torch.ones(4, 2, 3))):
                ai.update(epoch=epoch, step=torch.tensor(step), args={"loss": torch.tensor(0.5)})
                loss = forward(net, x)
                backward(loss)
                with ai.compute.step:
                    optimizer.step()
        """,
        timeout=300,
    )
    trace = run.trace
    assert len(trace.named("forward")) == len(trace.named("backward")) == len(trace.named("step")) == 8
    assert run.stderr == ""
