"""Compiled graphs in the trace.

`dynamo` is a default `Dynamo`, and `from dftracer.python import dynamo` gives it: `dynamo.compile`,
`dynamo.update`, `with dynamo`, …. Nothing here imports torch before something is compiled.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from dftracer import _core
from dftracer._packages import require_torch
from dftracer.python._tree import DFTracerAI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.python.dynamo._description import CallStackRecord, create_detailed_op_name

__all__ = [
    "CAT_DYNAMO",
    "CallStackRecord",
    "Dynamo",
    "create_backend",
    "create_detailed_op_name",
    "dftracer_dynamo_backend",
    "dynamo",
]

CAT_DYNAMO = "dynamo"

_F = TypeVar("_F", bound=Callable[..., Any])


# --- The backend passed to `torch.compile`: chooses how a graph is traced

_GRANULARITIES = ("op", "graph")
_graph_numbers = itertools.count()


def tracing_enabled() -> bool:
    """Whether this process traces at all."""
    from dftracer.python import DFTRACER_ENABLE  # noqa: PLC0415 - the package imports this module lazily

    return bool(DFTRACER_ENABLE) or _core.active()


def next_graph_number() -> int:
    """The `graph` of a graph's events; no two graphs of a process have the same."""
    return next(_graph_numbers)


class Backend:
    """A `torch.compile` backend; torch's caches identify it by identity."""

    def __init__(
        self,
        granularity: str | None,
        inner: str | Callable[..., Any] | None,
        synchronize: bool,
        root: _core.Node,
        enable: bool = True,
        autograd: bool = True,
    ) -> None:
        if granularity is not None and granularity not in _GRANULARITIES:
            raise ValueError(f"granularity must be one of {', '.join(_GRANULARITIES)}, not {granularity!r}")
        self.__name__ = "dftracer_dynamo_backend"
        self.granularity = granularity
        self.inner = inner
        self.synchronize = synchronize
        self.root = root
        self.enable = enable
        self.autograd = autograd

    def __call__(self, graph_module: Any, example_inputs: Any, **settings: Any) -> Callable[..., Any]:
        """Compile one graph; called by torch."""
        require_torch("dynamo")
        if not (self.enable and tracing_enabled()):
            return self._untraced(graph_module, example_inputs, settings)

        from dftracer.python.dynamo import _graphs  # noqa: PLC0415 - imports torch
        from dftracer.torch.compilations import compile_events  # noqa: PLC0415 - imports torch

        compile_events.watch()
        compile_events.collect_breaks()
        number = next_graph_number()
        if self._by_operation(settings):
            if not self.autograd:
                return _graphs.run_by_operation(graph_module, number, self.root, self.synchronize)
            return _graphs.compile_by_operation(
                graph_module, example_inputs, number, self.root, self.synchronize
            )
        return _graphs.compile_whole_graph(
            graph_module, example_inputs, number, self.root, self.inner or "inductor", settings
        )

    def _by_operation(self, settings: dict[str, Any]) -> bool:
        if self.granularity is not None:
            return self.granularity == "op"
        return self.inner is None and not settings

    def _untraced(
        self, graph_module: Any, example_inputs: Any, settings: dict[str, Any]
    ) -> Callable[..., Any]:
        if self._by_operation(settings):
            return cast("Callable[..., Any]", graph_module)
        from dftracer.python.dynamo._graphs import real_backend  # noqa: PLC0415

        compiler = real_backend(self.inner or "inductor", settings)
        return cast("Callable[..., Any]", compiler(graph_module, example_inputs))


def create_backend(
    name: str | None = None,
    epoch: Any = None,
    step: Any = None,
    image_idx: Any = None,
    image_size: Any = None,
    enable: bool = True,
    autograd: bool = True,
    *,
    granularity: str | None = None,
    backend: str | Callable[..., Any] | None = None,
    synchronize: bool = False,
    root: _core.Node | None = None,
) -> Backend:
    """A backend for `torch.compile(model, backend=…)`.

    name, epoch, step, image_idx, image_size
        args of its events, `name` as `model`.
    enable
        False: nothing is traced, and the graphs run as they would without us.
    autograd
        "op" only. True: AOTAutograd makes a forward and a backward graph, and the operations of both are
        events. False: only those of the forward graph, as the program wrote them.
    granularity
        "op" (default without `backend`): each operation of the graphs is an event.
        "graph" (default with `backend`): the graphs are compiled by `backend` and timed as a whole.
    backend
        the backend that compiles the graphs, "inductor" if none is named.
    synchronize
        "op" only: wait for the device after each operation, so that its event covers the work on the device.
    """
    if root is None:
        root = _core.Node(CAT_DYNAMO, CAT_DYNAMO)
        root.update(epoch, step, image_idx, image_size, {"model": name} if name is not None else None)
    return Backend(granularity, backend, synchronize, root, enable, autograd)


# --- The tracer: what to trace of a compiled function, and the args its events carry


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
            from dftracer.python.dynamo._graphs import time_operations  # noqa: PLC0415 - imports torch

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


# --- The default tracer


class _Default(Dynamo):
    """The tracer `dynamo`, which also gives access to the other names of this module."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in __all__:
                return getattr(sys.modules[__name__], name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _default, ()


def _default() -> Dynamo:
    return dynamo


dynamo: Dynamo = _Default()
compile = dynamo.compile
update = dynamo.update
enable = dynamo.enable
disable = dynamo.disable
backend = dftracer_dynamo_backend = dynamo.backend


def __getattr__(name: str) -> Any:
    if name in ("CallStackRecord", "create_detailed_op_name"):
        from dftracer.python.dynamo import _description  # noqa: PLC0415 - for programs that know these names

        return getattr(_description, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
