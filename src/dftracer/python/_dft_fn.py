"""`dft_fn`: spans with a user-defined category."""

from __future__ import annotations

import sys

from dftracer import _core, _session
from dftracer.python._decorate import decorate, remember, wrap
from dftracer.python._tree import CTX_SEPARATOR, ITER_NAME

TYPE_CHECKING = False
if not TYPE_CHECKING:

    def overload(function: object) -> object:
        """Stands in for `typing.overload`: importing `typing` takes longer than this package."""
        return function

else:
    from collections.abc import Callable
    from typing import Any, Self, TypeVar, overload

    _F = TypeVar("_F", bound=Callable[..., Any])
    _Source = TypeVar("_Source")

_YIELD_NAME = "yield"
_USED, _GENERATED, _BETWEEN_ENTITIES = 0, 1, 16


class dft_fn(_core.Node):  # noqa: N801 - the name users import
    """Context manager and decorators for one category."""

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
        self._since = _core.time_ns() if _session.SETTINGS.enable else 0
        self._relations: dict[int, list[int]] = {}

    @overload
    def log(self, func: _F, name: str | None = None) -> _F: ...
    @overload
    def log(self, func: None = None, name: str | None = None) -> Callable[[_F], _F]: ...
    def log(self, func: Any = None, name: str | None = None) -> Any:
        """Decorator: an event per call, named after the function or `name`."""
        if func is None:
            return lambda fn: self.log(fn, name)
        if not _session.SETTINGS.enable:
            remember(func, lambda function: self._logged(function, name))
            return func
        return self._logged(func, name)

    def _logged(self, func: Any, name: str | None) -> Any:
        label = name or getattr(func, "__qualname__", None) or type(func).__name__
        span = _core.Node(label, self.cat, self)
        if isinstance(func, (staticmethod, classmethod, property, type)):
            return decorate(span, func)
        return wrap(span, func, self_attributes=True)

    @overload
    def log_init(self, init: _F, name: str | None = None) -> _F: ...
    @overload
    def log_init(self, init: None = None, name: str | None = None) -> Callable[[_F], _F]: ...
    def log_init(self, init: Any = None, name: str | None = None) -> Any:
        """The decorator for `__init__`."""
        return self.log(init, name)

    @overload
    def log_static(self, func: _F, name: str | None = None) -> _F: ...
    @overload
    def log_static(self, func: None = None, name: str | None = None) -> Callable[[_F], _F]: ...
    def log_static(self, func: Any = None, name: str | None = None) -> Any:
        """The decorator for static methods."""
        return self.log(func, name)

    def iter(self, func: _Source, name: str = "loop", iter_name: str = "step") -> _Source:
        """Loop over `func`: `<name>.iter` is waiting for an item, `<name>.yield` the body that uses it."""
        return self._iter_as(None, func, name, iter_name)

    def _iter_as(
        self, use: _core.NodeUse | None, func: _Source, name: str = "loop", iter_name: str = "step"
    ) -> _Source:
        from dftracer.python._iterables import looped  # noqa: PLC0415 - needed only for loops

        def spec() -> Any:
            return (*self._loop(name), iter_name, False, use)

        return looped(func, spec()) if _session.SETTINGS.enable else looped(func, None, spec)

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

    def relate(self, relation: Any, entity: int) -> Self:
        """Say on this object's events, until `reset`, that they used, made, … an entity."""
        if self.enabled and entity and int(relation) < _BETWEEN_ENTITIES:
            from dftracer.compat.entities import relation_args  # noqa: PLC0415 - few programs have any

            self._relations.setdefault(int(relation), []).append(entity)
            self.update(args=relation_args(self._relations))
        return self

    def relate_entity(self, relation: Any, type: str, key: Any, store: Any = 0, uri: str = "") -> int:
        """Declare an entity and relate it to this object's events; its id, or 0 while nothing is recorded."""
        if not self.enabled:
            return 0
        from dftracer.compat.entities import declare_entity  # noqa: PLC0415

        entity = declare_entity(type, key, store, uri)
        self.relate(relation, entity)
        return entity

    def uses(self, type: str, key: Any, store: Any = 0, uri: str = "") -> int:
        """The event reads this entity."""
        return self.relate_entity(_USED, type, key, store, uri)

    def generates(self, type: str, key: Any, store: Any = 0, uri: str = "") -> int:
        """The event makes this entity."""
        return self.relate_entity(_GENERATED, type, key, store, uri)

    def flush(self) -> dft_fn:
        """Write the event now: the open one, otherwise one since this object was created or reset."""
        if self.enabled and not self.close():
            now = _core.time_ns()
            self.write_past(self._since, now - self._since)
            self._since = now
        return self

    def reset(self) -> dft_fn:
        """Start over; the args are kept, the relations are not."""
        if self._relations:
            from dftracer.compat.entities import relation_args  # noqa: PLC0415

            self.forget_args(list(relation_args(self._relations)))
            self._relations.clear()
        self._since = _core.time_ns() if _session.SETTINGS.enable else 0
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dft_fn, (
            self.cat,
            self.name,
            None,
            None,
            None,
            None,
            self.enabled or not _session.SETTINGS.enable,
        )
