"""LOAD: trace files to columns.

`Trace` needs NumPy and is imported on first use: finding files and reading their heads works without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dftracer._packages import MissingExtra
from dftracer.format.trace_names import NoTraces
from dftracer.load.find import find_files, recover
from dftracer.load.process import ProcessInfo

if TYPE_CHECKING:
    from dftracer.load.trace import Trace

__all__ = ["MissingExtra", "NoTraces", "ProcessInfo", "Trace", "find_files", "recover"]


def __getattr__(name: str) -> Any:
    if name == "Trace":
        return importlib.import_module("dftracer.load.trace").Trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
