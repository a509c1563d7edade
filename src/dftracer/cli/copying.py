"""What merge, slice and repair share: their inputs, and the records as they appear in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.cli.main import CommandError
from dftracer.cli.outputs import identity
from dftracer.format.reader import parse_line
from dftracer.load.files import NoTraces, find_files

__all__ = ["Damage", "copied_lines", "input_files", "whole_number"]

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


class Damage:
    """What could not be copied out of some files."""

    def __init__(self) -> None:
        self.members = 0  # damaged or truncated
        self.lines = 0  # not a record, or cut

    def __bool__(self) -> bool:
        return bool(self.members or self.lines)

    def count(self, counts: dict[str, Any]) -> None:
        """Add what a reader counted in one file."""
        self.members += counts["members_cut"]
        # The last line of a damaged member breaks off with it.
        self.lines += counts["bad_lines"] + max(0, counts["cut_lines"] - counts["members_cut"])

    def words(self) -> str:
        return " and ".join(
            plural(count, what)
            for count, what in ((self.members, "damaged gzip member"), (self.lines, "broken line"))
            if count
        )

    def as_json(self) -> dict[str, int]:
        return {"members": self.members, "lines": self.lines}


def copied_lines(path: Path, damage: Damage) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record that the other commands read, with its text; `damage` counts what they skip."""
    from dftracer.load._scan import Scanner

    scanner = Scanner(path, 1, 1 << 20, text=True)
    for raw in scanner:
        for line in bytes(raw.get("text", b"")).splitlines():
            try:
                record = parse_line(line)
            except ValueError:
                record = None
            yield line.decode("utf-8", "replace"), record if isinstance(record, dict) else {}
    damage.count(scanner.counts())


def whole_number(value: Any) -> int | None:
    """A number in a record, if it is valid as a time or a process id."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -_LARGEST <= number <= _LARGEST else None
