"""Text for people: numbers with units, tables that fit a width, in plain text or on a rich console, and pages."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dftracer._packages import need

if TYPE_CHECKING:
    from rich.console import Console

# --- Numbers for people


def seconds_text(s: float) -> str:
    """A duration with about three digits."""
    if s >= 120:
        minutes, rest = divmod(s, 60)
        hours, minutes = divmod(int(minutes), 60)
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02.0f} s"
    if s >= 1:
        return f"{s:.2f} s"
    if s >= 1e-3:
        return f"{s * 1e3:.3g} ms"
    return f"{s * 1e6:.3g} us" if s > 0 else "0 s"


def plural(n: int, noun: str, many: str | None = None) -> str:
    """`1 file`, `2 files`."""
    return f"{n} {noun}" if n == 1 else f"{n} {many or noun + 's'}"


def counted(n: int, noun: str, many: str | None = None) -> str:
    """`1 event`, `12 345 events`."""
    return f"{count_text(n)} {noun if n == 1 else many or noun + 's'}"


def times_text(n: int) -> str:
    """`once`, `twice`, `3 times`."""
    return {1: "once", 2: "twice"}.get(n, f"{count_text(n)} times")


def bytes_text(n: float) -> str:
    """A size in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def count_text(n: int) -> str:
    """A count with thin separators."""
    return f"{n:,}".replace(",", " ")


# --- Tables that fit a width: numbers stay whole, text gives way first, then columns that matter least


_MIN_TEXT = 14
_GAP = 2


class Column(NamedTuple):
    """One column: how it is aligned and what may happen to it if space is short."""

    name: str
    right: bool = False  # a number: never cut
    lead: bool = False  # names the row; moves to its own line rather than being cut too much
    tail: bool = False  # if the text is cut, its end is kept (paths)
    whole: bool = False  # text that is never cut
    drop: int = 0  # left out if nothing else helps, the lowest number first; 0: never


class Fitted(NamedTuple):
    """The table as it will be shown: a header, rows of one or two lines, and what is left out."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    rows: list[list[Any]]
    lead: int | None  # the column that has its own lines
    dropped: tuple[str, ...]

    def lines(self, row: Sequence[Any]) -> list[list[tuple[Any, int, bool]]]:
        """A row as lines of (cell, width, right)."""
        cells = [
            (cell, width, column.right)
            for cell, width, column in zip(row, self.widths, self.columns, strict=True)
        ]
        if self.lead is None:
            return [cells]
        alone = cells.pop(self.lead)
        return [[(alone[0], 0, False)], [("", 0, False), *cells]]

    @property
    def head(self) -> list[str]:
        return [c.name for c in self.columns]


def _length(cell: Any) -> int:
    return cell.cell_len if hasattr(cell, "cell_len") else len(cell)


def shortened(text: str, width: int, tail: bool = False) -> str:
    """`text` within `width`, with a mark where something was cut."""
    if len(text) <= width:
        return text
    return "…" + text[len(text) - width + 1 :] if tail else text[: width - 1] + "…"


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Any]], room: int | None) -> Fitted:
    """Lay a table out in `room` characters; None is as wide as it needs."""
    kept = list(range(len(columns)))
    dropped: list[str] = []
    while True:
        fitted = _fit(columns, rows, kept, room, tuple(dropped))
        can_go = [i for i in kept if columns[i].drop]
        if fitted is not None:
            return fitted
        if not can_go:
            made = _fit(columns, rows, kept, None, tuple(dropped))
            assert made is not None
            return made
        least = min(can_go, key=lambda i: columns[i].drop)
        kept.remove(least)
        dropped.append(columns[least].name)


def _fit(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    kept: list[int],
    room: int | None,
    dropped: tuple[str, ...],
) -> Fitted | None:
    """One try with these columns: as they are, with text cut, with the lead on lines of its own."""
    own = tuple(columns[i] for i in kept)
    cells = [[row[i] for i in kept] for row in rows]
    widths = [max(map(_length, (c.name, *column))) for c, *column in zip(own, *cells, strict=True)]
    if room is None or sum(widths) + _GAP * (len(widths) - 1) <= room:
        return Fitted(own, tuple(widths), cells, None, dropped)
    cut = _cut(own, widths, room - _GAP * (len(widths) - 1))
    if cut is not None:
        return Fitted(own, tuple(cut), _shortened(own, cells, cut), None, dropped)
    lead = next((i for i, c in enumerate(own) if c.lead), None)
    if lead is None or len(own) == 1:
        return None
    rest = [c for i, c in enumerate(own) if i != lead]
    below = [w for i, w in enumerate(widths) if i != lead]
    least = _cut(rest, below, room - _GAP * len(rest))
    if least is None:
        return None
    least.insert(lead, room)
    texts = _shortened(own, cells, least) if own[lead].tail else cells
    return Fitted(own, tuple(least), texts, lead, dropped)


def _cut(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int] | None:
    """The widths with the widest text cut until all fit; None where that is not enough."""
    out = list(widths)
    may = [i for i, c in enumerate(columns) if not (c.right or c.whole)]
    while sum(out) > room:
        widest = max(may, key=lambda i: out[i], default=None)
        if widest is None or out[widest] <= _MIN_TEXT:
            return None
        out[widest] -= 1
    return out


def _shortened(columns: Sequence[Column], rows: list[list[Any]], widths: Sequence[int]) -> list[list[Any]]:
    return [
        [
            shortened(cell, width, column.tail) if isinstance(cell, str) and not column.right else cell
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        for row in rows
    ]


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None = None
) -> list[str]:
    """A table as plain text: its head, its rows, and which columns there was no room for."""
    table = fit(columns, rows, room)
    cells = [line for row in (table.head, *table.rows) for line in table.lines(row)]
    gap = " " * _GAP
    lines = [gap.join(c.rjust(w) if right else c.ljust(w) for c, w, right in line).rstrip() for line in cells]
    return [*lines, f"(no room for: {', '.join(table.dropped)})"] if table.dropped else lines


# --- The same tables on a rich console


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
    table = fit(columns, rows, con.width - 1)
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


# --- Pages: one file that fetches nothing


def html_document(title: str, body: str, style: str, script: str = "") -> str:
    """A page that has this style and no script, or only this one; `body`: HTML."""

    def allowed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    policy = (
        f"default-src 'none'; style-src {allowed(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    if script:
        policy += f"; script-src {allowed(script)}"
        body += f"<script>{script}</script>\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )
