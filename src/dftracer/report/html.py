"""The report as one HTML file, and as pieces of HTML for a notebook."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from dftracer._text import bytes_text, count_text, counted, plural, seconds_text
from dftracer.analyze import STAGES, Analysis, Rank, frames
from dftracer.analyze.rules.finding import Finding
from dftracer.report.contents import (
    COLOURS,
    LINE_COLOURS,
    LINE_WORDS,
    PHASE_COLOURS,
    PHASE_WORDS,
    account_rows,
    account_title,
    culprit,
    ended_words,
    evidence_rows,
    head,
    identity_rows,
    notes,
    shown_files,
    without_waiting,
)
from dftracer.report.device import device_page
from dftracer.report.machine import machine_page

# --- The report as one HTML file: style, script and numbers inside, nothing fetched from anywhere
#
# Everything drawn is aggregated here, so the page's size depends on the number of lanes, not of events.


_ACCOUNT_BARS = 16
_COLUMNS = 360  # step buckets per rank
_LANES = 120
_RANK_ROWS = 256
_NAMES = 400
_FILES = 200
_IO_SLOTS = 480
_WRITTEN = "#5b7083"  # used by no stage: writing is not only checkpointing


def html_page(analysis: Analysis, title: str = "dftracer report") -> str:
    """The whole page as text."""
    here = resources.files("dftracer.report")
    page, style, *scripts = (
        (here / name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page_tools.js", "page_device.js", "page_machine.js", "page.js")
    )
    script = "".join(scripts)
    # A closing tag inside the data would end the script element.
    data = json.dumps(page_data(analysis), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    for mark, text in (
        ("__POLICY__", _policy(style, script)),
        ("/*STYLE*/", style),
        ("/*SCRIPT*/", script),
        ("__TITLE__", title.replace("&", "&amp;").replace("<", "&lt;")),
        ("__DATA__", data),
    ):
        page = page.replace(mark, text, 1)
    return page


def _policy(style: str, script: str) -> str:
    """What the page may do: use only its own script and style; fetch and send nothing."""

    def only(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return (
        f"default-src 'none'; style-src {only(style)}; script-src {only(script)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def page_data(a: Analysis) -> dict[str, Any]:
    """What the page draws."""
    job = a.job
    base = job.first_us
    width = max(job.last_us - base, 1) / 1e6 / _IO_SLOTS
    io = frames.io_over_time(job, width)
    ranks = job.ranks[:_RANK_ROWS]
    sizes = frames.file_sizes(job)
    files = None if a.file_table is None else shown_files(a.file_table)
    return {
        "stages": list(STAGES),
        "colours": [COLOURS[s] for s in STAGES],
        "written_colour": _WRITTEN,
        "trace": {k: v for k, v in a.trace_facts.items() if k != "files"},
        "run": identity_rows(a),
        "ended": ended_words(a),
        "failed": a.ended.failed,
        "verdict": a.verdict,
        "head": list(head(a)),
        "notes": notes(a),
        "culprit": culprit(a),
        "account": _account(a),
        "own_code": a.own_code,
        "phases": [
            [PHASE_WORDS[k], row["seconds"], row["share"], PHASE_COLOURS[k], k == culprit(a)]
            for k, row in a.phases.items()
        ],
        "run_s": a.run_s,
        "findings": [{**f.to_json(), "evidence": evidence_rows(f.evidence)} for f in a.findings],
        "ranks": [_rank(r) for r in ranks],
        "ranks_left_out": len(job.ranks) - len(ranks),
        "slowest": None if job.slowest is None else job.slowest.number,
        "wait": {str(r.number): {k: v / 1e6 for k, v in r.wait_stages_us().items()} for r in ranks},
        "lanes": _lanes(a),
        "device": device_page(a),
        "machine": machine_page(a),
        "io": None
        if io is None
        else {k: _short(io[k].to_list()) for k in ("start_s", "width_s", "read_bytes", "write_bytes", "ops")},
        "workers": frames.workers(job).head(_LANES).to_dicts(),
        "names": _rows(a.name_table.head(_NAMES)),
        "names_total": a.name_table.height,
        "files": None if files is None else _rows(files.head(_FILES)),
        "files_total": 0 if files is None else files.height,
        "sizes": None if sizes is None else sizes.to_dicts(),
    }


def _account(a: Analysis) -> dict[str, Any] | None:
    """A bar for each rank, by the lines of its account; the rows of the one that the verdict is about."""
    rows = account_rows(a)
    if not rows or a.judged is None:
        return None
    ranks = [r for r in a.job.ranks if len(r.main.steps)][:_ACCOUNT_BARS]
    return {
        "title": account_title(a),
        "rank": a.judged.account_rank.number,
        "rows": [[r.line, r.words, round(r.seconds, 6), round(r.share, 6), r.culprit] for r in rows],
        "words": {**LINE_WORDS, **{r.line: r.words for r in rows}},
        "colours": LINE_COLOURS,
        "bars": {
            str(r.number): {k: round(s, 6) for k, s in r.account.seconds.items() if s > 0} for r in ranks
        },
    }


def _short(values: list[Any]) -> list[Any]:
    return [round(v, 4) if isinstance(v, float) else v for v in values]


def _rows(frame: Any) -> dict[str, Any]:
    return {"columns": frame.columns, "rows": [_short(list(r)) for r in frame.iter_rows()]}


def _rank(rank: Rank) -> dict[str, Any]:
    """A rank's steps in at most `_COLUMNS` buckets: mean stages, mean and slowest wall time."""
    n = len(rank.main.steps)
    buckets = min(n, _COLUMNS)
    edges = np.linspace(0, n, buckets + 1).astype(np.int64)
    sizes = np.maximum(np.diff(edges), 1)
    stages = (
        np.add.reduceat(rank.main.account, edges[:-1], axis=0) / sizes[:, None]
        if n
        else np.zeros((0, len(STAGES)))
    )
    wall = rank.wall_us.astype(float)
    mean = np.add.reduceat(wall, edges[:-1]) / sizes if n else np.zeros(0)
    most = np.maximum.reduceat(wall, edges[:-1]) if n else np.zeros(0)
    epoch = rank.main.steps.epoch[edges[:-1]].tolist() if n else []
    stages_s, waiting_s = without_waiting(rank)
    return {
        "rank": rank.number,
        "pid": rank.main.process.pid,
        "host": rank.main.process.host,
        "steps": n,
        "first": edges[:-1].tolist(),
        "stages_ms": [[round(float(v) / 1e3, 4) for v in row] for row in stages],
        "mean_ms": [round(float(v) / 1e3, 4) for v in mean],
        "max_ms": [round(float(v) / 1e3, 4) for v in most],
        "epoch": [e if e >= 0 else None for e in epoch],
        "total_s": [round(v, 6) for v in stages_s.values()],
        "waiting_s": round(waiting_s, 6),
        "outside_s": [round(float(v) / 1e6, 6) for v in rank.main.outside],
    }


def _thread_words(owner: str, lane: dict[str, Any], pid: int) -> str:
    """Which thread it is, and whose."""
    if lane["name"]:
        return f"{owner}, {lane['name']}"
    return f"{owner}, main thread" if lane["tid"] == pid else f"{owner}, thread {lane['tid']}"


def _lanes(a: Analysis) -> list[dict[str, Any]]:
    """The timeline overview: each lane as two strings of digits (stage and how full), at one resolution."""
    mains = {(id(r.main), r.main.steps.tid): r.number for r in a.job.ranks}
    workers = {(id(w.partial), w.lane["tid"]): (r.number, w.number) for r in a.job.ranks for w in r.workers}
    owners = {
        id(w.partial): f"rank {r.number} loader worker {w.number}"
        for r in a.job.ranks
        for w in r.workers
        if not w.thread
    }
    out: list[dict[str, Any]] = []
    for p in a.job.partials:
        rank_of = p.process.rank
        owner = owners.get(id(p), f"rank {rank_of}" if rank_of is not None else f"process {p.process.pid}")
        for lane in p.lanes:
            strip = lane["strip"]
            if strip is None:
                continue
            key = (id(p), lane["tid"])
            if key in mains:
                role, label, order = "main", f"rank {mains[key]}", (mains[key], 0, 0)
            elif key in workers:
                rank, number = workers[key]
                role, label, order = "worker", f"rank {rank} loader worker {number}", (rank, 1, number)
            else:
                role, label = "other", _thread_words(owner, lane, p.process.pid)
                order = (1 << 30 if rank_of is None else rank_of, 2, lane["tid"])
            out.append(
                {
                    "role": role,
                    "label": label,
                    "pid": p.process.pid,
                    "tid": lane["tid"],
                    "order": order,
                    "events": lane["events"],
                    "first_s": round((strip["first_us"] - a.job.first_us) / 1e6, 6),
                    "last_s": round((strip["last_us"] - a.job.first_us) / 1e6, 6),
                    "stage": "".join(chr(97 + int(s)) for s in strip["stage"]),
                    "fill": "".join(map(str, strip["fill"].tolist())),
                }
            )
    out.sort(key=lambda row: row["order"])
    kept = sorted(out, key=lambda row: ({"main": 0, "worker": 1, "other": 2}[row["role"]], -row["events"]))[
        :_LANES
    ]
    kept.sort(key=lambda row: row["order"])
    for row in kept:
        del row["order"]
    return kept


# --- Reports as pieces of HTML for a notebook: no script, no style sheet, every text escaped


_ROWS = 8
_CELL = "padding:1px 10px 1px 0;text-align:{}"
_SEVERITY = {"high": "#e5484d", "medium": "#f76b15", "low": "#3e63dd", "info": "#8b8d98"}


def analysis_fragment(a: Analysis) -> str:
    """Verdict, why, what to try, the step time by stage, findings; events and files folded away."""
    verdict, why, advice = head(a)
    t = a.trace_facts
    facts = [
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
        f"<p style='margin:4px 0;opacity:.7'>{escape(' · '.join(facts))}</p>",
        _account_table(a),
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
        + "".join(f"<br><span style='opacity:.8'>symptom: {escape(s.title)}</span>" for s in f.symptoms)
    )


def _account_table(a: Analysis) -> str:
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
        for r in shown_files(a.file_table).head(_ROWS).iter_rows(named=True)
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
