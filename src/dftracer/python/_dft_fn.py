"""`dft_fn`: spans of a category of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from dftracer import _core, _session
from dftracer.python._names import CTX_SEPARATOR, ITER_NAME

__all__ = ["dft_fn"]

_TRACING = _session.SETTINGS.enable
_YIELD_NAME = "yield"
_Source = TypeVar("_Source")


class dft_fn(_core.Node):  # noqa: N801 - the name users import
    """Context manager and maker of decorators for one category."""

    def __init__(
        self,
        cat: str,
        name: str | None = None,
        epoch: Any = None,
        step: Any = None,
        image_idx: Any = None,
        image_size: Any = None,
        enable: bool = True,
    ) -> None:
        super().__init__(name or sys._getframe(1).f_code.co_name, cat)
        self._loops: dict[str, tuple[_core.Node, _core.Node]] = {}
        self.update(epoch, step, image_idx, image_size)
        if not enable:
            self.set_enabled(False)
        self._since = _core.time_ns() if _TRACING else 0

    def log(self, func: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """Decorator: an event per call, named after the function or `name`."""
        if func is None:
            return lambda fn: self.log(fn, name)
        if not _TRACING:
            return func
        from dftracer.python._decorate import decorate, wrap  # noqa: PLC0415 - needed with tracing on only

        label = name or getattr(func, "__qualname__", None) or type(func).__name__
        span = _core.Node(label, self.cat, self)
        if isinstance(func, (staticmethod, classmethod, property, type)):
            return decorate(span, func)
        return wrap(span, func, self_attributes=True)

    def log_init(self, init: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """The decorator for `__init__`."""
        return self.log(init, name)

    def log_static(self, func: Callable[..., Any] | None = None, name: str | None = None) -> Any:
        """The decorator for static methods."""
        return self.log(func, name)

    def iter(self, func: _Source, name: str = "loop", iter_name: str = "step") -> _Source:
        """Loop over `func`: `<name>.iter` is waiting for an item, `<name>.yield` the body that uses it."""
        return self._iter_as(None, func, name, iter_name)

    def _iter_as(
        self, use: _core.Use | None, func: _Source, name: str = "loop", iter_name: str = "step"
    ) -> _Source:
        from dftracer.python._iterables import looped  # noqa: PLC0415 - for those who loop

        return looped(func, (*self._loop(name), iter_name, False, use) if _TRACING else None)

    def _loop(self, name: str) -> tuple[_core.Node, _core.Node]:
        if name not in self._loops:
            self._loops[name] = (
                _core.Node(f"{name}{CTX_SEPARATOR}{ITER_NAME}", self.cat, self),
                _core.Node(f"{name}{CTX_SEPARATOR}{_YIELD_NAME}", self.cat, self),
            )
        return self._loops[name]

    def log_metadata(self, key: str, value: str) -> None:
        """A fact about the run, written at once."""
        _core.log_metadata("CM", key, value)

    def flush(self) -> dft_fn:
        """Write the event now: the one that is open, else one since this object was made or reset."""
        if self.enabled and not self.close():
            now = _core.time_ns()
            self.write(self._since, now - self._since)
            self._since = now
        return self

    def reset(self) -> dft_fn:
        """Begin anew; the args stay."""
        self._since = _core.time_ns() if _TRACING else 0
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dft_fn, (self.cat, self.name, None, None, None, None, self.enabled or not _TRACING)
