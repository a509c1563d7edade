"""A comparison on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dftracer._columns import Column
from dftracer._terminal import safe_console
from dftracer.compare.comparison import Comparison
from dftracer.compare.sections import sections
from dftracer.compare.sentences import headline, letters, notes, reasons, side_text
from dftracer.load._need import need
from dftracer.report.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_comparison"]


def print_comparison(comparisons: list[Comparison], console: Console | None = None) -> None:
    """One block for each run that is compared with the first."""
    need("rich.console")
    con = console or safe_console()
    text = need("rich.text").Text
    names = letters(len(comparisons) + 1)
    sides = [comparisons[0].a, *(c.b for c in comparisons)]
    for name, side in zip(names, sides, strict=True):
        con.print(text(f"{name}  {side_text(side)}", style="dim"))
    for name, c in zip(names[1:], comparisons, strict=True):
        con.print()
        con.print(text(headline(c, name), style="bold"))
        for line in reasons(c):
            con.print(text(f"  {line}"))
        for line in notes(c):
            con.print(text(line, style="yellow"))
        for section in sections(c, name):
            columns = _columns(section.columns)
            rows: list[list[Any]] = []
            for row in section.rows:
                cells = [row.name, *row.cells]
                # rich never cuts its Text, so only marked cells become one; a stage's name is short.
                rows.append([text(x, style="bold") for x in cells] if row.marked else cells)
            print_table(con, section.title, columns, rows)


def _columns(names: list[str]) -> list[Column]:
    return [Column(n, right=i > 0, lead=i == 0) for i, n in enumerate(names)]
