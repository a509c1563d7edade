"""Reports as pieces of HTML for a notebook: no script, no style sheet, every text escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from dftracer._units import bytes_text, count_text, counted, plural, seconds_text
from dftracer.analyze import STAGES, Analysis
from dftracer.analyze.finding import Finding
from dftracer.report.files import told_files
from dftracer.report.head import LINE_COLOURS, PHASE_WORDS, account_rows, culprit, ended_words, head, notes
from dftracer.report.terminal import COLOURS

__all__ = ["analysis_fragment", "findings_fragment"]

_ROWS = 8
_CELL = "padding:1px 10px 1px 0;text-align:{}"
_SEVERITY = {"high": "#e5484d", "medium": "#f76b15", "low": "#3e63dd", "info": "#8b8d98"}


def analysis_fragment(a: Analysis) -> str:
    """Verdict, why, what to try, the step time by stage, findings; events and files folded away."""
    verdict, why, advice = head(a)
    t = a.trace_facts
    said = [
        counted(t["events"], "event"),
        plural(t["processes"], "process", "processes"),
        plural(t["ranks"], "rank"),
        seconds_text(t["span_s"]),
        f"{plural(t['dropped'], 'event')} dropped",
    ]
    parts = [
        *(f"<p style='margin:0'><b>{escape(line)}</b></p>" for line in [ended_words(a)] if line),
        f"<p style='margin:0'><b>{escape(verdict)}</b>",
        *(f"<br>{escape(line)}" for line in (why, advice and f"Try: {advice}") if line),
        "</p>",
        *(f"<p style='margin:4px 0'>{escape(note)}</p>" for note in notes(a)),
        f"<p style='margin:4px 0;opacity:.7'>{escape(' · '.join(said))}</p>",
        _account(a),
        _stages(a),
        _pieces(a),
        findings_fragment(a.findings),
        _folded("Events", _names(a)),
        _folded("Files", _files(a)),
    ]
    return f"<div class='dftracer' style='font-size:90%;max-width:60em'>{''.join(parts)}</div>"


def findings_fragment(findings: Iterable[Finding]) -> str:
    """Findings as a list, the costliest first."""
    rows = [f"<li style='margin:2px 0'>{_finding(f)}</li>" for f in findings]
    return f"<ul style='margin:6px 0;padding-left:1.2em'>{''.join(rows)}</ul>" if rows else ""


def _finding(f: Finding) -> str:
    cost = f" ({seconds_text(f.seconds)}, {f.percent:.1f} % of the run)" if f.seconds else ""
    return (
        f"<b style='color:{_SEVERITY[f.severity]}'>{escape(f.severity)}</b> {escape(f.title)}{escape(cost)}"
        f"<br><span style='opacity:.8'>{escape(f.advice)}</span>"
        + "".join(f"<br><span style='opacity:.8'>shows in: {escape(s.title)}</span>" for s in f.symptoms)
    )


def _account(a: Analysis) -> str:
    rows = []
    for row in account_rows(a):
        width = max(1, round(200 * row.share))
        bar = f"<div style='background:{LINE_COLOURS[row.line]};height:10px;width:{width}px'></div>"
        name = f"<b>{escape(row.words)}</b>" if row.culprit else escape(row.words)
        rows.append([name, f"{row.seconds:.3f} s", f"{100 * row.share:.1f} %", bar])
    return _table(("where the time goes", "time", "share", ""), rows, escaped=True) if rows else ""


def _stages(a: Analysis) -> str:
    slowest = a.job.slowest
    if slowest is None or not len(slowest.main.steps):
        return "<p style='margin:4px 0'>No training steps were found.</p>"
    wall = max(1.0, float(slowest.wall_us.sum()))
    rows = []
    for stage in STAGES:
        us = float(slowest.stage_us(stage).sum())
        if us <= 0:
            continue
        name = escape(stage.replace("_", " "))
        bar = (
            f"<div style='background:{COLOURS[stage]};height:10px;"
            f"width:{max(1, round(200 * us / wall))}px'></div>"
        )
        shown = f"<b>{name}</b>" if stage == culprit(a) else name
        rows.append([shown, f"{us / 1e6:.3f} s", f"{100 * us / wall:.1f} %", bar])
    whole = f"{plural(len(slowest.main.steps), 'step')} of rank {slowest.number}"
    rows.append(["all", f"{wall / 1e6:.3f} s", "100 %", escape(whole)])
    return _table(("stage", "time", "share", ""), rows, escaped=True)


def _pieces(a: Analysis) -> str:
    pieces = [(k, row) for k, row in a.phases.items() if k == "steady" or row["share"] >= 0.001]
    if len(pieces) < 2:
        return ""
    rows = [[PHASE_WORDS[k], f"{row['seconds']:.3f} s", f"{100 * row['share']:.1f} %"] for k, row in pieces]
    return _table(("of the run", "time", "share"), rows)


def _names(a: Analysis) -> str:
    rows = [
        [
            f"{r['cat']}: {r['name']}",
            count_text(r["count"]),
            *(seconds_text(r[k]) for k in ("total_s", "self_s")),
            seconds_text(r["p50_us"] / 1e6),
        ]
        for r in a.name_table.head(_ROWS).iter_rows(named=True)
    ]
    return _table(("event", "count", "total", "self", "median"), rows)


def _files(a: Analysis) -> str:
    if a.file_table is None:
        return ""
    rows = [
        [
            r["path"],
            str(r["opens"]),
            bytes_text(r["read_bytes"]),
            bytes_text(r["write_bytes"]),
            seconds_text(r["time_s"]),
        ]
        for r in told_files(a.file_table).head(_ROWS).iter_rows(named=True)
    ]
    return _table(("path", "opens", "read", "written", "time"), rows)


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>{body}</details>" if body else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], escaped: bool = False) -> str:
    def cell(tag: str, i: int, text: str) -> str:
        # Numbers are right-aligned: all columns except the first, and the bars in the last.
        side = "left" if i == 0 or head[i] == "" else "right"
        return f"<{tag} style='{_CELL.format(side)}'>{text if escaped else escape(text)}</{tag}>"

    lines = ["".join(cell("th", i, name) for i, name in enumerate(head))]
    lines += ["".join(cell("td", i, str(text)) for i, text in enumerate(row)) for row in rows]
    return "<table style='margin:6px 0'>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
