"""Which files are traces, by their names: one rule for every reader; and the files beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

TYPE_CHECKING = False  # `typing` takes long to load, and `dftracer run` imports this
if TYPE_CHECKING:
    from typing import Any

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


def is_rows_name(path: str | os.PathLike[str]) -> bool:
    """Whether a file of this name has step rows."""
    name = os.path.basename(os.fspath(path))
    return name.endswith(ROWS_SUFFIX) and not name.startswith(".")


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
            below = [*_below(path, is_rows_name)]
        elif is_trace_name(os.path.basename(path)):
            below = [p for p in [rows_of(path)] if os.path.isfile(p)]
        else:
            below = [path] if is_rows_name(path) else []
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


# --- Which run a file belongs to, and how the run's program ended if only the one who started it knows


_HEAD_LINES = 16  # it is the first record, or the second
_SHELL_SIGNALS = 128  # a shell's exit code for a program that a signal ended, plus the signal


def run_of_file(path: Path) -> str | None:
    """The run that a trace file names, if it does."""
    import gzip  # noqa: PLC0415 - slow to import

    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for _ in range(_HEAD_LINES):
                line = file.readline(1 << 20)
                if b'"name":"HH","cat":"dftracer"' in line and b'"run":' in line:
                    return str(json.loads(line)["args"]["run"])
                if b'"name":"run","cat":"dftracer"' in line:  # of earlier versions
                    return str(json.loads(line)["args"]["value"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError):
        return None
    return None


def note_failure(directory: Path, run: str, code: int) -> None:
    """Write down, beside its traces, the exit code that the program of a run failed with.

    A signal is its negative number, or what a shell makes of it.
    """
    sent = (
        signal_name(-code if code < 0 else code - _SHELL_SIGNALS) if not 0 <= code <= _SHELL_SIGNALS else None
    )
    noted = {"run": run, "exit_code": None if sent else code, "signal": sent}
    try:
        (directory / _failure_file(run)).write_text(json.dumps(noted) + "\n", encoding="utf-8")
    except OSError:  # a full disk: the traces have been written, and the program's own code is what counts
        return


def noted_failure(directory: Path, run: str) -> dict[str, Any] | None:
    """What `note_failure` wrote, if it did."""
    try:
        noted = json.loads((directory / _failure_file(run)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return noted if isinstance(noted, dict) and noted.get("run") == run else None


def signal_name(number: int) -> str | None:
    """`SIGKILL` for 9; None if there is no such signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _failure_file(run: str) -> str:
    return f"ended-{run}.json"
