"""What a command shows on the terminal, and the files it writes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import stat
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dftracer._console import has_unicode, safe_console
from dftracer._text import Column, table_lines
from dftracer.cli.main import CommandError
from dftracer.format.torch_files import COPIES
from dftracer.format.trace_names import SUFFIXES
from dftracer.format.writer import is_trace, maker_of

# --- On the terminal


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=not has_unicode(sys.stdout), default=str)
    sys.stdout.write("\n")


def console() -> Any:
    """The terminal; a pipe has no width, so tables keep their own."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return safe_console(width=wide)


@contextlib.contextmanager
def progress(
    args: argparse.Namespace, what: str, *, counted: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, if it is a terminal: of bytes, or of things that are counted."""
    if args.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars

    amount = (bars.MofNCompleteColumn(),) if counted else (bars.DownloadColumn(), bars.TimeRemainingColumn())
    columns = (bars.TextColumn(what), bars.BarColumn(), *amount)
    with bars.Progress(*columns, console=safe_console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _width() -> int | None:
    """The width to fit; a pipe has none, unless COLUMNS is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return None


def print_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A plain table, within the width of the terminal."""
    # A name may contain line breaks or escape sequences.
    for line in table_lines(columns, [[_printable(text) for text in row] for row in rows], _width()):
        print(line)


def print_wrapped(text: str, indent: int = 0) -> None:
    """A sentence in lines that fit; all lines after the first are indented."""
    width = _width()
    if width is None or len(text) <= width:
        print(text)
        return
    for line in textwrap.wrap(
        text,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        replace_whitespace=False,
    ):
        print(line)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- Files: never an input, never half a file, never in place of an existing trace

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


def check_suffix(path: str | Path, suffixes: Sequence[str]) -> str:
    """The suffix, which chooses the format; one that is not listed is an error."""
    found = Path(path).suffix
    if found not in suffixes:
        raise CommandError(f"{path}: the name must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    return found


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
    """A temporary file to write to; `path` appears, complete, when the block ends, and not at all if the block
    fails or removes the file.

    The file is hidden and is not named like a trace, so leftovers from a crash are never read.
    """
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():  # a terminal, a pipe, /dev/null
        yield real
        return
    before = identity(real)
    # Not named after the process: containers that share a directory have equal pids.
    temporary = real.with_name(f".dftracer-{os.urandom(8).hex()}.part")
    try:
        yield temporary
        if temporary.exists():
            _put(temporary, real, before)
    finally:
        with contextlib.suppress(OSError):  # what went wrong before matters more
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, errors: str = "backslashreplace") -> None:
    """Write a whole text file; names in a trace need not be valid UTF-8."""
    with appearing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors=errors)


def write_page(args: argparse.Namespace, text: str, summary: str) -> None:
    """Write the page that --html asks for, and say what is in it."""
    path = Path(args.html)
    write_text(path, text, errors="replace")
    if not args.quiet:
        print(f"{path}: {summary}", file=sys.stderr if args.json else sys.stdout)


def _put(temporary: Path, real: Path, before: tuple[int, int] | None) -> None:
    """Give a file its name, unless another process has put one there since `before`."""
    try:
        if before is None:
            os.link(temporary, real)
            return
    except OSError:  # the name is taken, or the file system has no links
        pass
    if identity(real) not in (None, before):
        raise CommandError(f"{real} was written by another process meanwhile and is kept; use another -o")
    os.replace(temporary, real)
