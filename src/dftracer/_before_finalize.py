"""Work to finish before the trace ends (threads that are still writing, late results)."""

from __future__ import annotations

import atexit

from dftracer import _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["before_finalize", "run_before_finalize"]

_hooks: list[Callable[[], None]] = []


def before_finalize(hook: Callable[[], None]) -> None:
    """Call `hook` at the start of every `finalize()`, and when the interpreter ends without one."""
    if not _hooks:
        atexit.register(run_before_finalize)
    _hooks.append(hook)


def run_before_finalize() -> None:
    """Run all hooks; a failing one stops neither the others nor the program."""
    for hook in tuple(_hooks):
        try:
            hook()
        except Exception as error:
            _messages.error(f"before the end of the trace: {type(error).__name__}: {error}")
