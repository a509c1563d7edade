"""torch.save and torch.load, as `checkpoint.io.write` and `checkpoint.io.read`."""

from __future__ import annotations

import importlib
from typing import Any

from dftracer.hooks._patch import CHECKPOINT_IO, trace_method
from dftracer.torch.patches import Patches

__all__ = ["install"]


def _name(target: Any) -> str:
    return str(getattr(target, "name", target)) if not hasattr(target, "getbuffer") else "<memory>"


def install(patches: Patches) -> None:
    """Trace both."""
    torch = importlib.import_module("torch")

    trace_method(
        patches,
        torch,
        "save",
        CHECKPOINT_IO.write,
        lambda args, kw: {"path": _name(args[1] if len(args) > 1 else kw["f"])},
    )
    trace_method(
        patches,
        torch,
        "load",
        CHECKPOINT_IO.read,
        lambda args, kw: {"path": _name(args[0] if args else kw["f"])},
    )
