"""One line, once per run, that says what was found."""

from __future__ import annotations

import contextlib
import os
import sys

_MARK = "DFTRACER_AUTO_MARK"  # set by `dftracer run`: the file that the first to announce makes

_names: list[str] = []
_announced = False


def found(name: str) -> None:
    """Something whose steps are recorded has been imported."""
    if name and name not in _names:
        _names.append(name)


def found_unless(name: str, other: str) -> None:
    """The same, for a framework that another one is built on."""
    if other not in _names:
        found(name)


def training_begins(begins: bool, _: object) -> None:
    """A loader begins: say so on stderr, unless another process of this run has, or no mark is set."""
    global _announced  # noqa: PLW0603 - once per process
    if begins or _announced:  # frameworks are imported by the time it has begun
        return
    _announced = True
    mark = os.environ.get(_MARK)
    if not mark or not _names:
        return
    with contextlib.suppress(OSError):
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        names = sorted(_names, key=lambda name: name != "PyTorch")  # frameworks after what they are built on
        sys.stderr.write(f"dftracer: {', '.join(names)}: steps are recorded\n")
        sys.stderr.flush()
