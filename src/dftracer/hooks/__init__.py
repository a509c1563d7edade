"""Events for reads that system calls do not show or do not explain: object storage and file formats.

::

    from dftracer import hooks
    hooks.install()             # for those of fsspec, h5py, safetensors and torch that are already imported
    hooks.install("fsspec")     # imports it if necessary
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from dftracer import _session
from dftracer._packages import not_installed
from dftracer.python import ai
from dftracer.torch.patches import Patches

__all__ = ["LIBRARIES", "install", "uninstall"]

LIBRARIES: tuple[str, ...] = ("fsspec", "h5py", "safetensors", "torch")

# The operations are attributes created at run time, with the same names as methods.
_DATA_IO: Any = ai.data.io
_CHECKPOINT_IO: Any = ai.checkpoint.io

_installed: dict[str, Patches] = {}


def install(*libraries: str) -> tuple[str, ...]:
    """Trace these libraries, or all that are already imported; returns the names of those now traced."""
    for library in libraries:
        if library not in LIBRARIES:
            raise ValueError(f"no hooks for {library!r}; there are hooks for {', '.join(LIBRARIES)}")
    if not _session.SETTINGS.enable:
        return ()
    wanted = libraries or tuple(name for name in LIBRARIES if name in sys.modules)
    for library in wanted:
        if library in _installed:
            continue
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise ImportError(not_installed(library)) from error
        _installed[library] = Patches()
        _TRACE[library](_installed[library])
    return tuple(_installed)


def uninstall() -> None:
    """Restore everything, newest first."""
    for patches in reversed(_installed.values()):
        patches.undo_all()
    _installed.clear()


def _trace_method(
    patches: Patches,
    owner: Any,
    name: str,
    node: Any,
    describe: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]],
) -> None:
    """Record each call as an event of `node`; `describe(args, kwargs)` returns its args."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any, **kwargs: Any) -> Any:
            try:
                facts = describe(args, kwargs)
            except Exception:  # an unexpected way of calling must not break the program
                facts = {}
            with node(args=facts):
                return original(*args, **kwargs)

        return traced

    if isinstance(vars(owner).get(name), FunctionType):
        patches.around(owner, name, around)
    else:
        patches.replace_method(owner, name, around)


# --- fsspec file systems (local, memory, s3, gcs ...): `data.io.open/read/write/close`
#
# Reads and writes are those of fsspec's own kinds of files: buffered ones, which all object stores use, and
# local ones. A file in memory belongs to Python, and what is done with it is no I/O.


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


def _trace_fsspec(patches: Patches) -> None:
    """Trace `open` of every file system, the whole-object calls, and what is done with the files."""
    spec = importlib.import_module("fsspec.spec")
    local = importlib.import_module("fsspec.implementations.local")

    system = spec.AbstractFileSystem
    _trace_method(patches, system, "open", _DATA_IO.open, _opened)
    _trace_method(patches, system, "cat_file", _DATA_IO.read, _target)
    _trace_method(patches, system, "pipe_file", _DATA_IO.write, _target)
    for file in (spec.AbstractBufferedFile, local.LocalFileOpener):
        _trace_method(patches, file, "read", _DATA_IO.read, _asked)
        _trace_method(patches, file, "write", _DATA_IO.write, _given)
        _trace_method(patches, file, "close", _DATA_IO.close, _closed)
    _trace_method(patches, spec.AbstractBufferedFile, "readinto", _DATA_IO.read, _given)


# --- h5py: opening files and reading or writing datasets, as `data.io.*`


def _file(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[1] if len(args) > 1 else kwargs.get("name"))}


def _closing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[0].filename)}


def _dataset(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[0].file.filename), "dataset": str(args[0].name)}


def _trace_h5py(patches: Patches) -> None:
    """Trace files and datasets."""
    h5py = importlib.import_module("h5py")

    _trace_method(patches, h5py.File, "__init__", _DATA_IO.open, _file)
    _trace_method(patches, h5py.File, "close", _DATA_IO.close, _closing)
    _trace_method(patches, h5py.Dataset, "__getitem__", _DATA_IO.read, _dataset)
    _trace_method(patches, h5py.Dataset, "__setitem__", _DATA_IO.write, _dataset)


# --- safetensors: whole files of tensors, as `checkpoint.io.read` and `checkpoint.io.write`


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[0] if args else kwargs.get("filename"))}


def _second(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"path": str(args[1] if len(args) > 1 else kwargs.get("filename"))}


def _trace_safetensors(patches: Patches) -> None:
    """Trace `load_file` and `save_file` of the frameworks that are there."""
    for framework in ("numpy", "torch"):
        try:
            module = importlib.import_module(f"safetensors.{framework}")
        except ImportError:
            continue
        _trace_method(patches, module, "load_file", _CHECKPOINT_IO.read, _first)
        _trace_method(patches, module, "save_file", _CHECKPOINT_IO.write, _second)


# --- torch.save and torch.load, as `checkpoint.io.write` and `checkpoint.io.read`


def _name(target: Any) -> str:
    return str(getattr(target, "name", target)) if not hasattr(target, "getbuffer") else "<memory>"


def _trace_torch(patches: Patches) -> None:
    """Trace both."""
    torch = importlib.import_module("torch")

    _trace_method(
        patches,
        torch,
        "save",
        _CHECKPOINT_IO.write,
        lambda args, kw: {"path": _name(args[1] if len(args) > 1 else kw["f"])},
    )
    _trace_method(
        patches,
        torch,
        "load",
        _CHECKPOINT_IO.read,
        lambda args, kw: {"path": _name(args[0] if args else kw["f"])},
    )


_TRACE: dict[str, Callable[[Patches], None]] = {
    "fsspec": _trace_fsspec,
    "h5py": _trace_h5py,
    "safetensors": _trace_safetensors,
    "torch": _trace_torch,
}
