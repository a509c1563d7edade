"""safetensors: whole files of tensors, as `checkpoint.io.read` and `checkpoint.io.write`."""

from __future__ import annotations

import importlib
from typing import Any

from dftracer.hooks._patch import CHECKPOINT_IO, trace_method
from dftracer.torch.patches import Patches

__all__ = ["install"]


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[0] if args else kwargs.get("filename"))}


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[1] if len(args) > 1 else kwargs.get("filename"))}


def install(patches: Patches) -> None:
    """Trace `load_file` and `save_file` of the frameworks that are there."""
    for framework in ("numpy", "torch"):
        try:
            module = importlib.import_module(f"safetensors.{framework}")
        except ImportError:
            continue
        trace_method(patches, module, "load_file", CHECKPOINT_IO.read, _first)
        trace_method(patches, module, "save_file", CHECKPOINT_IO.write, _second)
