"""Whole graphs as events: the real backend compiles them, each forward and backward call is timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from dftracer import _core
from dftracer.python.dynamo._compile_events import compile_events
from dftracer.python.dynamo._device_time import DeviceClock, DeviceSpan, device_clock

__all__ = ["compile_whole_graph", "real_backend"]

_CATEGORY = "dynamo"


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
        if compile_events.pending:
            compile_events.collect()
        if not span.enabled:
            return compiled(*inputs)
        if device is None:
            with span:
                outputs = compiled(*inputs)
        else:
            with span:
                timing = device.start()
                outputs = compiled(*inputs)
                timing.stop("graph.forward.device", _CATEGORY, forward_device)
        backward.follow(outputs)
        return outputs

    return run


def _device_args(args: dict[str, Any]) -> dict[str, Any]:
    return {**args, "device": 1}


class _Backward:
    """Times the autograd node that AOTAutograd puts behind a graph's outputs, whatever compiled it."""

    def __init__(self, root: _core.Node, args: dict[str, Any], device: DeviceClock | None) -> None:
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
            if compile_events.pending:
                compile_events.collect()

        node.register_prehook(before)
        node.register_hook(after)
