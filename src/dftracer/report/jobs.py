"""Lists of runs, and the goodput of a job over its attempts: for the terminal, and as plain pages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources

import numpy as np

from dftracer._text import Column, plural, seconds_text
from dftracer.analyze.goodput import PARTS, Attempt, Goodput
from dftracer.analyze.history import RunRow
from dftracer.analyze.intervals import measure

RUN_COLUMNS = (
    Column("started", whole=True),
    Column("name", whole=True),
    Column("commit", drop=3, whole=True),
    Column("host", drop=2),
    Column("ranks", right=True),
    Column("attempt", right=True, drop=1),
    Column("steps", right=True),
    Column("step", right=True),
    Column("samples/s", right=True),
    Column("GPU", right=True, drop=4),
    Column("bound"),
    Column("ended"),
    Column("command", drop=5),
    Column("path", whole=True, tail=True),
)

PART_COLUMNS = (
    Column("where the time went", whole=True),
    Column("time", right=True),
    Column("share", right=True),
)
ATTEMPT_COLUMNS = (
    Column("attempt", right=True),
    Column("started", whole=True),
    Column("lasted", right=True),
    Column("steps", whole=True),
    Column("ended"),
    Column("run", drop=1),
)
_PART_WORDS = {
    "productive": "new steps",
    "initialization": "starting up",
    "data": "waiting for data",
    "checkpoint_save": "saving checkpoints",
    "checkpoint_restore": "restoring checkpoints",
    "evaluation": "evaluation",
    "recomputed": "steps computed again",
    "failed": "lost in failures",
    "gap": "between attempts",
    "hang": "hanging",
    "other": "other",
}
_PART_COLOURS = {
    "productive": "#30a46c",
    "initialization": "#8b8d98",
    "data": "#e5484d",
    "checkpoint_save": "#ad7f58",
    "checkpoint_restore": "#d6b48d",
    "evaluation": "#0e7490",
    "recomputed": "#f76b15",
    "failed": "#9b1c31",
    "gap": "#d9dbe0",
    "hang": "#1c2024",
    "other": "#b6a8e0",
}

_STYLE = """
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}
svg .axis{stroke:var(--line)}svg .line{fill:none;stroke:#3e63dd;stroke-width:1.5}
svg .dot{fill:#3e63dd}svg .bad{fill:#cd2b31}.failed{color:#cd2b31}
td a{color:inherit}.key .swatch{width:11px;height:11px;display:inline-block}
"""
_WIDE, _HIGH = 360, 130  # of a plot
_LEFT, _LOW = 46, 18
_SLICES = 400  # of a job's time, in its picture


def when(start: int | None) -> str:
    """A time of a trace, in the time zone of whoever reads it."""
    if start is None:
        return "-"
    try:
        return datetime.fromtimestamp(start / 1e6, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a damaged record: no calendar goes that far
        return "-"


def ended_text(ended: dict[str, object]) -> str:
    """How a run ended, in a few words."""
    step = ended["step"]
    after = f" after {plural(step, 'step')}" if isinstance(step, int) else ""
    if ended["exception"]:
        return f"{ended['exception']}{after}"
    if ended["signal"]:
        return f"{ended['signal']}{after}"
    if ended["exit_code"]:
        return f"exit code {ended['exit_code']}{after}"
    return "ok" if ended["exit_code"] == 0 else "not known"


def _number(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _commit(git: dict[str, object]) -> str:
    return f"{str(git['commit'])[:8]}{'+' if git['dirty'] else ''}" if git["commit"] else "-"


def run_texts(row: RunRow) -> list[str]:
    """The cells of RUN_COLUMNS."""
    return [
        when(row.start),
        row.name or "-",
        _commit(row.git),
        row.host or "-",
        str(row.ranks or "-"),
        str(row.attempt),
        "-" if row.steps is None else str(row.steps),
        _number(row.step_s, seconds_text),
        _number(row.samples_per_s, _rate),
        _number(row.gpu_busy, _share),
        row.bound or "-",
        ended_text(row.ended),
        row.command or "-",
        row.path,
    ]


def page(title: str, body: str, script: str = "") -> str:
    """A page that runs no script, or only this one, and fetches nothing."""
    style = (resources.files("dftracer.report") / "page.css").read_text(encoding="utf-8") + _STYLE
    only = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{only}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    if script:
        runs = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{runs}'"
        body += f"<script>{script}</script>\n"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{escape(title)}</h1></header>\n<main>\n{body}</main>\n"
        "<footer>Generated by dftracer.</footer>\n</body>\n</html>\n"
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    top = "".join(f"<th>{escape(h)}</th>" for h in heads)
    lines = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>\n{lines}</tbody></table></div>\n'


def runs_page(rows: list[RunRow], title: str, reports: dict[str, str]) -> str:
    """The trend of each figure over the runs of one name; `reports`: the page of each run, by its path."""
    groups: dict[str, list[RunRow]] = {}
    for row in sorted(rows, key=lambda r: r.start or 0):
        groups.setdefault(row.name or row.command or "(no command)", []).append(row)
    newest = sorted(groups.items(), key=lambda group: -(group[1][-1].start or 0))
    return page(title, "".join(_group(name, runs, reports) for name, runs in newest))


_FIGURES: tuple[tuple[str, Callable[[RunRow], float | None], Callable[[float], str]], ...] = (
    ("median step", lambda r: r.step_s, seconds_text),
    ("samples per second", lambda r: r.samples_per_s, _rate),
    ("GPU busy", lambda r: r.gpu_busy, _share),
    ("run", lambda r: r.run_s, seconds_text),
    ("steps", lambda r: None if r.steps is None else float(r.steps), lambda v: f"{v:.0f}"),
)


def _group(name: str, runs: list[RunRow], reports: dict[str, str]) -> str:
    plots = ""
    for title, value, text in _FIGURES:
        values = [value(r) for r in runs]
        if any(v is not None for v in values):
            marks = [
                (v, bool(ended_text(r.ended) not in {"ok", "not known"}))
                for v, r in zip(values, runs, strict=True)
            ]
            plots += (
                f'<figure class="plot"><figcaption>{escape(title)}</figcaption>{trend(marks, text)}</figure>'
            )
    heads = (
        "started",
        "run",
        "ended",
        "ranks",
        "attempt",
        "steps",
        "step",
        "samples/s",
        "GPU",
        "bound",
        "commit",
        "tags",
        "host",
        "command",
        "verdict",
    )
    rows = []
    for r in reversed(runs):
        link = reports.get(r.path + "/" + (r.run or ""))
        shown = escape(r.run or r.path)
        ended = escape(ended_text(r.ended))
        rows.append(
            [
                escape(when(r.start)),
                f'<a href="{escape(link)}">{shown}</a>' if link else shown,
                ended if ended in {"ok", "not known"} else f'<span class="failed">{ended}</span>',
                str(r.ranks or "-"),
                str(r.attempt),
                "-" if r.steps is None else str(r.steps),
                escape(_number(r.step_s, seconds_text)),
                escape(_number(r.samples_per_s, _rate)),
                _number(r.gpu_busy, _share),
                escape(r.bound or "-"),
                escape(_commit(r.git)),
                escape(", ".join(f"{k}={v}" for k, v in r.tags.items()) or "-"),
                escape(r.host or "-"),
                escape(r.command or "-"),
                escape(r.verdict),
            ]
        )
    return (
        f"<section><h2>{escape(name)}: {plural(len(runs), 'run')}</h2>\n"
        f'<div class="plots">{plots}</div>\n{table(heads, rows)}</section>\n'
    )


def trend(values: list[tuple[float | None, bool]], text: Callable[[float], str]) -> str:
    """A line through the values in their order; those of failed runs are marked."""
    known = [v for v, _ in values if v is not None]
    high = max(known, default=0.0) or 1.0
    step = (_WIDE - _LEFT - 12) / max(1, len(values) - 1)

    def at(i: int, v: float) -> tuple[float, float]:
        return _LEFT + 4 + i * step, 8 + (1 - v / high) * (_HIGH - _LOW - 10)

    points = [(*at(i, v), bad, v) for i, (v, bad) in enumerate(values) if v is not None]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    dots = "".join(
        f'<circle class="{"bad" if bad else "dot"}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
        f"<title>{escape(text(v))}</title></circle>"
        for x, y, bad, v in points
    )
    floor = _HIGH - _LOW
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img">'
        f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{_WIDE}" y2="{floor}"/>'
        f'<text x="{_LEFT - 4}" y="14" text-anchor="end">{escape(text(high))}</text>'
        f'<text x="{_LEFT - 4}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HIGH - 4}">oldest</text>'
        f'<text x="{_WIDE - 2}" y="{_HIGH - 4}" text-anchor="end">newest</text>'
        f'<polyline class="line" points="{line}"/>{dots}</svg>'
    )


def goodput_sentence(g: Goodput) -> str:
    """The answer in one line."""
    made = f"{seconds_text(g.productive_us / 1e6)} of {seconds_text(g.wall_us / 1e6)} made new steps"
    twice = f", {plural(g.recomputed_steps, 'step')} computed again" if g.recomputed_steps else ""
    what = f"{plural(g.steps, 'step')}, {plural(len(g.attempts), 'attempt')}{twice}"
    if g.recomputed_steps is not None:
        return f"Goodput {100 * g.share:.1f} %: {made} ({what})."
    lost = ", ".join(str(i + 1) for i, a in enumerate(g.attempts) if not a.numbered)
    return (
        f"Goodput at most {100 * g.share:.1f} %: {made} ({what})."
        f" Nothing tells with which step attempt {lost} went on: what it computed again counts as new."
    )


def part_texts(g: Goodput) -> list[list[str]]:
    """The cells of PART_COLUMNS, the longest part first; they add up to the whole time."""
    parts = {"productive": g.productive_us, **g.parts_us}
    order = ["productive", *sorted(PARTS, key=lambda part: -parts[part])]
    rows = [
        [_PART_WORDS[part], seconds_text(parts[part] / 1e6), f"{100 * parts[part] / max(1, g.wall_us):.1f} %"]
        for part in order
        if parts[part]
    ]
    return [*rows, ["the whole job", seconds_text(g.wall_us / 1e6), "100 %"]]


def attempt_texts(number: int, a: Attempt) -> list[str]:
    """The cells of ATTEMPT_COLUMNS."""
    steps = "-" if a.first_step is None else f"{a.first_step} to {a.last_step}"
    return [
        str(number),
        when(a.start),
        seconds_text((a.end - a.start) / 1e6),
        steps,
        ended_text(a.ended.to_json()),
        a.run or "-",
    ]


def goodput_page(g: Goodput, title: str) -> str:
    """The parts of the job's time, when it was in which, and how far its steps were."""
    legend = "".join(
        f'<span class="key"><svg class="swatch" viewBox="0 0 11 11"><rect width="11" height="11"'
        f' fill="{_PART_COLOURS[part]}"/></svg>{escape(_PART_WORDS[part])}</span>'
        for part in _PART_WORDS
        if g.spans(part)[0].size
    )
    parts = table([c.name for c in PART_COLUMNS], [[escape(c) for c in row] for row in part_texts(g)])
    rows = [[escape(c) for c in attempt_texts(i + 1, a)] for i, a in enumerate(g.attempts)]
    return page(
        title,
        f"<section><h2>{escape(goodput_sentence(g))}</h2>\n"
        f'<div class="legend">{legend}</div>{_timeline(g)}\n{parts}</section>\n'
        f"<section><h2>Steps over time</h2>{_progress(g)}</section>\n"
        f"<section><h2>Attempts</h2>{table([c.name for c in ATTEMPT_COLUMNS], rows)}</section>\n",
    )


def _timeline(g: Goodput) -> str:
    """The job from left to right; in each slice of time its parts from bottom to top."""
    edges = g.start + np.arange(_SLICES + 1) * (g.wall_us / _SLICES)
    start, end = edges[:-1].astype(np.int64), edges[1:].astype(np.int64)
    below = np.zeros(_SLICES)
    bars = []
    for part in _PART_WORDS:
        share = measure(g.spans(part), start, end) / np.maximum(end - start, 1)
        for i in np.flatnonzero(share > 0.004).tolist():
            bars.append(
                f'<rect x="{2 * i}" y="{60 * (1 - below[i] - share[i]):.2f}" width="2.2"'
                f' height="{60 * share[i]:.2f}" fill="{_PART_COLOURS[part]}"/>'
            )
        below += share
    return f'<svg viewBox="0 0 {2 * _SLICES} 60" preserveAspectRatio="none" role="img">{"".join(bars)}</svg>'


def _progress(g: Goodput) -> str:
    """The number of the step over the time: where the line falls back, steps are computed again."""
    highest = max((a.last_step or 0 for a in g.attempts), default=0) or 1
    width, height = 800, 200

    def x(us: int) -> float:
        return _LEFT + (us - g.start) / max(1, g.wall_us) * (width - _LEFT - 4)

    lines = ""
    for a in g.attempts:
        ends, numbers = a.steps[1], a.numbers
        chosen = np.unique(np.linspace(0, numbers.size - 1, min(numbers.size, 200)).astype(int))
        at = " ".join(
            f"{x(int(ends[i])):.1f},{height - _LOW - numbers[i] / highest * 170:.1f}" for i in chosen
        )
        lines += f'<polyline class="line" points="{at}"/>'
        lines += f'<line class="axis" x1="{x(a.end):.1f}" y1="6" x2="{x(a.end):.1f}" y2="{height - _LOW}"/>'
    floor = height - _LOW
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img">'
        f'<line class="axis" x1="{_LEFT}" y1="{floor}" x2="{width}" y2="{floor}"/>{lines}'
        f'<text x="{_LEFT - 4}" y="{floor - 165}" text-anchor="end">{highest}</text>'
        f'<text x="{_LEFT}" y="{height - 4}">{escape(when(g.start))}</text>'
        f'<text x="{width - 4}" y="{height - 4}" text-anchor="end">{escape(when(g.end))}</text></svg>'
    )
