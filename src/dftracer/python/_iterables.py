"""What `iter()` of a node returns: its argument, with its iterations timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, ref

from dftracer import _core, _session

_Source = TypeVar("_Source")

# The wait, the body, the key of the count, whether it is text, the use with its own arguments.
Spec = tuple[_core.Node | None, _core.Node | None, str, bool, _core.NodeUse | None]

# The interpreter looks for special methods on the class, so a stand-in has forwarding ones. Except these.
_NOT_FORWARDED = frozenset(
    {"__aiter__", "__anext__", "__class__", "__class_getitem__", "__copy__", "__deepcopy__", "__del__"}
    | {"__delattr__", "__dict__", "__dir__", "__doc__", "__getattr__", "__getattribute__", "__getnewargs__"}
    | {"__getnewargs_ex__", "__getstate__", "__init__", "__init_subclass__", "__iter__", "__module__"}
    | {"__new__", "__next__", "__reduce__", "__reduce_ex__", "__set_name__", "__setattr__", "__setstate__"}
    | {"__sizeof__", "__slots__", "__subclasshook__", "__weakref__"}
)

_stand_ins: WeakKeyDictionary[type, dict[tuple[int, int], type]] = WeakKeyDictionary()


def looped(source: _Source, spec: Spec | None, later: Callable[[], Spec] | None = None) -> _Source:
    """Wrap `source` so that each item records the two events of `spec`.

    While tracing is off there is no `spec`; `later` makes one when tracing is switched on.
    """
    cls = type(source)
    result: Any
    if hasattr(cls, "__next__"):
        result = source if spec is None else _core.loop(cast("Iterator[Any]", source), *spec)
    elif hasattr(cls, "__anext__") and not hasattr(cls, "__iter__"):
        result = source if spec is None else _AsyncLoop(source, spec)
    else:
        result = _stand_in_for(source, spec, later)
    return cast("_Source", result)


def _stand_in_for(source: Any, spec: Spec | None, later: Callable[[], Spec] | None = None) -> Any:
    made: _StandIn = object.__new__(_stand_in_class(type(source), spec))
    _SOURCE.__set__(made, source)
    _SPEC.__set__(made, spec)
    _BEGUN.__set__(made, None)
    _LATER.__set__(made, later)
    return made


class _StandIn:
    """Stands in for an iterable: same number of iterations, same length, all its attributes."""

    __slots__ = ("__weakref__", "_begun", "_later", "_source", "_spec")

    def __getattribute__(self, name: str) -> Any:
        if name in ("__reduce__", "__reduce_ex__"):
            return object.__getattribute__(self, name)
        return getattr(_SOURCE.__get__(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_SOURCE.__get__(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_SOURCE.__get__(self), name)

    def __dir__(self) -> list[str]:
        return dir(_SOURCE.__get__(self))

    def __iter__(self) -> Iterator[Any]:
        begun = _BEGUN.__get__(self)
        if begun is not None:
            # next() was called before: the loop continues from there, once.
            _BEGUN.__set__(self, None)
            if not begun.ended:
                iterator: Iterator[Any] = begun.iterator
                return iterator
        return _begin(self)

    # Programs written for a tracer whose loops were generators call next() on them.
    def __next__(self) -> Any:
        begun = _BEGUN.__get__(self)
        if begun is None:
            begun = _Begun(_begin(self))
            _BEGUN.__set__(self, begun)
        try:
            return next(begun.iterator)
        except StopIteration:
            begun.ended = True
            raise

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _stand_in_for, (_SOURCE.__get__(self), _SPEC.__get__(self))


class _Begun:
    """An iteration that next() has begun."""

    __slots__ = ("ended", "iterator")

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator
        self.ended = False


_SOURCE: Any = _StandIn.__dict__["_source"]
_SPEC: Any = _StandIn.__dict__["_spec"]
_BEGUN: Any = _StandIn.__dict__["_begun"]
_LATER: Any = _StandIn.__dict__["_later"]


def _spec_of(stand_in: Any) -> Spec | None:
    """The events of its loop; created now if tracing has been switched on since."""
    spec: Spec | None = _SPEC.__get__(stand_in)
    later = _LATER.__get__(stand_in)
    if spec is None and later is not None and _session.SETTINGS.enable:
        spec = later()
        _SPEC.__set__(stand_in, spec)
    return spec


def _begin(stand_in: _StandIn) -> Iterator[Any]:
    source, spec = _SOURCE.__get__(stand_in), _spec_of(stand_in)
    return iter(source) if spec is None else _core.loop(source, *spec)


def _stand_in_class(cls: type, spec: Spec | None) -> type:
    """One per class and pair of events: frameworks make a new loader by calling the class of the old one."""
    if spec is not None and spec[4] is not None:
        return _new_class(cls, spec)
    # The class keeps both alive.
    key = (0, 0) if spec is None else (id(spec[0]), id(spec[1]))
    known = _stand_ins.setdefault(cls, {})
    if key not in known:
        known[key] = _new_class(cls, spec)
    return known[key]


def _new_class(cls: type, spec: Spec | None) -> type:
    namespace: dict[str, Any] = {"__slots__": (), "__module__": cls.__module__, "__doc__": cls.__doc__}
    for name in {name for base in cls.__mro__[:-1] for name in vars(base)}:
        if name.startswith("__") and name.endswith("__") and name not in _NOT_FORWARDED:
            value = getattr(cls, name, None)
            if value is None or callable(value):
                namespace[name] = value and _forward(name)
    if hasattr(cls, "__aiter__"):
        namespace["__aiter__"] = _async_iteration
    find_class = ref(cls)  # a stand-in must not keep alive the class it stands in for

    def new(_: type, *args: Any, **kwargs: Any) -> Any:
        original = find_class()
        assert original is not None, "the class is gone, and with it all its instances"
        return _stand_in_for(original(*args, **kwargs), spec)

    namespace["__new__"] = new
    return type(cls.__name__, (_StandIn,), namespace)


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(_SOURCE.__get__(self), name)(*args, **kwargs)

    return call


def _async_iteration(self: Any) -> Any:
    source, spec = _SOURCE.__get__(self), _spec_of(self)
    return source.__aiter__() if spec is None else _AsyncLoop(source.__aiter__(), spec)


class _AsyncLoop:
    """`async for` with the same two events per item."""

    def __init__(self, iterator: Any, spec: Spec) -> None:
        self._iterator = iterator
        self._marks: _core.LoopIterator[Any] = _core.loop(None, *spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __aiter__(self) -> _AsyncLoop:
        return self

    async def __anext__(self) -> Any:
        self._marks.before_wait()
        try:
            item = await self._iterator.__anext__()
        except BaseException as error:
            self._marks.after_wait(error)
            raise
        self._marks.after_wait(None)
        return item
