"""The trace files the user means, and completing those that killed processes left."""

from __future__ import annotations

import os

from dftracer.format.files import NoTraces, Paths, find_files, find_traces

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
    done: list[str] = []
    for directory in dict.fromkeys(
        os.path.dirname(f) or "." for f in find_traces(paths) if os.path.isfile(f)
    ):
        try:
            done += _core.recover(directory)
        except Exception:
            continue
    return done
