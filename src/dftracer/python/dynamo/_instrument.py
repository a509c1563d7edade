"""Python code of a graph with a `with` around each operation.

Running a graph through `fx.Interpreter` costs microseconds per operation. The code that fx generates for a
graph costs nothing; a `with span:` in front of a line costs the span alone, and closes it when the
operation raises.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from dftracer import _core

__all__ = ["instrument", "instrument_in_place"]

_SPAN = "_dftracer_span_"
_WAIT = "_dftracer_wait"
_ASSIGNMENT = re.compile(r"^(\w+)(?: : [^=]+)? = ")


def instrument(
    graph_module: fx.GraphModule, spans: Mapping[fx.Node, _core.Node], wait: Callable[[], Any] | None
) -> Callable[..., Any]:
    """A boxed callable (it takes one list of inputs and empties it) that runs the graph."""
    run = _generated(graph_module, spans, wait)
    if run is None:
        # This torch generates unexpected code: slower, but never without events.
        interpreter = _TracingInterpreter(graph_module, spans, wait)
        run = _boxed(interpreter.run)
    return run


def instrument_in_place(graph_module: fx.GraphModule, spans: Mapping[fx.Node, _core.Node]) -> None:
    """The graph module itself writes the events when it is called, with the inputs it always had."""
    if not _with_spans(graph_module, spans, None):
        graph_module.forward = _TracingInterpreter(graph_module, spans, None).run


def _boxed(function: Callable[..., Any]) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func  # noqa: PLC0415 - slow to import

    return make_boxed_func(function)  # type: ignore[no-any-return]


def _generated(
    graph_module: fx.GraphModule, spans: Mapping[fx.Node, _core.Node], wait: Callable[[], Any] | None
) -> Callable[..., Any] | None:
    boxed_codegen = getattr(fx.graph, "_BoxedCodeGen", None)
    graph_module.graph.set_codegen(boxed_codegen() if boxed_codegen is not None else fx.graph.CodeGen())
    if not _with_spans(graph_module, spans, wait):
        return None
    return graph_module.forward if boxed_codegen is not None else _boxed(graph_module.forward)


def _with_spans(
    graph_module: fx.GraphModule, spans: Mapping[fx.Node, _core.Node], wait: Callable[[], Any] | None
) -> bool:
    """Whether the code that fx generates now has a span around every operation."""
    names = {node.name: span for node, span in spans.items()}
    used: dict[str, _core.Node] = {}

    def transform(body: list[str]) -> list[str]:
        lines = "".join(body).split("\n")
        return ["\n".join(_with_span(line, names, used, wait is not None) for line in lines)]

    codegen = graph_module.graph._codegen
    previous = codegen.additional_globals

    def additional_globals() -> list[tuple[str, Any]]:
        extra: list[tuple[str, Any]] = list(used.items())
        if wait is not None:
            # fx writes a function of torch's by its qualified name instead of giving it ours.
            extra.append((_WAIT, functools.partial(wait)))
        return [*previous(), *extra]

    codegen.additional_globals = additional_globals
    graph_module.graph.on_generate_code(lambda _: transform)
    try:
        graph_module.recompile()
        # Some graph modules generate their code only when it is accessed.
        _ = graph_module.code
    except SyntaxError:
        used.clear()
    if len(used) != len(spans):
        graph_module.graph.set_codegen(fx.graph.CodeGen())
        graph_module.recompile()
        return False
    return True


def _with_span(line: str, names: Mapping[str, _core.Node], used: dict[str, _core.Node], wait: bool) -> str:
    match = _ASSIGNMENT.match(line)
    if match is None or match[1] not in names or _SPAN + match[1] in used:
        return line
    used[_SPAN + match[1]] = names[match[1]]
    operation, separator, releases = line.partition(";  ")
    if wait:
        operation += f"; {_WAIT}()"
    # Releasing the inputs may free memory: that time belongs to no operation.
    return f"with {_SPAN}{match[1]}: {operation}" + (f"\n{releases}" if separator else "")


class _TracingInterpreter(fx.Interpreter):  # type: ignore[misc]
    def __init__(
        self,
        graph_module: fx.GraphModule,
        spans: Mapping[fx.Node, _core.Node],
        wait: Callable[[], Any] | None,
    ) -> None:
        super().__init__(graph_module)
        self._spans = spans
        self._wait = wait

    def run_node(self, n: torch.fx.Node) -> Any:
        span = self._spans.get(n)
        if span is None:
            return super().run_node(n)
        with span:
            result = super().run_node(n)
            if self._wait is not None:
                self._wait()
            return result
