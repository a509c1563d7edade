"""A table of plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["print_table"]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Columns as wide as their longest entry; those named in `right` end at one edge."""
    # A name may hold line breaks or escape sequences of its own.
    shown = [[_printable(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    for row in (columns, *shown):
        cells = [
            text.rjust(width) if name in right else text.ljust(width)
            for name, text, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
