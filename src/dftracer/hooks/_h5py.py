"""h5py: opening files and reading or writing datasets, as `data.io.*`."""

from __future__ import annotations

from typing import Any

from dftracer.hooks._patch import trace_method
from dftracer.python import ai

__all__ = ["install"]


def _file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[1] if len(args) > 1 else kwargs.get("name"))}


def _dataset(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[0].file.filename), "dataset": str(args[0].name)}


def install() -> None:
    """Trace files and datasets."""
    import h5py  # noqa: PLC0415 - only where it is used

    trace_method(h5py.File, "__init__", ai.data.io.open, _file)
    trace_method(h5py.File, "close", ai.data.io.close, lambda args, _: {"path": str(args[0].filename)})
    trace_method(h5py.Dataset, "__getitem__", ai.data.io.read, _dataset)
    trace_method(h5py.Dataset, "__setitem__", ai.data.io.write, _dataset)
