"""Events of an unannotated training program.

::

    DFTRACER_ENABLE=1 DFTRACER_AUTO=torch python train.py     # or: dftracer run -- python train.py

    from dftracer import auto
    auto.install()             # from code; uninstall() restores everything

Only boundaries are watched: where a batch is awaited, where backward and the optimizer begin and end, where
batches are copied, collectives called, checkpoints written. What the program annotates with the `ai` tree is
never recorded twice. Nothing here imports torch: hooks are installed when the program imports it.
"""

from __future__ import annotations

from dftracer.auto._switch import ADAPTERS, adapter, install, installed, uninstall

__all__ = ["ADAPTERS", "adapter", "install", "installed", "modules", "uninstall"]

# Every traced interpreter imports this before the program begins: slow imports happen on first use.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.torch.rule import modules


def __getattr__(name: str) -> object:
    if name == "modules":
        from dftracer.torch.rule import modules  # noqa: PLC0415

        return modules
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
