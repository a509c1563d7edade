"""fsspec file systems (local, memory, s3, gcs ...): `data.io.open/read/write/close`.

Reads and writes are those of fsspec's own kinds of files: buffered ones, which all object stores use, and
local ones. A file in memory belongs to Python, and what is done with it is no I/O.
"""

from __future__ import annotations

import importlib
from typing import Any

from dftracer.hooks._patch import DATA_IO, trace_method
from dftracer.torch.patches import Patches


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    system = args[0]
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    path = args[1] if len(args) > 1 else kwargs.get("path")
    return {"path": str(path), "protocol": protocol}


def _opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**_target(args, kwargs), "mode": args[2] if len(args) > 2 else kwargs.get("mode", "rb")}


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    count = args[1] if len(args) > 1 else kwargs.get("length", -1)
    return {"path": args[0].path, "count": count if type(count) is int else -1}


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    data = args[1] if len(args) > 1 else kwargs.get("data", b"")
    size = memoryview(data).nbytes if type(data) in (bytes, bytearray, memoryview) else -1
    return {"path": args[0].path, "count": size}


def _closed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": args[0].path}


def install(patches: Patches) -> None:
    """Trace `open` of every file system, the whole-object calls, and what is done with the files."""
    spec = importlib.import_module("fsspec.spec")
    local = importlib.import_module("fsspec.implementations.local")

    system = spec.AbstractFileSystem
    trace_method(patches, system, "open", DATA_IO.open, _opened)
    trace_method(patches, system, "cat_file", DATA_IO.read, _target)
    trace_method(patches, system, "pipe_file", DATA_IO.write, _target)
    for file in (spec.AbstractBufferedFile, local.LocalFileOpener):
        trace_method(patches, file, "read", DATA_IO.read, _asked)
        trace_method(patches, file, "write", DATA_IO.write, _given)
        trace_method(patches, file, "close", DATA_IO.close, _closed)
    trace_method(patches, spec.AbstractBufferedFile, "readinto", DATA_IO.read, _given)
