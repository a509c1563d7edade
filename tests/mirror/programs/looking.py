"""What a program can see of itself; printed, so that a traced run can be compared with an untraced one."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from typing import Any

__all__ = ["descriptors", "dispositions", "exact", "look_at"]

# Ours are above: a program that counts or closes its own never meets them.
_HIGHEST = 200


def look_at(name: str, thing: Any) -> None:
    """The type of an object, everything that can be asked of it, and what is in it."""
    kind = type(thing)
    # A function may be observed: its names, its signature and what pickle makes of it stay.
    function = inspect.isroutine(thing)
    if not function:
        print(f"{name}: {kind.__module__}.{kind.__qualname__}", *sorted(dir(thing)))
    if not (function or isinstance(thing, type)):
        print(f"{name} holds", *sorted(getattr(thing, "__dict__", {})))
    if callable(thing):
        words = (getattr(thing, key, None) for key in ("__module__", "__qualname__", "__name__", "__doc__"))
        print(f"{name} is called", *words, id(thing) == id(_by_name(thing)))


def _by_name(function: Any) -> Any:
    """What the module of a function has under its name: the function itself, if it can be pickled."""
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for part in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found


def exact(name: str, *values: Any) -> None:
    """Numbers, bit by bit."""
    print(name, *(float(getattr(v, "detach", lambda v=v: v)()).hex() for v in values))


def descriptors() -> None:
    """The open ones, by number and kind."""
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        if number < _HIGHEST:
            try:
                target = os.readlink(f"/proc/self/fd/{number}")
            except OSError:  # the listing's own
                continue
            print("descriptor", number, target.split(":")[0].removeprefix(os.getcwd()))


def dispositions() -> None:
    """Which signals are ignored, and which have handlers."""
    for number in sorted(signal.valid_signals()):
        handler = signal.getsignal(number)
        print("signal", int(number), getattr(handler, "name", None) or getattr(handler, "__name__", handler))
    print("blocked", sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))
