"""What merge, slice and repair share: their inputs, and the records as they appear in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dftracer.cli.main import CommandError
from dftracer.cli.outputs import identity
from dftracer.format.files import NoTraces, find_files
from dftracer.format.reader import Problems, text_lines
from dftracer.format.text import parse_line, stripped

__all__ = ["copied_lines", "input_files", "whole_number"]

_LARGEST = (1 << 63) - 1


def input_files(paths: Iterable[str], not_below: Path | None = None) -> tuple[list[Path], list[str]]:
    """The trace files that the arguments mean, after completing those of killed processes.

    Files in the output folder `not_below` were written by an earlier run and are not read again, unless
    named explicitly.
    """
    from dftracer.load.files import recover

    given = list(paths)
    try:
        recovered = recover(given)
        files = find_files(given)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    if not_below is not None:
        named = {identity(p) for p in given}
        folder = not_below.resolve()
        files = [f for f in files if folder not in f.resolve().parents or identity(f) in named]
        if not files:
            raise CommandError(f"all traces are in {not_below}; write to another directory with -o")
    return files, recovered


def copied_lines(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record with its text; lines that are not records are counted in `problems`."""
    for line, is_last in text_lines(path, problems):
        text = stripped(line)
        if not text:
            continue
        try:
            record = parse_line(text)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("name"), str):
            yield text.decode("utf-8", "replace").removesuffix("]").rstrip(" \t,"), record
        elif is_last:
            problems.cut_last_line.append(str(path))
        else:
            problems.skipped["not a record"] += 1


def whole_number(value: Any) -> int | None:
    """A number in a record, if it is valid as a time or a process id."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_LARGEST <= number <= _LARGEST else None
