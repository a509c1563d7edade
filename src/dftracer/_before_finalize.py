"""Work to finish before the trace ends (threads still writing, late results), and what made it end."""

from __future__ import annotations

import atexit
import os
import sys

from dftracer import _core, _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

__all__ = ["before_finalize", "note_exception", "run_before_finalize"]

_LONGEST_TEXT = 500
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


def note_exception() -> None:
    """Record the exception that ends the process, as a fact about it: what, and where in the user's code.

    The interpreter keeps what it has printed (`sys.last_value`), whatever hooks the program has. A process of
    multiprocessing, which prints it itself, has it in flight while it ends.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):  # torch.multiprocessing leaves with it once it has passed the error on
        error = error.__context__
    if error is None or isinstance(error, SystemExit) or hasattr(sys, "ps1") or not _core.stats()["rings"]:
        return
    _core.log_metadata("PR", "exception", type(error).__name__)
    _core.log_metadata("PR", "exception_us", str(_core.time_ns() // 1000))
    text = _text_of(error)
    if text:
        _core.log_metadata("PR", "exception_text", text)
    place = _users_line(error.__traceback__)
    if place:
        _core.log_metadata("PR", "exception_at", place)


def _text_of(error: BaseException) -> str:
    """What it says, on one line; nothing if only the program's own code could tell."""
    own = type(error).__str__ not in (BaseException.__str__, OSError.__str__, KeyError.__str__)
    if own or not all(type(each) in (str, int, float, type(None)) for each in error.args):
        return ""
    return " ".join(str(error).split())[:_LONGEST_TEXT]


def _users_line(traceback: TracebackType | None) -> str:
    """The innermost line of the program itself, otherwise the innermost of all."""
    last = own = ""
    libraries = tuple({os.path.dirname(os.__file__), *(p for p in sys.path if p.endswith("-packages"))})
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        last = f"{file}:{traceback.tb_lineno}"
        if not file.startswith(("<", *libraries)):
            own = last
        traceback = traceback.tb_next
    return own or last
