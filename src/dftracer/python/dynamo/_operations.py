"""Each operation of a graph as an event: AOTAutograd's forward and backward graphs, run as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dftracer import _core
from dftracer.python.dynamo._compile_events import compile_events
from dftracer.python.dynamo._description import (
    GradRegions,
    describe,
    event_name,
    forward_names,
    is_operation,
)
from dftracer.python.dynamo._instrument import instrument, instrument_in_place

__all__ = ["compile_by_operation", "run_by_operation", "time_operations"]


def compile_by_operation(
    graph_module: Any, example_inputs: Any, number: int, root: _core.Node, synchronize: bool
) -> Callable[..., Any]:
    """The graph with an event around each operation; results and gradients are those of eager execution."""
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 - slow to import

    traced = _tracing(graph_module, number, root, synchronize)
    forwards: dict[int, str] = {}

    def forward(graph: Any, inputs: Any) -> Callable[..., Any]:
        forwards.update(forward_names(graph.graph.nodes))
        return traced(graph, "forward", forwards)

    def backward(graph: Any, inputs: Any) -> Callable[..., Any]:
        return traced(graph, "backward", forwards)

    # The default partitioner keeps every value the backward needs, as eager does; nothing is computed twice
    # unless the program asks for it (checkpoint).
    compiler = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=forward,
        keep_inference_input_mutations=True,
    )
    return compiler(graph_module, example_inputs)  # type: ignore[no-any-return]


def run_by_operation(
    graph_module: Any, number: int, root: _core.Node, synchronize: bool
) -> Callable[..., Any]:
    """The graph as the program wrote it, with an event around each operation; gradients are the program's."""
    boxed = _tracing(graph_module, number, root, synchronize)(graph_module, "forward", {})
    return lambda *inputs: boxed(list(inputs))


def time_operations(graph_module: Any, number: int, root: _core.Node) -> None:
    """From now on the graph module writes an event for each operation when it is called."""
    grad = GradRegions(graph_module, torch.is_grad_enabled())
    instrument_in_place(graph_module, _spans(graph_module, "forward", grad, number, root, {}))


def _tracing(
    graph_module: Any, number: int, root: _core.Node, synchronize: bool
) -> Callable[[Any, str, dict[int, str]], Callable[..., Any]]:
    grad = GradRegions(graph_module, torch.is_grad_enabled())
    wait = torch.cuda.synchronize if synchronize and torch.cuda.is_available() else None

    def traced(graph: Any, phase: str, forwards: dict[int, str]) -> Callable[..., Any]:
        spans = _spans(graph, phase, grad, number, root, forwards)
        return compile_events.then_collect(instrument(graph, spans, wait))

    return traced


def _spans(
    graph: Any, phase: str, grad: GradRegions, number: int, root: _core.Node, forwards: dict[int, str]
) -> dict[Any, _core.Node]:
    spans: dict[Any, _core.Node] = {}
    for node in graph.graph.nodes:
        if is_operation(node):
            enabled = grad.at(node) if phase == "forward" else 0
            span = _core.Node(event_name(node), "dynamo", root)
            span.set_args(describe(node, phase, enabled, number, forwards))
            spans[node] = span
    return spans
