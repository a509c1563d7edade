"""A comparison as one HTML file: no script, nothing fetched, text of traces stays text."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources

from dftracer.compare.comparison import Comparison
from dftracer.compare.sections import Row, Section, sections
from dftracer.compare.statistics import Change
from dftracer.compare.words import headline, letters, notes, reasons, side_text

__all__ = ["html_page"]


def html_page(comparisons: list[Comparison], title: str = "dftracer compare") -> str:
    """The whole page as text."""
    names = letters(len(comparisons) + 1)
    sides = [comparisons[0].a, *(c.b for c in comparisons)]
    told = "".join(
        f"<dt>{n}</dt><dd>{escape(side_text(s))}{_command(s.run.get('command'))}</dd>"
        for n, s in zip(names, sides, strict=True)
    )
    body = "".join(
        _comparison(c, n, "h1" if i == 0 else "h2")
        for i, (n, c) in enumerate(zip(names[1:], comparisons, strict=True))
    )
    style = (resources.files("dftracer.compare") / "page.css").read_text(encoding="utf-8")
    only = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{only}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"{body}<section><h3>The runs</h3><dl>{told}</dl></section>\n</main>\n"
        "<footer>Made by dftracer. This file holds everything it shows and fetches nothing."
        " Intervals hold for all stages together, in 95 of 100 comparisons.</footer>\n</body>\n</html>\n"
    )


def _command(command: object) -> str:
    return f"<br><code>{escape(str(command))}</code>" if command else ""


def _comparison(c: Comparison, name: str, level: str) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in reasons(c))
    said = "".join(f'<p class="note">{escape(line)}</p>' for line in notes(c))
    tables = "".join(_table(s) for s in sections(c, name))
    listed = f"<ul>{lines}</ul>" if lines else ""
    return f"<{level}>{escape(headline(c, name))}</{level}>{listed}{said}{tables}\n"


def _table(section: Section) -> str:
    plotted = any(r.change is not None for r in section.rows)
    reach = _reach(section.rows) if plotted else 0.0
    heads = "".join(f'<th scope="col">{escape(c)}</th>' for c in section.columns)
    if plotted:
        heads += f'<th scope="col">-{100 * reach:.0f} % … +{100 * reach:.0f} %</th>'
    rows = []
    for row in section.rows:
        cells = "".join(f"<td>{escape(x)}</td>" for x in row.cells)
        plot = f'<td class="plot">{_plot(row.change, row.marked, reach)}</td>' if plotted else ""
        kind = ' class="marked"' if row.marked else ""
        rows.append(f"<tr{kind}><td>{escape(row.name)}</td>{cells}{plot}</tr>")
    return (
        f"<section><h3>{escape(section.title)}</h3><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></section>"
    )


def _reach(rows: list[Row]) -> float:
    """How far the axis goes to both sides: what changed must fit, what is not known may stick out."""
    ends = [abs(e) for r in rows if r.marked and r.change and r.change.interval for e in r.change.interval]
    ends += [abs(r.change.relative) for r in rows if r.change and r.change.relative is not None]
    return min(max([0.05, *ends]) * 1.1, 2.0)


def _plot(c: Change | None, marked: bool, reach: float) -> str:
    """The change as a dot on its interval; the dashed line is no change."""
    if c is None or c.relative is None or c.interval is None:
        return ""
    kind = "none" if not marked else "slower" if c.relative > 0 else "faster"

    def x(value: float) -> str:
        return f"{50 + 50 * max(-1.0, min(1.0, value / reach)):.2f}%"

    low, high = c.interval
    words = f"{100 * c.relative:+.1f} %, {100 * low:+.1f} % to {100 * high:+.1f} %"
    return (
        f'<svg role="img" aria-label="{words}"><line class="axis" x1="50%" x2="50%" y1="0" y2="24"/>'
        f'<line class="{kind}" x1="{x(low)}" x2="{x(high)}" y1="12" y2="12" stroke-width="3"/>'
        f'<circle class="{kind}" cx="{x(c.relative)}" cy="12" r="5"/></svg>'
    )
