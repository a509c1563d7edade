"""Compiled graphs in the trace.

`dynamo` is a default `Dynamo`, and `from dftracer.python import dynamo` gives it: `dynamo.compile`,
`dynamo.update`, `with dynamo`, …. Nothing here imports torch before something is compiled.
"""

from __future__ import annotations

import sys
from typing import Any

from dftracer.python.dynamo._backend import create_backend
from dftracer.python.dynamo._tracer import CAT_DYNAMO, Dynamo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.compat.graphs import CallStackRecord, create_detailed_op_name

__all__ = [
    "CAT_DYNAMO",
    "CallStackRecord",
    "Dynamo",
    "create_backend",
    "create_detailed_op_name",
    "dftracer_dynamo_backend",
    "dynamo",
]


class _Default(Dynamo):
    """The tracer `dynamo`, which also gives access to the other names of this module."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in __all__:
                return getattr(sys.modules[__name__], name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _default, ()


def _default() -> Dynamo:
    return dynamo


dynamo: Dynamo = _Default()
compile = dynamo.compile
update = dynamo.update
enable = dynamo.enable
disable = dynamo.disable
backend = dftracer_dynamo_backend = dynamo.backend


def __getattr__(name: str) -> Any:
    if name in ("CallStackRecord", "create_detailed_op_name"):
        from dftracer.compat import graphs  # noqa: PLC0415 - for programs that know these names from elsewhere

        return getattr(graphs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
