"""Observes calls of other people's functions, once their modules are imported; everything can be undone.

No object is replaced. A Python function stays the object it is and gets other code, which calls ours; a
method written in C keeps its descriptor (native/module/observe.hpp). So calls are observed whoever holds the
function, under whichever name, and its identity, names, signature, defaults and pickling do not change: the
program and a process that is not traced can exchange what they pickle.
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
    ImportCallback: TypeAlias = Callable[[ModuleType], None]

_ARGS, _KWARGS, _NOT_PLAIN = 0x04, 0x08, 0x20 | 0x80 | 0x200  # flags of code; generators and coroutines


class Observed:
    """An observed function: its own code, and the layers around it, outermost last."""

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
            return  # somebody else has changed it since
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
            safely(hide_from_dynamo, call)
        trampoline = _trampoline(self.own_code, call, compiled)
        safely(hide_from_dynamo, trampoline)
        _core.exchange_code(function, trampoline.__code__, trampoline.__closure__)
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
        self._undo_count = 0

    def around(self, owner: Any, name: str, around: Around) -> None:
        """Make every call of the function `owner.name` go through `around(original)`."""
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

    def replace_method(self, owner: type, name: str, around: Around) -> None:
        """Replace a method that has no code to exchange, because another compiler (Cython) made the class."""
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
        """Notify `observer` of calls of a method written in C (of which ones, see `_core.watch_method`)."""
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
        undo_count = self._undo_count

        def callback(module: ModuleType) -> None:
            if self._undo_count == undo_count:
                install(module, self)

        when_imported(name, callback)
        self._undo.append(lambda: stop_waiting(name, callback))

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Register another undo action."""
        self._undo.append(undo)

    def undo_all(self) -> None:
        """Undo everything, newest first."""
        self._undo_count += 1
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                _messages.error(f"auto: a change could not be undone: {type(error).__name__}: {error}")


def _function(owner: Any, name: str) -> FunctionType:
    """The plain function, unbound; a class may have inherited it."""
    found = None
    for each in getattr(owner, "__mro__", (owner,)):
        if name in vars(each):
            found = vars(each)[name]
            break
    function: Any = getattr(found, "__func__", found)
    plain = type(function) is type(_function) and not function.__code__.co_flags & _NOT_PLAIN
    if not plain:
        raise TypeError(f"{getattr(owner, '__name__', owner)}.{name} is not a plain function")
    return function  # type: ignore[no-any-return]


def _trampoline(code: CodeType, call: Callable[..., Any], compiled: Callable[..., Any]) -> FunctionType:
    """A function that takes the parameters of `code` and passes them to `call`; in a graph, to `compiled`.

    Its file and line are those of `code`: for tracebacks, `inspect.getsource`, compilers that go by the file.
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
    if call is not compiled:  # Dynamo folds this to True and traces only that branch
        ours = f"({prefix}compiled if {prefix}compiling() else {ours})"
    source = (
        f"def outer({prefix}call, {prefix}compiled, {prefix}compiling):\n"
        f" def trampoline({', '.join(parameters)}): return {ours}({', '.join(arguments)})\n"
        f" return trampoline"
    )
    made: dict[str, Any] = {}
    exec(compile(source, code.co_filename, "exec", dont_inherit=True), made)  # noqa: S102
    compiling = None if call is compiled else sys.modules["torch"].compiler.is_dynamo_compiling
    trampoline: FunctionType = made["outer"](call, compiled, compiling)
    trampoline.__code__ = trampoline.__code__.replace(
        co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno
    )
    return trampoline


def hide_from_dynamo(function: Any) -> None:
    """Keep Dynamo from compiling a function of ours on its own, as it would a function of the user's.

    Inside a graph it is still inlined. Torch's own functions, which call ours, are on Dynamo's skip list.
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


# --- Callbacks for when a module has been imported

_callbacks: dict[str, list[ImportCallback]] = {}


class _Watcher:
    """An import hook that calls what waits for a module once that is ready, and ignores all others."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """The spec of a module that is waited for; its execution ends with the callbacks."""
        if name not in _callbacks:
            return None
        from importlib.util import find_spec  # noqa: PLC0415 - most programs never get here

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
            # The loader may be shared, or used again to reload.
            vars(loader).pop("exec_module", None)
            execute(module)
            _run_callbacks(name, module)

        if hasattr(loader, "__dict__"):
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watcher = _Watcher()


def when_imported(name: str, callback: ImportCallback) -> None:
    """Call `callback(module)` when `name` has been imported: now, or after its first import."""
    module = sys.modules.get(name)
    if module is not None and not is_being_imported(module):
        _call(callback, module)
        return
    _callbacks.setdefault(name, []).append(callback)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def stop_waiting(name: str, callback: ImportCallback) -> None:
    """Do not call it, if that has not happened."""
    waiting = _callbacks.get(name, [])
    if callback in waiting:
        waiting.remove(callback)
        if not waiting:
            del _callbacks[name]
    if not _callbacks:
        _remove_watcher()


def _remove_watcher() -> None:
    if _watcher in sys.meta_path:
        sys.meta_path.remove(_watcher)


def is_being_imported(module: ModuleType) -> bool:
    """Whether it is being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _run_callbacks(name: str, module: ModuleType) -> None:
    while name in _callbacks:  # a callback may wait for the same module again: it is still being imported
        for callback in _callbacks.pop(name):
            _call(callback, module)
    if not _callbacks:
        _remove_watcher()


def _call(callback: ImportCallback, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:  # the program's import must not fail because of us
        _messages.always(f"auto: {module.__name__} is not watched: {type(error).__name__}: {error}")


# --- Our own errors inside the program

_failures: set[str] = set()


def safely(call: Callable[..., Any], *args: Any) -> Any:
    """Call our own code inside the program: an error in it is reported once and does not propagate."""
    try:
        return call(*args)
    except Exception as error:
        failed(getattr(call, "__qualname__", call), error)
        return None


def failed(where: object, error: Exception) -> None:
    """Report an error once, in one line. Code that runs in every step has its own `try`, to save a call."""
    what = f"{where}: {type(error).__name__}: {error}"
    if what not in _failures:
        _failures.add(what)
        _messages.always(f"auto: an event was not recorded: {what}")
