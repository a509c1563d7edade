"""Which files are traces, by their names: one rule for every reader."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = [
    "ROWS_SUFFIX",
    "SUFFIXES",
    "NoTraces",
    "Paths",
    "find_files",
    "find_rows",
    "find_traces",
    "is_trace_name",
    "of_one_process",
    "part_of",
    "rows_of",
]

SUFFIXES = (".pfw", ".pfw.gz")
ROWS_SUFFIX = ".rows"  # of the step rows beside a trace
# What commands of earlier versions left when they were killed.
_UNFINISHED = (".tmp.pfw", ".tmp.pfw.gz")

# The recorder's file names, one for each process (and part).
_OF_ONE_PROCESS = re.compile(r"-[0-9a-f]{16}-(app|preload|fork)(-part\d+)?\.pfw(\.gz)?$")
_PART = re.compile(r"-part(\d{1,9})(?=\.pfw(\.gz)?$)")

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class NoTraces(FileNotFoundError):
    """Nothing to read was found under the given paths."""


def is_trace_name(name: str) -> bool:
    """Whether a file of this name, found in a directory, is a trace. Hidden and unfinished files are not."""
    return name.endswith(SUFFIXES) and not name.startswith(".") and not name.endswith(_UNFINISHED)


def find_traces(paths: Paths) -> list[str]:
    """The trace files among `paths`: files as given, directories with everything below them.

    A file with several names (links, `a` and `./a`, a process killed while its file was renamed) counts once.
    """
    found: dict[object, str] = {}
    for path in _listed(paths):
        for each in _below(path) if os.path.isdir(path) else [path]:
            found.setdefault(_identity(each), each)
    return list(found.values())


def find_rows(paths: Paths) -> list[str]:
    """The files with step rows among `paths`: files as given, beside given traces, and in directories."""
    found: dict[object, str] = {}
    for path in _listed(paths):
        if os.path.isdir(path):
            below = [*_below(path, lambda name: name.endswith(ROWS_SUFFIX) and not name.startswith("."))]
        elif is_trace_name(os.path.basename(path)):
            below = [p for p in [rows_of(path)] if os.path.isfile(p)]
        else:
            below = [path]
        for each in below:
            found.setdefault(_identity(each), each)
    return list(found.values())


def rows_of(trace: str | os.PathLike[str]) -> str:
    """The name of the file with the step rows of a trace."""
    whole = part_of(Path(trace))[0]
    return whole.removesuffix(".gz").removesuffix(".pfw") + ROWS_SUFFIX


def _identity(path: str) -> object:
    try:
        s = os.stat(path)
    except (OSError, ValueError):
        return path
    return (s.st_dev, s.st_ino) if s.st_ino else path


def find_files(paths: Paths) -> list[Path]:
    """All trace files meant by `paths`, like `find_traces`; a missing path is an error."""
    given = _listed(paths)
    for path in given:
        if not os.path.exists(path):
            raise NoTraces(f"{path} does not exist")
        if not os.path.isdir(path) and not os.path.isfile(path):
            raise NoTraces(f"{path} is not a regular file")
    found = find_traces(given)
    if not found:
        raise NoTraces(
            f"no .pfw or .pfw.gz file under {', '.join(given)}."
            " Was DFTRACER_ENABLE=1 set when the program ran?"
        )
    return [Path(path) for path in found]


def _listed(paths: Paths) -> list[str]:
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    return [os.fspath(path) for path in given]


def _below(directory: str, wanted: Callable[[str], bool] = is_trace_name) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            # Opening a pipe of that name would wait forever.
            if wanted(name) and os.path.isfile(path):
                yield path


def of_one_process(name: str) -> bool:
    """Whether a file of this name contains only one process; merged ones and other tracers' may have more."""
    return _OF_ONE_PROCESS.search(name) is not None


def part_of(file: Path) -> tuple[str, int]:
    """The trace a file is a part of, and which one: recorders may begin a new file at a given size."""
    found = _PART.search(file.name)
    if found is None:
        return str(file), 1
    return str(file.with_name(_PART.sub("", file.name))), int(found.group(1))
