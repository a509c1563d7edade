"""torch.save and torch.load, as `checkpoint.io.write` and `checkpoint.io.read`."""

from __future__ import annotations

from typing import Any

from dftracer.hooks._patch import trace_method
from dftracer.python import ai

__all__ = ["install"]


def _name(target: Any) -> str:
    return str(getattr(target, "name", target)) if not hasattr(target, "getbuffer") else "<memory>"


def install() -> None:
    """Trace both."""
    import torch  # noqa: PLC0415 - only where it is used

    trace_method(torch, "save", ai.checkpoint.io.write, lambda args, kw: {"path": _name(args[1] if len(args) > 1 else kw["f"])})
    trace_method(torch, "load", ai.checkpoint.io.read, lambda args, kw: {"path": _name(args[0] if args else kw["f"])})
