"""Who wrote which file, without NumPy: for commands that work without any extra."""

from __future__ import annotations

from pathlib import Path

from dftracer.format.files import Paths
from dftracer.load._scan import Scanner
from dftracer.load.files import find_files
from dftracer.load.process import ProcessInfo, assign_ranks, peek, take_first_pid

__all__ = ["processes_of", "read_through"]


def processes_of(paths: Paths) -> list[ProcessInfo]:
    """The processes of all files in `paths`, from the head of each file."""
    processes = [peek(f) for f in find_files(paths)]
    assign_ranks(processes)
    return processes


def read_through(file: Path) -> ProcessInfo:
    """Everything the records of one file say about its process, with counts of what was found."""
    info = ProcessInfo(file)
    scanner = Scanner(file, 1, 1 << 20)
    for raw in scanner:
        info.take(raw["meta"])
        take_first_pid(info, raw)
    info.counts = scanner.counts()
    return info
