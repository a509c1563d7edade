"""A plain-text table, as wide as the terminal allows."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from dftracer._text import Column, fit

__all__ = ["print_table", "print_wrapped", "room"]


def room() -> int | None:
    """The width to fit; a pipe has none, unless COLUMNS is set."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return None


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their longest entry; if they do not fit, see `dftracer._text`."""
    # A name may contain line breaks or escape sequences.
    shown = [[_printable(text) for text in row] for row in rows]
    table = fit(columns, shown, room())
    for row in (table.head, *table.rows):
        for line in table.lines(row):
            texts = [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in line]
            print("  ".join(texts).rstrip())
    if table.dropped:
        print(f"(no room for: {', '.join(table.dropped)})")


def print_wrapped(text: str, indent: int = 0) -> None:
    """A sentence in lines that fit; all lines after the first are indented."""
    width = room()
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
