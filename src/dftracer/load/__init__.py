"""LOAD: trace files to columns.

`Trace` needs NumPy and is imported when it is asked for: finding files and reading their heads works without.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dftracer.load._need import MissingExtra
from dftracer.load.files import NoTraces, find_files
from dftracer.load.process import ProcessInfo

if TYPE_CHECKING:
    from dftracer.load.trace import Filter, Trace

__all__ = ["Filter", "MissingExtra", "NoTraces", "ProcessInfo", "Trace", "find_files"]


def __getattr__(name: str) -> Any:
    if name in ("Filter", "Trace"):
        return getattr(importlib.import_module("dftracer.load.trace"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
