"""The live screen: one frame per second, and a few keys."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

from dftracer._terminal import safe_console
from dftracer.load._need import need
from dftracer.top.frame import Frame
from dftracer.top.show import frame_text

__all__ = ["run_screen"]

_HINT = "q quits, p pauses"
_PAUSED = "paused: p resumes, q quits"


def run_screen(take: Callable[[], Frame], interval: float) -> None:
    """Show frames until `q` or Ctrl-C."""
    with contextlib.suppress(OSError):
        os.nice(19)  # the job comes first
    console = safe_console()
    live = need("rich.live")
    paused = False
    with _keys() as key, live.Live(console=console, screen=True, auto_refresh=False) as screen:
        frame = take()
        while True:
            hint = _PAUSED if paused else _HINT
            screen.update(frame_text(frame, console.width, hint=hint), refresh=True)
            pressed = key(interval)
            if pressed in ("q", "\x03", "\x1b"):
                return
            if pressed == "p":
                paused = not paused
            elif not paused:
                frame = take()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key up to a timeout; '' if none was pressed."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield sleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
