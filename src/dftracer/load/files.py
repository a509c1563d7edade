"""The trace files the user means, those of killed processes completed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dftracer.format.files import NoTraces, find_files

__all__ = ["NoTraces", "find_files", "recover_left_behind"]


def recover_left_behind(files: Iterable[Path]) -> list[str]:
    """Let the recorder complete the traces of killed processes; returns the files it completed.

    Reading never depends on it: without the native recorder, or where the directory cannot be written,
    what the files hold is what is read.
    """
    try:
        from dftracer import _core  # noqa: PLC0415 - the recorder may be absent where only analysis is installed
    except ImportError:
        return []
    done: list[str] = []
    for directory in dict.fromkeys(str(f.parent) for f in files):
        try:
            done += _core.recover(directory)
        except Exception:
            continue
    return done
