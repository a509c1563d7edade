"""h5py: opening files and reading or writing datasets, as `data.io.*`."""

from __future__ import annotations

import importlib
from typing import Any

from dftracer.hooks._patch import DATA_IO, trace_method
from dftracer.torch.patches import Patches

__all__ = ["install"]


def _file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[1] if len(args) > 1 else kwargs.get("name"))}


def _dataset(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[0].file.filename), "dataset": str(args[0].name)}


def install(patches: Patches) -> None:
    """Trace files and datasets."""
    h5py = importlib.import_module("h5py")

    trace_method(patches, h5py.File, "__init__", DATA_IO.open, _file)
    trace_method(patches, h5py.File, "close", DATA_IO.close, lambda args, _: {"path": str(args[0].filename)})
    trace_method(patches, h5py.Dataset, "__getitem__", DATA_IO.read, _dataset)
    trace_method(patches, h5py.Dataset, "__setitem__", DATA_IO.write, _dataset)
