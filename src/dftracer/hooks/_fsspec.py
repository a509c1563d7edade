"""fsspec file systems (local, memory, s3, gcs ...): `data.io.open/read/write/close`."""

from __future__ import annotations

import importlib
from typing import Any

from dftracer.hooks._patch import DATA_IO, replace, trace_method

__all__ = ["install"]


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    system = args[0]
    protocol = system.protocol if isinstance(system.protocol, str) else system.protocol[0]
    path = args[1] if len(args) > 1 else kwargs.get("path")
    return {"path": str(path), "protocol": protocol}


class TracedFile:
    """A file of an fsspec file system whose reads and writes are events."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path

    def read(self, *args: Any) -> Any:
        """As the file's own."""
        with DATA_IO.read(args={"path": self._path, "count": args[0] if args else -1}):
            return self._file.read(*args)

    def readinto(self, buffer: Any) -> Any:
        """As the file's own."""
        with DATA_IO.read(args={"path": self._path, "count": len(buffer)}):
            return self._file.readinto(buffer)

    def write(self, data: Any) -> Any:
        """As the file's own."""
        with DATA_IO.write(args={"path": self._path, "count": len(data)}):
            return self._file.write(data)

    def close(self) -> None:
        """As the file's own."""
        with DATA_IO.close(args={"path": self._path}):
            self._file.close()

    def __enter__(self) -> TracedFile:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        with DATA_IO.close(args={"path": self._path}):
            return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __next__(self) -> Any:
        return next(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def install() -> None:
    """Trace `open` of every file system, the whole-object calls, and what is done with the files."""
    AbstractFileSystem = importlib.import_module("fsspec.spec").AbstractFileSystem  # noqa: N806 - a class

    original = AbstractFileSystem.open

    def traced_open(self: Any, path: Any, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        facts = {**_target((self, path), {}), "mode": mode}
        with DATA_IO.open(args=facts):
            file = original(self, path, mode, *args, **kwargs)
        # Text modes wrap a binary file of a second, traced call.
        return TracedFile(file, facts["path"]) if "b" in mode else file

    replace(AbstractFileSystem, "open", traced_open)
    trace_method(AbstractFileSystem, "cat_file", DATA_IO.read, _target)
    trace_method(AbstractFileSystem, "pipe_file", DATA_IO.write, _target)
