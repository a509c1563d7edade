"""The backend passed to `torch.compile`: chooses how a graph is traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, cast

from dftracer import _core
from dftracer.python._torch_required import require_torch

__all__ = ["Backend", "create_backend", "next_graph_number", "tracing_enabled"]

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

        from dftracer.python.dynamo._compile_events import compile_events  # noqa: PLC0415 - imports torch

        compile_events.watch()
        compile_events.collect_breaks()
        number = next_graph_number()
        if self._by_operation(settings):
            from dftracer.python.dynamo import _operations  # noqa: PLC0415

            if not self.autograd:
                return _operations.run_by_operation(graph_module, number, self.root, self.synchronize)
            return _operations.compile_by_operation(
                graph_module, example_inputs, number, self.root, self.synchronize
            )

        from dftracer.python.dynamo._graphs import compile_whole_graph  # noqa: PLC0415

        return compile_whole_graph(
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
        root = _core.Node("dynamo", "dynamo")
        root.update(epoch, step, image_idx, image_size, {"model": name} if name is not None else None)
    return Backend(granularity, backend, synchronize, root, enable, autograd)
