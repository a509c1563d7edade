"""A verdict on the terminal, and as one HTML file."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any

from dftracer.postmortem.verdict import Verdict, since_text, tree_of

_MOST_ROWS = 16
_MOST_LINES = 60
_COLUMNS = ("rank", "state", "step", "stage", "since", "where", "what")


def _rows(verdict: Verdict, most: int | None) -> tuple[list[list[str]], int]:
    """The ranks as a table, those first that the verdict is about; and how many are left out."""
    evidence = verdict.evidence
    by_rank = {row["rank"]: row for row in verdict.to_json()["ranks"]}
    ranks = sorted(evidence.ranks, key=lambda r: (r.rank != verdict.rank, r.collective is not None, r.rank))
    shown = ranks if most is None else ranks[:most]
    rows = []
    for r in shown:
        row = by_rank[r.rank]
        rows.append(
            [
                str(r.rank),
                row["state"],
                "" if r.step is None else str(r.step),
                (r.stage or "").replace("_", " "),
                since_text(r, evidence) if r.alive else "",
                r.where or "",
                _what(row),
            ]
        )
    return rows, len(ranks) - len(shown)


def _what(row: dict[str, Any]) -> str:
    if row["exception"]:
        return str(row["exception"])
    if row["signal"]:
        return str(row["signal"])
    if row["exit_code"] is not None:
        return f"exit code {row['exit_code']}"
    if row["collective"]:
        c = row["collective"]
        number = "" if c["seq"] is None else f" #{c['seq']}"
        return f"{c['op']}{number}" + (f", group {c['group']}" if c["group"] is not None else "")
    return str(row["open_file"] or "")


def lines(verdict: Verdict) -> list[str]:
    """The verdict, then the evidence."""
    out = [f"{verdict.kind}: {verdict.sentence}", *verdict.more, ""]
    rows, left = _rows(verdict, _MOST_ROWS)
    widths = [max(len(c), *(len(r[i]) for r in rows)) if rows else len(c) for i, c in enumerate(_COLUMNS)]
    for row in [list(_COLUMNS), *rows]:
        out.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if left:
        out.append(f"... and {left} more; --json has all of them")
    tree = tree_of(verdict.evidence).lines()
    if tree:
        out += ["", "stacks, outermost frame first, with the ranks that are there:"]
        width = min(24, max(len(ranks) for _, ranks, _ in tree))
        out += [
            f"  {_cut(ranks, width):<{width}}  {'  ' * depth}{text}"
            for depth, ranks, text in tree[:_MOST_LINES]
        ]
        if len(tree) > _MOST_LINES:
            out.append(f"  ... and {len(tree) - _MOST_LINES} more lines; --json has all of them")
    for r in verdict.evidence.ranks:
        if r.rank == verdict.rank:
            for worker in r.workers:
                place = worker.place if worker.main is not None and worker.main.place else "waiting for work"
                out.append(f"worker {worker.pid} of rank {r.rank}: state {worker.state}, {place}")
    return out


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


_STYLE = """
:root{color-scheme:light dark;font:15px/1.5 system-ui,sans-serif}
body{max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
th{border-bottom:1px solid #8888}tr.first{font-weight:600}
pre{overflow:auto;font:13px/1.5 ui-monospace,monospace}.note{opacity:.8}
"""


def html_page(verdict: Verdict) -> str:
    """One file that fetches nothing; text from traces stays text."""
    rows, _ = _rows(verdict, None)
    head = "".join(f"<th>{c}</th>" for c in _COLUMNS)
    body = "".join(
        f"<tr{' class=first' if row[0] == str(verdict.rank) else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    notes = "".join(f'<p class="note">{escape(each)}</p>' for each in verdict.more)
    stacks = "\n".join(
        f"{'  ' * depth}{text}    [{ranks}]" for depth, ranks, text in tree_of(verdict.evidence).lines()
    )
    only = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{only}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>dftracer postmortem</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(verdict.kind.replace('_', ' '))}</h1>\n<p>{escape(verdict.sentence)}</p>\n{notes}"
        f"<h2>Ranks</h2>\n<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n"
        + (f"<h2>Stacks</h2>\n<pre>{escape(stacks)}</pre>\n" if stacks else "")
        + "</main>\n<footer>Generated by dftracer. This file fetches nothing."
        "</footer>\n"
        "</body>\n</html>\n"
    )
