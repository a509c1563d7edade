"""The plug-ins of a collection: made from names or given, and each one's failures kept to itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from dftracer.collect._comms import Comms
from dftracer.collect._health import Health
from dftracer.collect._names import Names
from dftracer.collect._plugin import Context, write_output
from dftracer.collect._samplers import Memory, Nvml

__all__ = ["Plugins"]

_BUILT_IN = {"comms": Comms, "memory": Memory, "nvml": Nvml}
_T = TypeVar("_T")


class Plugins:
    """Calls every plug-in that still works."""

    def __init__(self, wanted: Iterable[Any], context: Context, health: Health) -> None:
        self._health = health
        self._compress = context.compress
        self._all: list[Any] = []
        for each in wanted:
            if isinstance(each, str) and each not in _BUILT_IN:
                health.warn(f"there is no plug-in {each!r}; there are {', '.join(_BUILT_IN)}")
                continue
            plugin = _BUILT_IN[each]() if isinstance(each, str) else each
            self._all.append(plugin)
            self._call(plugin, "start", context)

    def of(self, kind: type[_T]) -> _T | None:
        """The plug-in of this class, if there is one and it works."""
        for plugin in self._all:
            if isinstance(plugin, kind):
                return plugin
        return None

    def _part(self, plugin: Any) -> str:
        return f"plug-in {getattr(plugin, 'name', type(plugin).__name__)}"

    def _call(self, plugin: Any, method: str, *args: Any) -> Any:
        if self._health.works(self._part(plugin)):
            with self._health.guard(self._part(plugin)):
                return getattr(plugin, method)(*args)
        return None

    def step(self, step: int) -> None:
        """A step has ended."""
        for plugin in self._all:
            self._call(plugin, "step", step)

    def window_start(self, index: int, step: int) -> None:
        """A window begins."""
        for plugin in self._all:
            self._call(plugin, "window_start", index, step)

    def window_end(self, index: int, step: int) -> None:
        """A window has ended."""
        for plugin in self._all:
            self._call(plugin, "window_end", index, step)

    def finish(self, names: Names) -> list[str]:
        """The files of all plug-ins."""
        paths = []
        for plugin in self._all:
            content = self._call(plugin, "finish")
            if content is not None:
                with self._health.guard(self._part(plugin)):
                    paths.append(write_output(names.stem(plugin.name), content, self._compress))
        return paths
