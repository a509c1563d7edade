"""The trace files the user means, and completing those that killed processes left."""

from __future__ import annotations

import os

from dftracer.format.files import SUFFIXES, NoTraces, Paths, find_files, find_traces

__all__ = ["NoTraces", "find_files", "recover"]


def recover(paths: Paths) -> list[str]:
    """Complete the traces of killed processes from the rings they left; returns the completed files.

    Reading never depends on it: without the native recorder, or if the directory cannot be written to,
    the files are read as they are.
    """
    try:
        from dftracer import _core  # noqa: PLC0415 - the recorder may be absent where only analysis is installed
    except ImportError:
        return []
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    # A process that was killed at once has left a ring and no file: it is looked for where its file would be.
    places = {
        os.path.abspath(p) if _is_folder(p) else os.path.dirname(os.path.abspath(p)): _is_folder(p)
        for p in given
    }
    for file in find_traces(given):
        if os.path.isfile(file):
            places.setdefault(os.path.dirname(os.path.abspath(file)), False)
    done: list[str] = []
    for directory, below in places.items():
        try:
            done += _core.recover(directory, below)
        except Exception:
            continue
    return done


def _is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory, or would be one: nothing that is not there has the name of a trace."""
    return os.path.isdir(path) or not (os.path.exists(path) or os.fspath(path).endswith(SUFFIXES))
