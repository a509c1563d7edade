"""The code that runs an instrumented graph."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import fx  # noqa: E402

from dftracer import _core  # noqa: E402
from dftracer.python.dynamo import _graphs  # noqa: E402
from dftracer.python.dynamo._description import event_name, is_operation  # noqa: E402


def graph_of(function: Any) -> tuple[fx.GraphModule, dict[fx.Node, _core.Node]]:
    graph = fx.symbolic_trace(function)
    spans = {node: _core.Node(event_name(node), "dynamo") for node in graph.graph.nodes if is_operation(node)}
    return graph, spans


def mixed(x: Any, y: Any) -> Any:
    z = torch.add(x, y)
    w = z.view(-1)
    a, b = torch.max(z, dim=0)
    return w[0] * 2, a, b, {"semicolon;  in a string": torch.relu(w)}


def test_the_generated_code_has_a_span_around_each_operation_and_nothing_else() -> None:
    graph, spans = graph_of(mixed)
    assert _graphs._generated(graph, spans, None) is not None
    assert graph.code.count("with _dftracer_span_") == len(spans)


def test_generated_and_interpreted_code_give_what_the_function_gives() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    expected = mixed(x, y)
    graph, spans = graph_of(mixed)
    generated = _graphs._generated(graph, spans, None)
    assert generated is not None
    graph, spans = graph_of(mixed)
    interpreted = _graphs._boxed(_graphs._TracingInterpreter(graph, spans, None).run)
    for run in (generated, interpreted):
        found = run([x, y])
        assert all(torch.equal(a, b) for a, b in zip(found[:3], expected[:3], strict=True))
        assert torch.equal(*(result[3]["semicolon;  in a string"] for result in (found, expected)))


def test_waiting_by_a_function_of_torch() -> None:
    graph, spans = graph_of(lambda x: torch.relu(x + 1))
    run = _graphs._generated(graph, spans, torch.get_num_threads)
    assert run is not None
    assert torch.equal(run([torch.ones(2)]), torch.full((2,), 2.0))


def test_inputs_are_released_while_the_graph_runs() -> None:
    graph, spans = graph_of(lambda x: torch.relu(x + 1))
    run = _graphs._generated(graph, spans, None)
    assert run is not None
    inputs = [torch.ones(2)]
    run(inputs)
    assert inputs == []


def test_waiting_for_the_device_happens_inside_each_span() -> None:
    calls: list[int] = []
    graph, spans = graph_of(mixed)
    run = _graphs.instrument(graph, spans, lambda: calls.append(1))
    run([torch.randn(3, 4), torch.randn(3, 4)])
    assert len(calls) == len(spans)
