"""Files that commands write: never an input, never half a file, never in place of an existing trace."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dftracer._torch_files import COPIES
from dftracer.cli.main import CommandError
from dftracer.format.files import SUFFIXES
from dftracer.format.writer import is_trace, maker_of

__all__ = ["OutputNames", "appearing", "check_folder", "check_output", "identity", "is_torch_name"]

_TORCH = re.compile(r"(kineto_trace|torch_et)_\d+(_w\d+)?\.json(\.gz)?|.*\.pt\.trace\.json(\.gz)?")


def identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """What all names of a file have in common; None if there is no file."""
    try:
        s = os.stat(path)
    except (OSError, ValueError):
        return None
    return s.st_dev, s.st_ino


def check_output(path: Path, inputs: Iterable[Path], *, force: bool) -> Path:
    """Where to write, or a clear error: inputs and traces stay; other files stay unless -f is given."""
    there = identity(path)
    if there is not None:
        if path.is_dir():
            raise CommandError(f"{path} is a directory; name a file in it")
        if any(identity(given) == there for given in inputs):
            raise CommandError(f"{path} is one of the inputs; write to another file with -o")
        if not force:
            raise CommandError(f"{path} exists; use -f to overwrite it, or -o to write elsewhere")
        if _is_recorded_trace(path):
            raise CommandError(
                f"{path} is a trace that was not made by a command: -f replaces earlier outputs only;"
                " choose another name with -o, or remove it yourself"
            )
    if not path.parent.is_dir():
        raise CommandError(f"{path.parent} does not exist; create it first")
    return path


def _is_recorded_trace(path: Path) -> bool:
    if not stat.S_ISREG(path.stat().st_mode) or path.stat().st_size == 0:
        return False
    if is_torch_name(path.name):
        return not (path.parent / COPIES).exists()
    named = path.name.endswith(SUFFIXES)
    return (named or is_trace(path)) and maker_of(path) is None


def is_torch_name(name: str) -> bool:
    """Whether a file is named like a trace of PyTorch's."""
    return _TORCH.fullmatch(name) is not None


def check_folder(folder: Path, inputs: Iterable[Path]) -> None:
    """A folder for outputs: not one that contains an input."""
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{folder} is a file; give a directory")
    there = identity(folder)
    if there is None:
        return
    for given in inputs:
        if identity(given.parent) == there:
            raise CommandError(
                f"{folder} contains {given.name}, an input; write to another directory with -o"
            )


class OutputNames:
    """A name in one folder for each input: its own, with a number before it if another folder has the same.

    All files of a folder get the same number so that the parts of a trace stay together.
    """

    def __init__(self, inputs: Iterable[Path]) -> None:
        by_folder: dict[Path, set[str]] = {}
        for path in inputs:
            by_folder.setdefault(path.parent, set()).add(path.name)
        taken: set[str] = set()
        self._before: dict[Path, str] = {}
        for folder, names in by_folder.items():
            before = ""
            number = 1
            while not taken.isdisjoint(before + name for name in names):
                number += 1
                before = f"{number}-"
            self._before[folder] = before
            taken.update(before + name for name in names)

    def __call__(self, path: Path) -> str:
        return self._before[path.parent] + path.name


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A place to write to; `path` appears, complete, when the block ends, and not at all if the block fails
    or removes the place.

    The place is hidden and is not named like a trace, so leftovers from a crash are never read.
    """
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():  # a terminal, a pipe, /dev/null
        yield real
        return
    before = identity(real)
    # Not named after the process: containers that share a directory have equal pids.
    place = real.with_name(f".dftracer-{os.urandom(8).hex()}.part")
    try:
        yield place
        if place.exists():
            _put(place, real, before)
    finally:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)


def _put(place: Path, real: Path, before: tuple[int, int] | None) -> None:
    """Give a file its name, unless another process has put one there since `before`."""
    try:
        if before is None:
            os.link(place, real)
            return
    except OSError:  # the name is taken, or the file system has no links
        pass
    if identity(real) not in (None, before):
        raise CommandError(f"{real} was written by another process meanwhile and is kept; use another -o")
    os.replace(place, real)
