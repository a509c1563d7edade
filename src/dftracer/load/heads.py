"""Who wrote which file, without NumPy: for commands that work where no extra is installed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dftracer.load._scan import Scanner
from dftracer.load.files import find_files, recover_left_behind
from dftracer.load.process import ProcessInfo, assign_ranks, peek, take_first_pid

__all__ = ["processes_of", "read_through"]


def processes_of(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], recover: bool = True
) -> list[ProcessInfo]:
    """The processes of all files that `paths` mean, from the head of each file."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files = find_files(given)
    if recover and recover_left_behind(files):
        files = find_files(given)
    processes = [peek(f) for f in files]
    assign_ranks(processes)
    return processes


def read_through(file: Path) -> ProcessInfo:
    """All that the records of one file say of its process, with the counts of what was met."""
    info = ProcessInfo(file)
    scanner = Scanner(file, 1, 1 << 20)
    for raw in scanner:
        info.take(raw["meta"])
        take_first_pid(info, raw)
    info.counts = scanner.counts()
    return info
