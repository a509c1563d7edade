"""Functions decorated while tracing was off, which are unchanged: traced once it is switched on.

Even then a function stays the same object: its code becomes a call to the traced one.
"""

from __future__ import annotations

from _weakref import ref  # what `weakref` offers, without importing that

from dftracer import _core, _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

__all__ = ["activate", "remember"]

_waiting: dict[int, tuple[Any, list[Callable[[Any], Any]]]] = {}
_TARGET = "the traced function"


def remember(target: Any, make: Callable[[Any], Any]) -> None:
    """Let `make` trace `target` when tracing is switched on, if the target still exists."""
    if isinstance(target, (staticmethod, classmethod)):
        target = target.__func__
    if isinstance(target, property):
        for part in (target.fget, target.fset, target.fdel):
            if part is not None:
                remember(part, make)
        return
    key = id(target)
    known = _waiting.get(key)
    if known is not None:
        known[1].append(make)
        return
    try:
        _waiting[key] = (ref(target, lambda _: _waiting.pop(key, None)), [make])
    except TypeError:  # a builtin: it cannot be changed, now or later
        return


def _decorated(span: _core.Node | _core.Use, target: Any) -> None:
    def make(function: Any) -> Any:
        from dftracer.python._decorate import decorate  # noqa: PLC0415 - needed with tracing on only

        # The arguments of a use created while tracing was off were not processed.
        given = span._given if isinstance(span, _core.Use) else None
        return decorate(span.node(**given) if isinstance(span, _core.Use) and given else span, function)

    remember(target, make)


def activate() -> None:
    """Trace all of them."""
    left = []
    for find, makes in list(_waiting.values()):
        target = find()
        if target is None:
            continue
        try:
            _trace(target, makes)
        except Exception as error:  # the program continues, one function stays as it was
            left.append(f"{getattr(target, '__qualname__', target)!s} ({type(error).__name__}: {error})")
    _waiting.clear()
    if left:
        _messages.warn(f"decorated before tracing was on, and therefore not traced: {', '.join(left[:5])}")


def _trace(target: Any, makes: list[Callable[[Any], Any]]) -> None:
    from functools import cached_property  # noqa: PLC0415
    from types import FunctionType  # noqa: PLC0415

    if isinstance(target, type):
        for make in makes:
            make(target)  # its __init__ is replaced in place
        return
    if isinstance(target, cached_property):
        for make in makes:
            target.func = make(target.func)
        return
    if not isinstance(target, FunctionType):
        raise TypeError("only functions and classes can change in place")
    inner = FunctionType(
        target.__code__, target.__globals__, target.__name__, target.__defaults__, target.__closure__
    )
    inner.__kwdefaults__ = target.__kwdefaults__
    inner.__qualname__, inner.__module__, inner.__doc__ = (
        target.__qualname__,
        target.__module__,
        target.__doc__,
    )
    inner.__annotations__ = target.__annotations__
    inner.__dict__.update(target.__dict__)
    traced: Any = inner
    for make in makes:
        traced = make(traced)
    target.__code__ = _calling(target.__code__, traced)
    target.__dict__["__wrapped__"] = inner  # signatures are read through it


def _template(*args: Any, **kwargs: Any) -> Any:
    target: Any = "the traced function"
    return target(*args, **kwargs)


def _calling(code: CodeType, traced: Any) -> CodeType:
    """Code that calls `traced`, to replace `code`."""
    template = _template.__code__
    constants = tuple(traced if c == _TARGET else c for c in template.co_consts)
    return template.replace(
        co_consts=constants,
        co_freevars=code.co_freevars,  # the function keeps its cells
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )


_core.set_waiting(_decorated)
