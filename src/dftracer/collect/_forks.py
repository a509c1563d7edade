"""What a forked child must not do: write into its parent's trace, record for a profiler it cannot stop.

The child inherits the observer together with the unwritten part of its buffer and the open file; a DataLoader
worker that is forked inside a window would fill the parent's file with its own operators.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

__all__ = ["guard_forks", "protect", "silence", "unprotect"]

_protected: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def guard_forks() -> None:
    """Have children of this process leave its windows alone; may be called often."""
    global _registered  # noqa: PLW0603 - a fork handler cannot be taken back
    if not _registered:
        _registered = True
        os.register_at_fork(after_in_child=_in_child)


def protect(window: Any) -> None:
    """`window.abandon_in_child()` is called in children forked from now on."""
    _protected.add(window)


def unprotect(window: Any) -> None:
    """This window has ended."""
    _protected.discard(window)


def _in_child() -> None:
    for window in tuple(_protected):
        with contextlib.suppress(Exception):
            window.abandon_in_child()
    _protected.clear()


def silence(path: str) -> None:
    """Discard what this process still has to write to an open file."""
    wanted = os.path.realpath(path)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError):
            if os.path.realpath(f"/proc/self/fd/{name}") == wanted:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, int(name), inheritable=False)
                os.close(nowhere)
