"""`dft_fn`: spans of a category of one's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from dftracer import _core, _session
from dftracer.python._names import CTX_SEPARATOR, ITER_NAME

__all__ = ["dft_fn"]

_TRACING = _session.SETTINGS.enable
_YIELD_NAME = "yield"


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
        super().__init__(name if name is not None else sys._getframe(1).f_code.co_name, cat)
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

    def iter(self, it: Iterable[Any], name: str = "loop", iter_name: str = "step") -> Any:
        """Loop over `it`: `<name>.iter` is waiting for an item, `<name>.yield` the body that uses it."""
        if not _TRACING:
            return it
        wait = _core.Node(f"{name}{CTX_SEPARATOR}{ITER_NAME}", self.cat, self)
        body = _core.Node(f"{name}{CTX_SEPARATOR}{_YIELD_NAME}", self.cat, self)
        return _core.loop(it, wait, body, iter_name, False)

    def log_metadata(self, key: str, value: str) -> None:
        """A fact about the run, written at once."""
        _core.log_metadata("CM", key, value)

    def flush(self) -> dft_fn:
        """Write the event now: the one that is open, else one since this object was made or reset."""
        if self.enabled and not self.close():
            now = _core.time_ns()
            _core.log_event(self.name, self.cat, self._since, now - self._since)
            self._since = now
        return self

    def reset(self) -> dft_fn:
        """Forget the args and begin anew."""
        self.clear_args()
        self._since = _core.time_ns() if _TRACING else 0
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dft_fn, (self.cat, self.name, None, None, None, None, self.enabled or not _TRACING)
