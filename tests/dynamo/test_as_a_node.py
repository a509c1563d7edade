"""`Dynamo` is a node like the others, and its calls take what programs give them."""

from __future__ import annotations

from typing import Any

import pytest

MODEL = """
import torch
from dftracer.python import DFTracerAI, Dynamo, create_backend, dftracer, dynamo
log = dftracer.initialize_log(None, None, -1)
def f(x, w):
    return torch.nn.functional.relu(x @ w).sum()
x, w = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
"""


def test_context_and_decorator(run_program: Any) -> None:
    """`with dynamo`, `@dynamo` and the same of a named one are events; nothing is compiled for them."""
    run = run_program(
        """
        import sys
        from dftracer.python import DFTracerAI, Dynamo, dftracer, dynamo
        log = dftracer.initialize_log(None, None, -1)
        tracer = Dynamo(name="resnet", epoch=3)
        assert isinstance(dynamo, DFTracerAI) and isinstance(tracer, DFTracerAI)
        with dynamo:
            pass
        @tracer
        def f(x):
            return x
        assert f(1) == 1
        with tracer.derive("load"):
            pass
        tracer.disable()
        f(1)
        assert "torch" not in sys.modules
        log.finalize()
        """,
        fresh=True,
    )
    assert [(e["name"], e["args"].get("epoch")) for e in run.of("dynamo")] == [
        ("dynamo", None),
        ("resnet", 3),
        ("resnet.load", 3),
    ]


@pytest.mark.parametrize(
    "compiled",
    [
        "dynamo.compile(f, autograd=False)",
        "dynamo.compile(autograd=False)(f)",
        "torch.compile(f, backend=create_backend('m', 1, 2, autograd=False))",
        "Dynamo('m', autograd=False).compile(f)",
    ],
)
def test_without_autograd(run_program: Any, compiled: str) -> None:
    """Only the operations of the forward graph, as written; results and gradients are eager's."""
    run = run_program(
        MODEL
        + f"""
{compiled}(x, w).backward()
found, w.grad = w.grad, None
f(x, w).backward()
assert torch.equal(found, w.grad)
log.finalize()
"""
    )
    operations = [e for e in run.of("dynamo") if "op_type" in e["args"]]
    assert {e["args"]["phase"] for e in operations} == {"forward"}
    assert [e["name"] for e in operations] == ["function.matmul", "function.relu", "method.sum"]


def test_backend_with_args(run_program: Any) -> None:
    """`create_backend` takes the args of its events; `enable=False` traces nothing."""
    run = run_program(
        MODEL
        + """
torch.compile(f, backend=create_backend("unet", 1, 2, image_idx=3, image_size=4))(x, w).backward()
torch._dynamo.reset()
assert torch.compile(f, backend=create_backend("off", enable=False))(x, w) == f(x, w)
log.finalize()
"""
    )
    operations = [e for e in run.of("dynamo") if "op_type" in e["args"]]
    assert {e["args"]["phase"] for e in operations} == {"forward", "backward"}
    wanted = {"model": "unet", "epoch": 1, "step": 2, "image_idx": 3, "image_size": 4}
    assert all(e["args"][k] == v for e in operations for k, v in wanted.items())


def test_function_by_keyword(run_program: Any) -> None:
    """`compile(f_py=f)` is `compile(f)`, on and off."""
    run_program(MODEL + "assert dynamo.compile(f_py=f)(x, w) == f(x, w)\nlog.finalize()\n")
    run_program(MODEL + "assert dynamo.compile(f_py=f) is f\n", enable=False)


def test_names_of_graph_nodes(run_program: Any) -> None:
    """`create_detailed_op_name` gives the name that the node's event has."""
    run_program(
        """
        import torch
        from dftracer.python.dynamo import CallStackRecord, create_detailed_op_name
        graph = torch.fx.symbolic_trace(lambda x: torch.relu(x).view(-1))
        names = [create_detailed_op_name(n, graph) for n in graph.graph.nodes]
        assert names == ["x", "function.relu", "method.view", "output"], names
        assert CallStackRecord("a", "b", "c", 1, True).grad_enabled
        """
    )
