"""Tables of the reports on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dftracer._columns import Column, fit
from dftracer.load._need import need

if TYPE_CHECKING:
    from rich.console import Console


_GAP = 2
_LONGEST_BAR = 30


def bar_room(con: Console, beside: int) -> int:
    """How long a bar may be next to columns of a given width."""
    return max(4, min(_LONGEST_BAR, con.width - beside))


def bar(length: float, style: str, blamed: bool = False) -> Any:
    """A bar; a value above zero is never shown as empty. `blamed`: its row is the culprit's."""
    drawn = need("rich.text").Text("█" * round(length) or "▏", style=style)
    return drawn.append(" ◀", style="bold red") if blamed else drawn


def print_table(con: Console, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> None:
    """A title, a head, a rule and rows of text or of rich Text, within the width of the console."""
    text = need("rich.text").Text
    table = fit(columns, rows, con.width - 1, _GAP)
    con.print()
    con.print(text(title, style="bold"))
    heads = [[(text(str(c), style="bold"), w, r) for c, w, r in line] for line in table.lines(table.head)]
    made = [_joined(line, text) for line in heads]
    body = [_joined(line, text) for row in table.rows for line in table.lines(row)]
    wide = min(con.width - 1, max((line.cell_len for line in (*made, *body)), default=0))
    for line in (*made, text("─" * wide, style="dim"), *body):
        line.rstrip()
        con.print(line, no_wrap=True, overflow="ignore", crop=False)
    if table.dropped:
        con.print(text(f"(no room for: {', '.join(table.dropped)})", style="dim"))


def _joined(cells: list[tuple[Any, int, bool]], text: Any) -> Any:
    line = text()
    for i, (cell, width, right) in enumerate(cells):
        shown = cell.copy() if isinstance(cell, text) else text(str(cell))
        space = " " * max(0, width - shown.cell_len)
        line.append(" " * (_GAP if i else 0))
        line.append(space if right else "")
        line.append_text(shown)
        line.append("" if right else space)
    return line
