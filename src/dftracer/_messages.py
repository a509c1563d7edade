"""The tracer's own messages: one line each on stderr, filtered by level, every distinct one once."""

from __future__ import annotations

import sys

__all__ = ["LEVELS", "always", "debug", "error", "info", "set_level", "warn"]

LEVELS = ("ERROR", "WARN", "INFO", "DEBUG")

# A message made from ever new values must not grow the memory of the traced program without bound.
_MAX_DISTINCT = 1000

_level = 0
_said: set[str] = set()


def set_level(name: str) -> None:
    """Show messages up to this level; the default is ERROR."""
    global _level  # noqa: PLW0603 - one level per process is the point
    _level = LEVELS.index(name)


def always(text: str) -> None:
    """A mistake of the user's that no level may hide (a wrong setting)."""
    line = "dftracer: " + " ".join(text.split()) + "\n"
    if line in _said or len(_said) >= _MAX_DISTINCT:
        return
    _said.add(line)
    try:
        sys.stderr.write(line)
    except Exception:
        # stderr may be None, closed or a broken pipe; the traced program must not learn of it from us.
        return


def error(text: str) -> None:
    """Something of the trace is lost or wrong."""
    always(text)


def warn(text: str) -> None:
    """Something is not as asked for, yet the trace is whole."""
    if _level >= 1:
        always(text)


def info(text: str) -> None:
    """What the tracer decided by itself."""
    if _level >= 2:
        always(text)


def debug(text: str) -> None:
    """For those who debug the tracer."""
    if _level >= 3:
        always(text)
