"""Execution trace, Kineto, our own trace and more of a training loop: one schedule, joined by construction.

::

    from dftracer.collect import collect   # before dftracer.python: turns tracing on

    with collect("out", wait=1, warmup=1, active=2) as c:
        for batch in loader:
            train_step(batch)
            c.step()
    print(c.report)
"""

from __future__ import annotations

import importlib

from dftracer.collect._options import turn_tracing_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.collect._collector import Collector, CollectReport, collect
    from dftracer.collect._plugins import Context, Plugin

__all__ = ["CollectReport", "Collector", "Context", "Plugin", "collect"]

# The switch is read when the annotations are imported. The rest is loaded on use: the process that finishes
# files needs none of it.
turn_tracing_on()

_HOMES = {
    "CollectReport": "_collector",
    "Collector": "_collector",
    "Context": "_plugins",
    "Plugin": "_plugins",
    "collect": "_collector",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"dftracer.collect.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
