"""SIGTERM ends a process at once; a window that is open then is closed first.

Only where nobody else handles the signal: the default action follows at once, with the same exit status.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from dftracer.collect._forks import protect, unprotect

__all__ = ["Termination"]


class Termination:
    """Calls `close` before the default action of SIGTERM, from `watch` until `unwatch`."""

    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._pid = os.getpid()
        self._watching = False

    def watch(self) -> None:
        """Begin, in the main thread only; a handler of the program's is left alone."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._watching = True
            protect(self)

    def unwatch(self) -> None:
        """End, unless the program has set a handler since."""
        if not self._watching or threading.current_thread() is not threading.main_thread():
            return
        self._watching = False
        unprotect(self)
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def abandon_in_child(self) -> None:
        """A forked child dies from the signal as if it had never been watched."""
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._close("SIGTERM")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
