"""The events of a training program that nobody annotated.

::

    DFTRACER_ENABLE=1 DFTRACER_AUTO=torch python train.py     # or: dftracer run -- python train.py

    from dftracer import auto
    auto.install()             # from code; uninstall() puts everything back

Only boundaries are watched: where a batch is awaited, where backward and the optimizer begin and end, where
batches are copied, collectives called, checkpoints written. What an event of the `ai` tree says by hand is
never said twice. Nothing here imports torch: it is prepared for, and met when the program imports it.
"""

from __future__ import annotations

from dftracer.auto._adapters import ADAPTERS, adapter
from dftracer.auto._switch import install, installed, uninstall

__all__ = ["ADAPTERS", "adapter", "install", "installed", "modules", "uninstall"]

# Every traced interpreter imports this before the program begins: what costs time is found when asked for.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.auto._modules import modules


def __getattr__(name: str) -> object:
    if name == "modules":
        from dftracer.auto._modules import modules  # noqa: PLC0415

        return modules
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
