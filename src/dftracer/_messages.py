"""The tracer's own messages: one line each on stderr, filtered by level, every distinct one once."""

from __future__ import annotations

import sys

LEVELS = ("ERROR", "WARN", "INFO", "DEBUG")

# Messages with ever new values must not grow the traced program's memory without bound.
_MAX_DISTINCT = 1000

_level = 0
_printed: set[str] = set()


def set_level(name: str) -> None:
    """Show messages up to this level; the default is ERROR."""
    global _level  # noqa: PLW0603 - one level per process is the point
    _level = LEVELS.index(name)


def always(text: str) -> None:
    """A user's mistake that is shown at every level (a wrong setting)."""
    line = "dftracer: " + " ".join(text.split()) + "\n"
    if line in _printed or len(_printed) >= _MAX_DISTINCT:
        return
    _printed.add(line)
    try:
        sys.stderr.write(line)
    except Exception:
        # stderr may be None, closed or a broken pipe; the traced program must not notice.
        return


def error(text: str) -> None:
    """Part of the trace is lost or wrong."""
    always(text)


def warn(text: str) -> None:
    """Something is not as requested, but the trace is complete."""
    if _level >= 1:
        always(text)


def info(text: str) -> None:
    """What the tracer decided on its own."""
    if _level >= 2:
        always(text)


def debug(text: str) -> None:
    """For debugging the tracer."""
    if _level >= 3:
        always(text)
