"""LOAD: trace files to columns.

`Trace` and `read_rows` need NumPy and are imported on first use: finding files and reading their heads works
without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dftracer._packages import MissingExtra
from dftracer.format.trace_names import NoTraces
from dftracer.load.find import find_files, recover
from dftracer.load.process import ProcessInfo

if TYPE_CHECKING:
    from dftracer.load.rows import read_rows
    from dftracer.load.trace import Trace

__all__ = ["MissingExtra", "NoTraces", "ProcessInfo", "Trace", "find_files", "read_rows", "recover"]

_HOMES = {"Trace": "trace", "read_rows": "rows"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"dftracer.load.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
