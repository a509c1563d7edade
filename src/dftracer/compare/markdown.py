"""A comparison in Markdown, short enough for a chat or a pull request."""

from __future__ import annotations

from dftracer.compare.comparison import Comparison
from dftracer.compare.sections import Section, sections
from dftracer.compare.sentences import headline, letters, notes, reasons, side_text

__all__ = ["markdown", "plain"]


def plain(text: str) -> str:
    """Untrusted text: no markup, one line."""
    out = "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)
    return " ".join(out.split())


def _table(section: Section) -> list[str]:
    head, *rest = section.columns
    lines = ["", f"**{section.title}**", "", f"| {head} | {' | '.join(rest)} |"]
    lines.append(f"|---|{'---:|' * len(rest)}")
    for row in section.rows:
        name = f"**{plain(row.name)}**" if row.marked else plain(row.name)
        lines.append(f"| {name} | {' | '.join(row.cells)} |")
    return lines


def markdown(comparisons: list[Comparison]) -> str:
    """All of it."""
    names = letters(len(comparisons) + 1)
    sides = [comparisons[0].a, *(c.b for c in comparisons)]
    lines: list[str] = []
    for name, c in zip(names[1:], comparisons, strict=True):
        lines += [f"**{plain(headline(c, name))}**", ""]
        lines += [f"- {plain(line)}" for line in reasons(c)]
        lines += [f"- {plain(line)}" for line in notes(c)]
        for section in sections(c, name):
            lines += _table(section)
        lines.append("")
    lines += [f"- {n}: {plain(side_text(s))}" for n, s in zip(names, sides, strict=True)]
    return "\n".join(lines) + "\n"
