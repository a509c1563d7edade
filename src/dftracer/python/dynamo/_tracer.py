"""`Dynamo`: what to trace of a compiled function, and the args its events carry."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from dftracer import _core
from dftracer.python._torch_required import require_torch
from dftracer.python.dynamo._backend import Backend, create_backend, tracing_enabled

__all__ = ["Dynamo"]

_F = TypeVar("_F", bound=Callable[..., Any])


class Dynamo:
    """Traces functions and modules compiled through it; all its events share its args and its switch."""

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
    ) -> None:
        """`granularity` "op" times each operation, "graph" keeps the real `backend` and times its graphs."""
        self.name = name
        self._enabled = bool(enable)
        self._args: dict[str, Any] = {} if name is None else {"model": name}
        self._root = _core.Node("dynamo", "dynamo")
        self._root.set_enabled(self._enabled)
        self.backend: Backend = create_backend(
            granularity=granularity, backend=backend, synchronize=synchronize, root=self._root
        )
        self.update(epoch=epoch, step=step, image_idx=image_idx, image_size=image_size)

    def update(
        self,
        epoch: int | None = None,
        step: int | None = None,
        image_idx: int | None = None,
        image_size: Any = None,
        args: dict[str, Any] | None = None,
    ) -> Dynamo:
        """Set the args that the events from now on carry; those not given stay as they are."""
        given = {"epoch": epoch, "step": step, "image_idx": image_idx, "image_size": image_size}
        self._args.update({key: value for key, value in given.items() if value is not None})
        if args:
            self._args.update(args)
        if self._args:
            self._root.set_args(self._args)
        return self

    @property
    def enabled(self) -> bool:
        return self._enabled

    def enable(self) -> None:
        """Write events again."""
        self._enabled = True
        self._root.set_enabled(True)

    def disable(self) -> None:
        """Write no events from now on; what is compiled runs on, what is decorated later stays plain."""
        self._enabled = False
        self._root.set_enabled(False)

    @overload
    def compile(self, model: _F, **options: Any) -> _F: ...
    @overload
    def compile(self, model: None = None, **options: Any) -> Callable[[_F], _F]: ...
    def compile(self, model: Any = None, **options: Any) -> Any:
        """`torch.compile` with tracing: a decorator (with or without parentheses) or a call on a module.

        `fullgraph`, `dynamic`, `mode` and `options` are torch's. `backend` keeps that backend and times whole
        graphs, as do `mode` and `options`, which only a real backend can follow.
        """
        if model is None:
            return lambda target: self.compile(target, **options)
        wanted = options.pop("enable", self._enabled)
        if options.get("disable"):
            return _torch_compile(model, options)
        if not wanted or not tracing_enabled():
            return model
        inner = options.pop("backend", None)
        granularity = options.pop("granularity", None)
        synchronize = options.pop("synchronize", None)
        chosen = self.backend
        if isinstance(inner, Backend):
            chosen = inner
        elif inner is not None or granularity is not None or synchronize is not None:
            chosen = create_backend(
                granularity=granularity,
                backend=inner,
                synchronize=bool(synchronize),
                root=self._root,
            )
        return _torch_compile(model, {**options, "backend": chosen})

    __call__ = compile


def _torch_compile(model: Any, options: dict[str, Any]) -> Any:
    torch = require_torch("dynamo")
    if inspect.isclass(model) and issubclass(model, torch.nn.Module):
        # A decorated class stays that class; its instances run the compiled forward.
        model.forward = torch.compile(model.forward, **options)  # type: ignore[attr-defined]
        return model
    return torch.compile(model, **options)
