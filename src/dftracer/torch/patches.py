"""Observing the calls of other people's functions, once their modules are imported; everything can be undone.

No object takes another one's place. A Python function stays the object it is and gets other code, which calls
ours; a method written in C keeps its descriptor (native/module/observe.hpp). So the calls of whoever holds
the function, under whichever name, are observed, and identity, names, signature, defaults and pickling are
what they were: the program and a process that is not traced can exchange what they pickle.
"""

from __future__ import annotations

import sys

from dftracer import _core, _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CellType, CodeType, FunctionType, ModuleType
    from typing import Any, TypeAlias

    Around: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
    Met: TypeAlias = Callable[[ModuleType], None]

_ARGS, _KWARGS, _NOT_PLAIN = 0x04, 0x08, 0x20 | 0x80 | 0x200  # flags of code; generators and coroutines


class Observed:
    """A function of which we know the calls: what it was, and what was put around it, outermost last."""

    __slots__ = ("_ours", "function", "layers", "name", "own_closure", "own_code", "owner")

    def __init__(self, owner: Any, name: str, function: FunctionType) -> None:
        self.owner, self.name, self.function = owner, name, function
        self.own_code: CodeType = function.__code__
        self.own_closure: tuple[CellType, ...] | None = function.__closure__
        self.layers: list[Around] = []
        self._ours = self.own_code

    def rebuild(self) -> None:
        """Put all layers around the original, or restore it if there are none."""
        function = self.function
        if function.__code__ is not self._ours:
            return  # somebody else's doing since then
        if not self.layers:
            _core.exchange_code(function, self.own_code, self.own_closure)
            self._ours = self.own_code
            return
        call = compiled = self._original()
        for around in self.layers:
            below, call = call, around(call)
            if isinstance(call, _core.ObservedCall):
                continue  # compilers cannot look into it
            compiled = call if compiled is below else around(compiled)
            safely(out_of_sight, call)
        door = _door(self.own_code, call, compiled)
        safely(out_of_sight, door)
        _core.exchange_code(function, door.__code__, door.__closure__)
        self._ours = function.__code__

    def _original(self) -> Callable[..., Any]:
        function = self.function
        original = type(function)(
            self.own_code, function.__globals__, function.__name__, function.__defaults__, self.own_closure
        )
        original.__kwdefaults__ = function.__kwdefaults__
        original.__qualname__ = function.__qualname__
        return original


# Every function that is observed now, by its identity, and every method that is written in C.
observed: dict[int, Observed] = {}
watched: list[tuple[Any, str, Any]] = []  # owner, name, descriptor


class Patches:
    """What was changed by one part of the tracer, newest last."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._round = 0  # how often all was undone

    def around(self, owner: Any, name: str, around: Around) -> None:
        """Have every call of the function `owner.name` go through `around(original)`."""
        function = _function(owner, name)
        seen = observed.get(id(function))
        if seen is None:
            seen = observed[id(function)] = Observed(owner, name, function)
        seen.layers.append(around)
        seen.rebuild()

        def undo() -> None:
            seen.layers.remove(around)
            seen.rebuild()
            if not seen.layers:
                observed.pop(id(function), None)

        self._undo.append(undo)

    def instead(self, owner: type, name: str, around: Around) -> None:
        """Replace a method of a class that another compiler made, so that it has no code to exchange."""
        import functools  # noqa: PLC0415 - only where torch is in use

        original = vars(owner)[name]
        ours = functools.wraps(original)(around(original))
        setattr(owner, name, ours)

        def undo() -> None:
            if vars(owner).get(name) is ours:
                setattr(owner, name, original)

        self._undo.append(undo)

    def after_method(
        self,
        owner: Any,
        name: str,
        observer: Callable[[Any, Any, int], None],
        plain: tuple[type, ...],
        uninteresting: type,
    ) -> None:
        """Tell `observer` about calls of a method written in C (`_core.watch_method` says about which)."""
        descriptor = getattr(owner, name)
        if not _core.watch_method(descriptor, observer, plain, uninteresting):
            raise TypeError(f"{owner.__name__}.{name} is called in an unknown way")
        entry = (owner, name, descriptor)
        watched.append(entry)

        def undo() -> None:
            _core.unwatch_method(descriptor)
            watched.remove(entry)

        self._undo.append(undo)

    def when_imported(self, name: str, install: Callable[[ModuleType, Patches], None]) -> None:
        """Call `install(module, self)` once `name` has been imported, unless all is undone by then."""
        round_ = self._round

        def met(module: ModuleType) -> None:
            if self._round == round_:
                install(module, self)

        when_imported(name, met)

    def later(self, undo: Callable[[], None]) -> None:
        """Register another undo action."""
        self._undo.append(undo)

    def take_back(self) -> None:
        """Undo all, newest first."""
        self._round += 1
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                _messages.error(f"auto: a change could not be undone: {type(error).__name__}: {error}")


def _function(owner: Any, name: str) -> FunctionType:
    """The function itself, without what binds it; a class may have inherited it."""
    found = None
    for each in getattr(owner, "__mro__", (owner,)):
        if name in vars(each):
            found = vars(each)[name]
            break
    function: Any = getattr(found, "__func__", found)
    plain = type(function) is type(_function) and not function.__code__.co_flags & _NOT_PLAIN
    if not plain:
        raise TypeError(f"{getattr(owner, '__name__', owner)}.{name} is no plain function")
    return function  # type: ignore[no-any-return]


def _door(code: CodeType, call: Callable[..., Any], compiled: Callable[..., Any]) -> FunctionType:
    """A function with the parameters of `code`, all of which it hands to `call`; in a graph, to `compiled`.

    It claims to be where `code` is: for tracebacks, `inspect.getsource`, compilers that decide by the file.
    """
    names = code.co_varnames
    positional, end = list(names[: code.co_argcount]), code.co_argcount + code.co_kwonlyargcount
    by_name = names[code.co_argcount : end]
    rest = f"*{names[end]}" if code.co_flags & _ARGS else ""
    named_rest = f"**{names[end + bool(rest)]}" if code.co_flags & _KWARGS else ""
    parameters = positional.copy()
    if code.co_posonlyargcount:
        parameters.insert(code.co_posonlyargcount, "/")
    if rest or by_name:
        parameters.append(rest or "*")
    parameters += by_name
    arguments = positional + [rest] * bool(rest) + [f"{name}={name}" for name in by_name]
    if named_rest:
        parameters.append(named_rest)
        arguments.append(named_rest)
    prefix = "_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    ours = f"{prefix}call"
    if call is not compiled:  # compilers know the answer to be true, and look into that branch only
        ours = f"({prefix}compiled if {prefix}compiling() else {ours})"
    source = (
        f"def outer({prefix}call, {prefix}compiled, {prefix}compiling):\n"
        f" def door({', '.join(parameters)}): return {ours}({', '.join(arguments)})\n"
        f" return door"
    )
    made: dict[str, Any] = {}
    exec(compile(source, code.co_filename, "exec", dont_inherit=True), made)  # noqa: S102
    compiling = None if call is compiled else sys.modules["torch"].compiler.is_dynamo_compiling
    door: FunctionType = made["outer"](call, compiled, compiling)
    door.__code__ = door.__code__.replace(
        co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno
    )
    return door


def out_of_sight(function: Any) -> None:
    """Keep torch's compiler from compiling a function of ours for itself, as it does with the user's.

    Inside a graph it is still looked through. Torch's own functions, whose calls pass through ours, are on
    the compiler's list of what not to compile.
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    compiler: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if code is None or compiler is None:
        return
    if hasattr(compiler, "set_code_exec_strategy"):
        action = compiler._FrameAction
        compiler.set_code_exec_strategy(code, compiler._FrameExecStrategy(action.SKIP, action.DEFAULT))
    elif hasattr(compiler, "skip_code"):  # torch before 2.7
        compiler.skip_code(code)


# --- Acting when a module has been imported, without importing it

_awaited: dict[str, list[Met]] = {}


class _Watcher:
    """Ignores every import except the awaited ones, and acts when such a module is ready."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """The spec of an awaited module, whose execution ends with what waits for it."""
        if name not in _awaited:
            return None
        from importlib.util import find_spec  # noqa: PLC0415 - programs that never come here do not pay

        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        loader = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader may be shared, or asked again to reload.
            vars(loader).pop("exec_module", None)
            execute(module)
            _meet(name, module)

        if hasattr(loader, "__dict__"):
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watcher = _Watcher()


def when_imported(name: str, met: Met) -> None:
    """Call `met(module)` when `name` has been imported: now, or after its first import."""
    module = sys.modules.get(name)
    if module is not None and not half_made(module):
        _call(met, module)
        return
    _awaited.setdefault(name, []).append(met)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def stop_waiting() -> None:
    """Nobody waits for a module any more."""
    _awaited.clear()
    _leave()


def _leave() -> None:
    if _watcher in sys.meta_path:
        sys.meta_path.remove(_watcher)


def half_made(module: ModuleType) -> bool:
    """Whether it is being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _meet(name: str, module: ModuleType) -> None:
    while name in _awaited:  # who is met now may wait for the same module again: it is still being imported
        for met in _awaited.pop(name):
            _call(met, module)
    if not _awaited:
        _leave()


def _call(met: Met, module: ModuleType) -> None:
    try:
        met(module)
    except Exception as error:  # the program's import must not fail because of us
        _messages.always(f"auto: {module.__name__} is not watched: {type(error).__name__}: {error}")


# --- Our own mistakes inside the program

_failures: set[str] = set()


def safely(call: Callable[..., Any], *args: Any) -> Any:
    """Do our own work inside the program's: an error in it costs one line, not the program."""
    try:
        return call(*args)
    except Exception as error:
        failed(getattr(call, "__qualname__", call), error)
        return None


def failed(where: object, error: Exception) -> None:
    """One line, once. Where every step passes, the `try` stands in place: `safely` is a call more."""
    what = f"{where}: {type(error).__name__}: {error}"
    if what not in _failures:
        _failures.add(what)
        _messages.always(f"auto: an event was not recorded: {what}")
