"""Changes to other modules, each of which can be undone."""

from __future__ import annotations

import sys

from dftracer import _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Patches", "failed", "out_of_sight", "safely"]


class Patches:
    """What was changed, newest last."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; a later change by other code is left alone when this one is undone."""
        own = name in vars(owner)
        before = vars(owner).get(name)

        def undo() -> None:
            if vars(owner).get(name) is not value:
                return
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

        safely(out_of_sight, value)
        setattr(owner, name, value)
        self._undo.append(undo)

    def later(self, undo: Callable[[], None]) -> None:
        """Register another undo action."""
        self._undo.append(undo)

    def take_back(self) -> None:
        """Undo all, newest first."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as error:
                _messages.error(f"auto: a change could not be undone: {type(error).__name__}: {error}")


def out_of_sight(function: Any) -> None:
    """Keep torch's compiler from compiling a function of ours for itself, as it does with the user's.

    Inside a graph it is still looked through. Torch's own functions, which ours take the place of, are on the
    compiler's list of what not to compile.
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
