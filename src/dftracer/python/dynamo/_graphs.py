"""Compiled graphs as events: each operation of a graph, or the graph as a whole.

Imports torch, so that it is imported only once something is compiled.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import fx

from dftracer import _core, _messages
from dftracer._session import before_finalize
from dftracer.python.dynamo._description import (
    GradRegions,
    describe,
    event_name,
    forward_names,
    is_operation,
)
from dftracer.python.torch import device_lane
from dftracer.torch.compilations import compile_events
from dftracer.torch.device import TorchPool
from dftracer.torch.patches import safely

_CATEGORY = "dynamo"
_T = TypeVar("_T")


# --- Each operation of a graph as an event: AOTAutograd's forward and backward graphs, run as they are


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
            span = _core.Node(event_name(node), _CATEGORY, root)
            span.set_args(describe(node, phase, enabled, number, forwards))
            spans[node] = span
    return spans


# --- Python code of a graph with a `with` around each operation
#
# Running a graph through `fx.Interpreter` costs microseconds per operation. The code that fx generates for a
# graph costs nothing; a `with span:` in front of a line costs the span alone, and closes it when the
# operation raises.

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


# --- Whole graphs as events: the real backend compiles them, each forward and backward call is timed


def real_backend(backend: str | Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    """The backend torch would use for these settings."""
    if backend == "inductor":
        wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
        if wrapper is not None:
            return wrapper(settings.get("mode"), settings.get("options"), None)  # type: ignore[no-any-return]
    compiler = torch._dynamo.lookup_backend(backend) if isinstance(backend, str) else backend
    return functools.partial(compiler, **settings) if settings else compiler


def compile_whole_graph(
    graph_module: Any,
    example_inputs: Any,
    number: int,
    root: _core.Node,
    backend: str | Callable[..., Any],
    settings: dict[str, Any],
) -> Callable[..., Any]:
    """The compiled graph, with an event around each call and around the backward of what it returns."""
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    operations = sum(node.op.startswith("call_") for node in graph_module.graph.nodes)
    args = {
        "phase": "forward",
        "grad_enabled": int(torch.is_grad_enabled()),
        "graph": number,
        "ops": operations,
        "backend": name,
    }
    compiled = real_backend(backend, settings)(graph_module, example_inputs)
    span = _core.Node("graph.forward", _CATEGORY, root)
    span.set_args(args)
    device = device_clock if torch.cuda.is_available() else None
    backward = _Backward(root, {**args, "phase": "backward", "grad_enabled": 0}, device)
    forward_device = _device_args(args)

    def run(*inputs: Any) -> Any:
        compile_events.collect_pending()
        if not span.enabled:
            return compiled(*inputs)
        if device is None:
            with span:
                outputs = compiled(*inputs)
        else:
            with span:
                timing = device.start()
                outputs = compiled(*inputs)
                if timing is not None:
                    timing.stop("graph.forward.device", _CATEGORY, forward_device)
        safely(backward.follow, outputs)
        return outputs

    return run


def _device_args(args: dict[str, Any]) -> dict[str, Any]:
    return {**args, "device": 1}


class _Backward:
    """Times the autograd node that AOTAutograd puts behind a graph's outputs, whatever compiled it."""

    def __init__(self, root: _core.Node, args: dict[str, Any], device: GraphClock | None) -> None:
        # Between the two hooks the engine may raise: an open span would be left behind, a start time is not.
        self._root = root
        self._args = args
        self._device = device
        self._device_args = _device_args(args)

    def follow(self, outputs: Any) -> None:
        for output in outputs if isinstance(outputs, tuple | list) else (outputs,):
            node = getattr(output, "grad_fn", None)
            if node is not None and type(node).__name__.startswith("CompiledFunction"):
                self._attach(node)
                return

    def _attach(self, node: Any) -> None:
        started: list[tuple[int, DeviceSpan | None]] = []

        def before(_: Any) -> None:
            started.append((_core.time_ns(), self._device.start() if self._device else None))

        def after(_: Any, __: Any) -> None:
            if not started:
                return
            start, timing = started.pop()
            if timing is not None:
                timing.stop("graph.backward.device", _CATEGORY, self._device_args)
            if self._root.enabled:
                _core.log_event("graph.backward", _CATEGORY, start, _core.time_ns() - start, self._args)
            compile_events.collect_pending()

        node.register_prehook(before)
        node.register_hook(after)


# --- Time on a CUDA device, measured by events in the stream

_Finished = tuple[Any, Any, int, str, str, dict[str, Any]]
_LOCK_S = 0.1
_PATIENCE_NS = 5_000_000_000  # for the device at the end of the trace: it may hang
_NAP_S = 0.001


class DeviceSpan:
    """A stretch of the current stream, from `GraphClock.start` to `stop`."""

    __slots__ = ("_clock", "_device", "_start")

    def __init__(self, clock: GraphClock, device: int, start: Any) -> None:
        self._clock = clock
        self._device = device
        self._start = start

    def stop(self, name: str, category: str, args: dict[str, Any]) -> None:
        self._clock.finish(self._start, self._device, name, category, args)


class GraphClock:
    """Turns pairs of CUDA events into trace events once the device has passed them.

    Who asks for the times of graphs gets their exact places: the first one waits for the device once, which
    aligns its clock with the trace's (`dftracer.torch.device`, which runs unasked, never waits and gives bounds).
    Later events are measured from the latest one known: CUDA gives distances as 32-bit floats, which are exact
    only when short.

    All of this runs inside the program's calls: an error ends the measurements, not the call, and nothing is
    recorded or asked while a CUDA graph is captured, which that would break.
    """

    def __init__(
        self,
        pool: Any = None,
        now: Callable[[], int] = _core.time_ns,
        nap: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pool, self._now, self._nap = pool, now, nap
        self._failed = False
        self._anchors: dict[int, tuple[Any, int]] = {}
        self._waiting: deque[_Finished] = deque()

    def start(self) -> DeviceSpan | None:
        """None where the device may not be touched now."""
        return self._touch(self._start)

    def finish(self, start: Any, device: int, name: str, category: str, args: dict[str, Any]) -> None:
        """The span that began with `start` ends here in the stream; write those the device has passed."""
        self._touch(lambda pool: self._finish(pool, start, device, name, category, args))

    def drain(self) -> None:
        """Write the rest, at the end of the trace; what the device does not pass in time is not written."""
        until = self._now() + _PATIENCE_NS
        self._touch(self._write)
        while self._waiting and not self._failed and self._now() < until:
            self._nap(_NAP_S)
            self._touch(self._write)
        self._waiting.clear()

    def _touch(self, action: Callable[[Any], _T]) -> _T | None:
        if self._failed:
            return None
        try:
            pool = self._pool
            if pool is None:
                pool = self._pool = TorchPool(torch)
            # A capture that begins waits for this lock. Whoever is called in the middle of this goes without.
            if not pool.lock.acquire(timeout=_LOCK_S):
                return None
            try:
                return action(pool) if pool.may_touch() else None
            finally:
                pool.lock.release()
        except Exception as error:
            self._failed = True
            _messages.warn(f"device times of graphs disabled: {type(error).__name__}: {error}")
            return None

    def _start(self, pool: Any) -> DeviceSpan:
        device = pool.device()
        if device not in self._anchors:
            self._tie(pool, device)
        return DeviceSpan(self, device, pool.record(device))

    def _tie(self, pool: Any, device: int) -> None:
        if not self._anchors:
            before_finalize(self.drain)
            os.register_at_fork(after_in_child=self._forget)
        pool.give_back(device, pool.record(device))  # so that nothing is made between the two times
        pool.synchronize(device)
        before = self._now()
        anchor = pool.record(device)
        anchor.synchronize()
        self._anchors[device] = (anchor, (before + self._now()) // 2)

    def _finish(
        self, pool: Any, start: Any, device: int, name: str, category: str, args: dict[str, Any]
    ) -> None:
        self._waiting.append((start, pool.record(device), device, name, category, args))
        self._write(pool)

    def _write(self, pool: Any) -> None:
        while self._waiting and self._waiting[0][1].query():
            start, end, device, name, category, args = self._waiting.popleft()
            anchor, anchor_ns = self._anchors[device]
            start_ns = anchor_ns + round(anchor.elapsed_time(start) * 1e6)
            duration = round(start.elapsed_time(end) * 1e6)
            self._anchors[device] = (start, start_ns)
            pool.give_back(device, anchor)
            pool.give_back(device, end)
            _core.log_event(
                name,
                category,
                start_ns,
                duration,
                {**args, "device_index": device, "dur_ns": duration},
                device_lane(device, 0),
            )

    def _forget(self) -> None:
        """A forked child must not touch the device of its parent: even destroying an event there aborts it."""
        if self._anchors:
            _core.keep_forever((self._pool, self._anchors, self._waiting))
            self._pool, self._anchors, self._waiting = None, {}, deque()
            self._failed = True


device_clock = GraphClock()
