"""What a decorator does to each kind of thing: at once, or when tracing is switched on."""

from __future__ import annotations

import functools
from _weakref import ref  # what `weakref` offers, without importing that
from types import FunctionType, MethodType

from dftracer import _core, _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from types import CodeType
    from typing import Any

    Span = _core.Node | _core.NodeUse

SPECIAL_ARGS = ("epoch", "step", "image_idx", "image_size")

_CO_VARKEYWORDS, _CO_GENERATOR, _CO_COROUTINE, _CO_ASYNC_GENERATOR = 0x08, 0x20, 0x80, 0x200


def decorate(span: Span, target: Any) -> Any:
    """Trace `target` as `span`, whatever it is."""
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(decorate(span, target.__func__))
    if isinstance(target, property):
        get, set_, delete = (a and decorate(span, a) for a in (target.fget, target.fset, target.fdel))
        return property(get, set_, delete, target.__doc__)
    if isinstance(target, functools.cached_property):
        return functools.cached_property(decorate(span, target.func))
    if isinstance(target, type):
        return _decorate_class(span, target)
    if not callable(target):
        _messages.warn(f"{target!r} cannot be traced: it is neither a function nor a class")
        return target
    return wrap(span, target)


def wrap(span: Span, fn: Callable[..., Any], self_attributes: bool = False) -> Any:
    """Trace the calls of `fn`."""
    flags = _code_flags(fn)
    if flags & _CO_COROUTINE:
        body: Callable[..., Any] = _coroutine_caller(span, fn)
    elif flags & _CO_ASYNC_GENERATOR:
        body = _async_generator_caller(span, fn)
    elif flags & _CO_GENERATOR:
        body = _generator_caller(span, fn)
    else:
        first = _first_parameter(fn) if self_attributes else None
        return _core.wrap(span, fn, _special_parameters(fn), first == "self", _attributes(fn))
    return _core.disguise(fn, body, _attributes(fn))


def _attributes(fn: Callable[..., Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        name: getattr(fn, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(fn, name)
    }
    if "__name__" not in attributes:
        attributes["__name__"] = attributes["__qualname__"] = type(fn).__name__
    attributes.update(getattr(fn, "__dict__", {}) if isinstance(fn, FunctionType) else {})
    attributes["__wrapped__"] = fn
    # We are transparent to torch.compile: inside a graph there is nothing to time.
    attributes["_torchdynamo_inline"] = fn
    return attributes


def _underlying(fn: Any) -> Any:
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif isinstance(fn, MethodType):
            fn = fn.__func__
        else:
            return fn


def _code_flags(fn: Any) -> int:
    inner = _underlying(fn)
    code = getattr(inner, "__code__", None)
    if code is None:
        code = getattr(getattr(type(inner), "__call__", None), "__code__", None)  # noqa: B004 - its code is wanted
    return getattr(code, "co_flags", 0)


def _first_parameter(fn: Any) -> str | None:
    code = getattr(fn, "__code__", None)
    return code.co_varnames[0] if code is not None and code.co_argcount else None


def _special_parameters(fn: Any) -> tuple[tuple[str, int, Any, bool], ...]:
    """(name, position or -1, default, has a default) of those of SPECIAL_ARGS that `fn` takes."""
    code = getattr(fn, "__code__", None)
    if code is None or not isinstance(fn, FunctionType):
        return ()
    positional = code.co_varnames[: code.co_argcount]
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = fn.__defaults__ or ()
    first_default = len(positional) - len(defaults)
    found = []
    for name in SPECIAL_ARGS:
        if name in positional:
            at = positional.index(name)
            has_default = at >= first_default
            found.append((name, at, defaults[at - first_default] if has_default else None, has_default))
        elif name in keyword_only:
            kwdefaults = fn.__kwdefaults__ or {}
            found.append((name, -1, kwdefaults.get(name), name in kwdefaults))
        elif code.co_flags & _CO_VARKEYWORDS:
            found.append((name, -1, None, False))
    return tuple(found)


def _decorate_class(span: Span, cls: type) -> type:
    """Trace the creation of instances; the class stays the same object."""
    init = getattr(cls, "__init__")  # noqa: B009 - mypy forbids cls.__init__
    try:
        setattr(cls, "__init__", wrap(span, _no_init if init is object.__init__ else init))  # noqa: B010
    except TypeError:
        _messages.warn(f"{cls!r} cannot be traced: its attributes cannot be set")
    return cls


def _no_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """What object.__init__ does when it is not overridden."""
    if (args or kwargs) and getattr(type(self), "__new__", None) is object.__new__:
        raise TypeError(f"{type(self).__name__}() takes no arguments")


def _coroutine_caller(span: Span, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with span:
            return await coroutine

    def call(*args: Any, **kwargs: Any) -> Any:
        return run(fn(*args, **kwargs))

    return call


def _generator_caller(span: Span, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _drive(_open(span), fn(*args, **kwargs))

    return call


def _async_generator_caller(span: Span, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return _drive_async(_open(span), fn(*args, **kwargs))

    return call


def _open(span: Span) -> _core.SuspendableSpan:
    # `ai.data.io.open` is an event, not the method.
    return _core.Node.open(span) if isinstance(span, _core.Node) else span.open()


def _drive(span: _core.SuspendableSpan, inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The generator `inner`, with its whole lifetime as one event, open only while it runs."""
    step: Callable[[], Any] = inner.__next__
    try:
        while True:
            span.resume()
            item = step()
            span.suspend()
            try:
                sent = yield item
            except GeneratorExit:
                span.resume()
                inner.close()
                raise
            except BaseException as thrown:
                step = functools.partial(inner.throw, thrown)
            else:
                step = inner.__next__ if sent is None else functools.partial(inner.send, sent)
    except StopIteration as stop:
        span.finish()
        return stop.value
    except GeneratorExit:
        span.finish()
        raise
    except BaseException as error:
        span.finish(error)
        raise


async def _drive_async(
    span: _core.SuspendableSpan, inner: AsyncGenerator[Any, Any]
) -> AsyncGenerator[Any, Any]:
    """The same for asynchronous generators."""
    step: Callable[[], Any] = inner.__anext__
    try:
        while True:
            span.resume()
            item = await step()
            span.suspend()
            try:
                sent = yield item
            except GeneratorExit:
                span.resume()
                await inner.aclose()
                raise
            except BaseException as thrown:
                step = functools.partial(inner.athrow, thrown)
            else:
                step = inner.__anext__ if sent is None else functools.partial(inner.asend, sent)
    except StopAsyncIteration:
        span.finish()
    except GeneratorExit:
        span.finish()
        raise
    except BaseException as error:
        span.finish(error)
        raise


def _traceable_call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    return self.__wrapped__(*args, **kwargs)


# --- Functions decorated while tracing is off stay unchanged, and are traced once it is switched on
#
# Even then a function stays the same object: its code becomes a call to the traced one.

_waiting: dict[int, tuple[Any, list[Callable[[Any], Any]]]] = {}


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


def _decorated(span: _core.Node | _core.NodeUse, target: Any) -> None:
    def make(function: Any) -> Any:
        # The arguments of a use created while tracing was off were not processed.
        given = span._given if isinstance(span, _core.NodeUse) else None
        return decorate(span.node(**given) if isinstance(span, _core.NodeUse) and given else span, function)

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
    if isinstance(target, type):
        for make in makes:
            make(target)  # its __init__ is replaced in place
        return
    if isinstance(target, functools.cached_property):
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


# A constant of `_template`, found in its bytecode by its value and replaced by the traced function. The
# template has to spell it out: a name would be looked up in the globals of the function that gets the code.
_TARGET = "the traced function"


def _template(*args: Any, **kwargs: Any) -> Any:
    target: Any = "the traced function"  # equal to _TARGET
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


_core.set_decorator(decorate)
_core.set_traceable_call(_traceable_call)
_core.set_waiting(_decorated)
