"""`Dynamo`: what to trace of a compiled function, and the args its events carry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from dftracer.python._torch_required import require_torch
from dftracer.python._tree import DFTracerAI
from dftracer.python.dynamo._backend import Backend, create_backend, next_graph_number, tracing_enabled

__all__ = ["CAT_DYNAMO", "Dynamo"]

CAT_DYNAMO = "dynamo"

_F = TypeVar("_F", bound=Callable[..., Any])


class Dynamo(DFTracerAI):
    """Traces functions and modules compiled through it; all its events share its args and its switch.

    It is a node like the others: `with tracer:` and `@tracer` write events of its name.
    """

    def __init__(
        self,
        name: str | None = None,
        epoch: int | None = None,
        step: int | None = None,
        image_idx: int | None = None,
        image_size: Any = None,
        enable: bool = True,
        *,
        granularity: str | None = None,
        backend: str | Callable[..., Any] | None = None,
        synchronize: bool = False,
        autograd: bool = True,
    ) -> None:
        """`granularity` "op" times each operation, "graph" keeps the real `backend` and times its graphs."""
        super().__init__(cat=CAT_DYNAMO, name=name or CAT_DYNAMO, enable=enable)
        self._model = name
        self._enabled = bool(enable)
        if name is not None:
            self.update(args={"model": name})
        self.update(epoch, step, image_idx, image_size)
        self.backend: Backend = create_backend(
            granularity=granularity, backend=backend, synchronize=synchronize, autograd=autograd, root=self
        )

    def enable(self) -> None:
        """Write events again."""
        self._enabled = True
        super().enable()

    def disable(self) -> None:
        """Write no events from now on; compiled code keeps running, code decorated later stays plain."""
        self._enabled = False
        super().disable()

    @overload
    def compile(self, f_py: _F, autograd: bool | None = None, **options: Any) -> _F: ...
    @overload
    def compile(
        self, f_py: None = None, autograd: bool | None = None, **options: Any
    ) -> Callable[[_F], _F]: ...
    def compile(self, f_py: Any = None, autograd: bool | None = None, **options: Any) -> Any:
        """`torch.compile` with tracing: a decorator (with or without parentheses) or a call on a module.

        `fullgraph`, `dynamic`, `mode` and `options` are torch's. `backend` keeps that backend and times whole
        graphs, as do `mode` and `options`, which only a real backend can follow. `autograd=False` leaves
        gradients to the program and times the operations of the forward graph only.
        """
        if f_py is None:
            return lambda target: self.compile(target, autograd, **options)
        wanted = options.pop("enable", self._enabled)
        if options.get("disable"):
            return _torch_compile(f_py, options)
        if not wanted or not tracing_enabled():
            return f_py
        inner = options.pop("backend", None)
        granularity = options.pop("granularity", None)
        synchronize = options.pop("synchronize", None)
        chosen = self.backend
        if isinstance(inner, Backend):
            chosen = inner
        elif (inner, granularity, synchronize, autograd) != (None, None, None, None):
            chosen = create_backend(
                granularity=granularity,
                backend=inner,
                synchronize=bool(synchronize),
                autograd=autograd is not False,
                root=self,
            )
        return _torch_compile(f_py, {**options, "backend": chosen})

    def add_enhanced_timing_to_graph(self, gm: Any) -> Any:
        """The graph module itself, which from now on writes an event for each of its operations."""
        if self._enabled and tracing_enabled():
            from dftracer.python.dynamo._operations import time_operations  # noqa: PLC0415 - imports torch

            time_operations(gm, next_graph_number(), self)
        return gm

    def count_parameters(self, module: Any) -> int | None:
        """How many numbers a module learns and keeps; None for what has no parameters at all."""
        if not hasattr(module, "parameters"):
            return None
        return sum(int(parameter.numel()) for parameter in module.parameters())

    def __reduce__(self) -> tuple[Any, ...]:
        return Dynamo, (self._model,)


def _torch_compile(model: Any, options: dict[str, Any]) -> Any:
    torch = require_torch("dynamo")
    if inspect.isclass(model) and issubclass(model, torch.nn.Module):
        # A decorated class stays that class; its instances run the compiled forward.
        model.forward = torch.compile(model.forward, **options)  # type: ignore[attr-defined]
        return model
    return torch.compile(model, **options)
