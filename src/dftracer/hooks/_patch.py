"""Replacing attributes of other modules, and undoing it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dftracer.python import ai

__all__ = ["CHECKPOINT_IO", "DATA_IO", "installed", "recording", "replace", "restore_all", "trace_method"]

# The operations are attributes created at run time, with the same names as methods.
DATA_IO: Any = ai.data.io
CHECKPOINT_IO: Any = ai.checkpoint.io

_Change = tuple[Any, str, Any, bool]

installed: dict[str, list[_Change]] = {}
_current: list[_Change] = []


@contextmanager
def recording(library: str) -> Iterator[None]:
    """Changes made inside belong to `library`."""
    global _current  # noqa: PLW0603
    _current = installed.setdefault(library, [])
    yield


def replace(owner: Any, name: str, value: Any) -> None:
    """Set an attribute and remember what was there."""
    own = name in vars(owner)
    _current.append((owner, name, vars(owner).get(name), own))
    setattr(owner, name, value)


def restore_all() -> None:
    """Undo every `replace`, newest first."""
    for changes in installed.values():
        for owner, name, before, own in reversed(changes):
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)
    installed.clear()


def trace_method(
    owner: Any,
    name: str,
    node: Any,
    describe: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]],
) -> None:
    """Record each call as an event of `node`; `describe(args, kwargs)` gives its args."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        try:
            facts = describe(args, kwargs)
        except Exception:  # an unexpected way of calling must not break the program
            facts = {}
        with node(args=facts):
            return original(*args, **kwargs)

    replace(owner, name, traced)
