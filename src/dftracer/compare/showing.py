"""A comparison in sentences and tables: on a terminal, as Markdown, as a page, and as JSON for programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from dftracer._console import safe_console
from dftracer._packages import need
from dftracer._text import Column, html_document, plural, print_table, seconds_text
from dftracer.compare.comparison import FALSE_ALARMS, PARTS, SAME_WITHIN, Comparison, Figure, RunPart, Side
from dftracer.compare.statistics import MIN_STEPS, Change

if TYPE_CHECKING:
    from rich.console import Console

# --- A comparison in sentences


_BEYOND = 10.0  # changes above this many times are not shown to the last digit


def time_text(seconds: float) -> str:
    """A duration, always with three digits: two of them will be compared."""
    if seconds >= 120 or seconds <= 0:
        return seconds_text(seconds)
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            break
    return f"{f'{seconds * scale:#.3g}'.rstrip('.')} {unit}"


def letters(n: int) -> list[str]:
    """A, B, C … for the runs."""
    return [chr(ord("A") + i) if i < 26 else f"run {i + 1}" for i in range(n)]


def percent_text(share: float, signed: bool = True) -> str:
    """A change in percent with about three digits."""
    value = 100 * share
    digits = 0 if abs(value) >= 100 else 1
    # A change too small for the digits is shown as zero, without a sign.
    if round(value, digits) == 0:
        return "0 %"
    return f"{value:+.{digits}f} %" if signed else f"{value:.{digits}f} %"


def change_text(c: Change) -> str:
    return "new" if c.relative is None else percent_text(c.relative)


def interval_text(c: Change) -> str:
    """From, to; in seconds if there is no ratio."""
    if c.interval is not None:
        low, high = c.interval
        end = percent_text(high) if high <= _BEYOND else f"more than {percent_text(_BEYOND)}"
        return f"{percent_text(low)} to {end}"
    if c.interval_s is not None:
        low = max(c.interval_s[0], 0.0)
        return f"{time_text(low)} to {time_text(c.interval_s[1])}"
    return "unknown"


def times_text(c: Change) -> str:
    return f"{time_text(c.a)} → {time_text(c.b)}"


def headline(c: Comparison, b: str = "B", a: str = "A") -> str:
    """The comparison in one sentence."""
    if not c.enough and not c.difference:
        return f"Cannot tell whether {a} and {b} differ: {_few(c)}."
    step = c.step
    if c.step_changed:
        how = "slower" if step.difference > 0 else "faster"
        by = percent_text(abs(step.relative or 0.0), signed=False)
        return f"{b} is {how} by {by}: {times_text(step)} per step ({interval_text(step)})."
    if c.changed or c.changed_in_bursts:
        names = list(dict.fromkeys([*c.changed, *c.changed_in_bursts]))
        return (
            f"{a} and {b} differ in {_listed(names)}; the step as a whole changed by no more than it varies:"
            f" {times_text(step)}."
        )
    if c.changed_parts and c.whole is not None:
        whole = c.whole
        how = "slower" if whole.b > whole.a else "faster"
        by = percent_text(abs(whole.b / whole.a - 1), signed=False) if whole.a else "much"
        parts = _listed([PARTS[p] for p in c.changed_parts])
        return f"{b} is {how} by {by} as a whole, because of {parts}: {_whole_text(c)}."
    if c.answer == "cannot_tell":
        return (
            f"Cannot tell whether {a} and {b} differ: {times_text(step)} per step, where"
            f" {interval_text(c.step_alone)} is possible; {needed_text(c)}."
        )
    reach = c.reach
    seen = f"; a change of {percent_text(reach, signed=False)} would have shown" if reach >= 0.001 else ""
    return f"No difference: {times_text(step)} per step{seen}."


def needed_text(c: Comparison, limit: float = SAME_WITHIN) -> str:
    """What it would take to detect a change."""
    runs = "several runs of each"
    command = "(dftracer compare A1 A2 A3 -- B1 B2 B3)"
    steps = c.steps_needed(limit)
    within = percent_text(limit, signed=False)
    if steps is None:
        return f"more steps would hardly help to detect a change of {within}; {runs} would {command}"
    return f"detecting a change of {within} would take about {steps} steps, or {runs} {command}"


def _whole_text(c: Comparison) -> str:
    whole = c.whole
    return "" if whole is None else f"{time_text(whole.a)} → {time_text(whole.b)} per step, all included"


def reasons(c: Comparison) -> list[str]:
    """A line for each stage that changed."""
    out = []
    for stage in c.changed:
        change = c.stages[stage]
        out.append(
            f"{stage}: {times_text(change)} per step ({change_text(change)}, {interval_text(change)}),"
            f" {percent_text(c.moves(stage))} of the step."
        )
    for stage in c.changed_in_bursts:
        if stage in c.changed:
            continue
        change = c.bursts[stage]
        out.append(
            f"{stage}: {times_text(change)} on average ({change_text(change)}, {interval_text(change)});"
            " it takes time in only a few of the steps, so its median says little."
        )
    for part in c.changed_parts:
        x = c.parts[part]
        out.append(f"{PARTS[part]}: {time_text(x.a)} → {time_text(x.b)} per step, outside the steps.")
    if c.step_changed and not out:
        out.append("No single stage explains it: several changed a little.")
    return out


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _few(c: Comparison) -> str:
    small = [
        f"{s.name} has {plural(s.wall.size, 'steady step')}" for s in (c.a, c.b) if s.wall.size < MIN_STEPS
    ]
    return f"{' and '.join(small)}; {MIN_STEPS} are needed"


def notes(c: Comparison) -> list[str]:
    """What a reader must know: runs that differ in kind, stages that only one of them shows."""
    out = [f"{stage} was not seen in {name}, so it is not compared." for stage, name in c.unseen.items()]
    for side in (c.a, c.b):
        others = len(side.run.get("others") or [])
        if others:
            out.append(f"{side.name} also contains {plural(others, 'other run')}; the newest is compared.")
    if c.block > 1:
        out.append(f"Long and short steps alternate: a step is the mean of {c.block} consecutive ones here.")
    if c.a.ranks != c.b.ranks:
        out.append(f"The runs have {plural(c.a.ranks, 'rank')} and {plural(c.b.ranks, 'rank')}.")
    for key, words in (("host", "hosts"), ("command", "commands")):
        a, b = c.a.run.get(key), c.b.run.get(key)
        if a and b and a != b:
            out.append(f"The runs have different {words}: {a} and {b}.")
    sources = [(s.report.get("device") or {}).get("source") for s in (c.a, c.b)]
    if sources[0] != sources[1] and all(sources):
        out.append("The device's figures come from a profiler in one run and from events in the other.")
    if c.enough:
        short = [s for s in (c.a, c.b) if s.wall.size < 30]
        if short:
            few = " and ".join(f"{s.name} {plural(s.wall.size, 'steady step')}" for s in short)
            out.append(f"Few steps ({few}): only large changes can be detected.")
    return out


def side_text(side: Side) -> str:
    """One run in a line."""
    run = side.run
    several = len(side.members)
    facts = [str(run["id"])] if run.get("id") and several == 1 else []
    if several > 1:
        facts.append(plural(several, "run"))
    facts.append(plural(side.steps, "steady step"))
    if side.ranks > 1:
        facts.append(plural(side.ranks, "rank"))
    if run.get("host"):
        facts.append(str(run["host"]))
    return f"{side.name} ({', '.join(facts)})"


# --- A comparison as tables of text, the same for terminal, Markdown and HTML


@dataclass
class Row:
    """One line: a name, both values, the change; `marked` if it is a real change."""

    name: str
    cells: list[str]
    marked: bool = False
    change: Change | None = None


@dataclass
class Section:
    title: str
    columns: list[str]
    rows: list[Row] = field(default_factory=list)


def _times(name: str, c: Change, marked: bool) -> Row:
    cells = [time_text(c.a), time_text(c.b), change_text(c), interval_text(c)]
    return Row(name, cells, marked, c)


def _part(name: str, x: RunPart) -> Row:
    change = percent_text(x.b / x.a - 1) if x.a else "new"
    return Row(name, [time_text(x.a), time_text(x.b), change], x.changed)


def _figures(title: str, figures: list[Figure], a: str, b: str) -> Section:
    def text(f: Figure, value: float | None) -> str:
        return "-" if value is None else f.text(value)

    rows = [
        Row(f.words, [text(f, f.a), text(f, f.b), "" if f.change is None else percent_text(f.change)])
        for f in figures
    ]
    return Section(title, ["", a, b, "change"], rows)


def sections(c: Comparison, b: str = "B", a: str = "A") -> list[Section]:
    """All sections that are not empty."""
    columns = ["stage", a, b, "change", "95 % interval"]
    rows = [_times(s, x, s in c.changed) for s, x in c.stages.items() if x.a or x.b]
    out = [
        Section("Median per steady step", columns, [*rows, _times("step", c.step, c.step_changed)]),
        Section(
            "In only a few of the steps: mean per steady step",
            columns,
            [_times(s, x, s in c.changed_in_bursts) for s, x in c.bursts.items()],
        ),
        Section(
            "The whole run without its start-up, per step",
            ["part", a, b, "change"],
            [_part(PARTS[p], x) for p, x in c.parts.items()]
            + ([_part("all", c.whole)] if c.whole is not None and c.parts else []),
        ),
        _figures("Throughput", c.throughput, a, b),
    ]
    device = _figures("The device", c.device, a, b)
    if c.device_busy is not None:
        x = c.device_busy
        row = Row("busy per step (median)", [time_text(x.a), time_text(x.b), change_text(x)])
        device.rows.insert(0, row)
    out += [device, _figures("I/O", c.io, a, b)]
    found = c.findings
    rows = [Row(f["title"], ["-", f"{f['percent']:.1f} %", "new"]) for f in found["new"]]
    rows += [Row(f["title"], [f"{f['percent']:.1f} %", "-", "gone"]) for f in found["gone"]]
    rows += [
        Row(f["title"], [f"{f['a_percent']:.1f} %", f"{f['b_percent']:.1f} %", ""]) for f in found["both"]
    ]
    out.append(Section("Findings, by their share of the run", ["finding", a, b, ""], rows))
    return [s for s in out if s.rows]


# --- A comparison on a terminal


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


# --- A comparison in Markdown, short enough for a chat or a pull request


def plain(text: str) -> str:
    """Untrusted text: no markup, one line."""
    out = "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)
    return " ".join(out.split())


def _markdown_table(section: Section) -> list[str]:
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
            lines += _markdown_table(section)
        lines.append("")
    lines += [f"- {n}: {plain(side_text(s))}" for n, s in zip(names, sides, strict=True)]
    return "\n".join(lines) + "\n"


# --- A comparison as one HTML file: no script, nothing fetched, text from traces stays text


def html_page(comparisons: list[Comparison], title: str = "dftracer compare") -> str:
    """The whole page as text."""
    names = letters(len(comparisons) + 1)
    sides = [comparisons[0].a, *(c.b for c in comparisons)]
    runs = "".join(
        f"<dt>{n}</dt><dd>{escape(side_text(s))}{_command(s.run.get('command'))}</dd>"
        for n, s in zip(names, sides, strict=True)
    )
    body = "".join(
        _comparison(c, n, "h1" if i == 0 else "h2")
        for i, (n, c) in enumerate(zip(names[1:], comparisons, strict=True))
    )
    style = (resources.files("dftracer.compare") / "page.css").read_text(encoding="utf-8")
    return html_document(
        title,
        f"<main>\n{body}<section><h3>The runs</h3><dl>{runs}</dl></section>\n</main>\n"
        "<footer>Generated by dftracer. This file contains everything it shows and fetches nothing."
        " Intervals hold for all stages together, in 95 of 100 comparisons.</footer>\n",
        style,
    )


def _command(command: object) -> str:
    return f"<br><code>{escape(str(command))}</code>" if command else ""


def _comparison(c: Comparison, name: str, level: str) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in reasons(c))
    remarks = "".join(f'<p class="note">{escape(line)}</p>' for line in notes(c))
    tables = "".join(_html_table(s) for s in sections(c, name))
    listed = f"<ul>{lines}</ul>" if lines else ""
    return f"<{level}>{escape(headline(c, name))}</{level}>{listed}{remarks}{tables}\n"


def _html_table(section: Section) -> str:
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
    """How far the axis extends to both sides: changes must fit, uncertain ones may stick out."""
    ends = [abs(e) for r in rows if r.marked and r.change and r.change.interval for e in r.change.interval]
    ends += [abs(r.change.relative) for r in rows if r.change and r.change.relative is not None]
    return min(max([0.05, *ends]) * 1.1, 2.0)


def _plot(c: Change | None, marked: bool, reach: float) -> str:
    """The change as a dot on its interval, or an arrow beyond the axis; the dashed line means no change."""
    if c is None or c.relative is None or c.interval is None:
        return ""
    kind = "none" if not marked else "slower" if c.relative > 0 else "faster"

    def x(value: float) -> str:
        return f"{50 + 50 * max(-1.0, min(1.0, value / reach)):.2f}%"

    low, high = c.interval
    words = f"{100 * c.relative:+.1f} %, {100 * low:+.1f} % to {100 * high:+.1f} %"
    mark = f'<circle class="{kind}" cx="{x(c.relative)}" cy="12" r="5"/>'
    if abs(c.relative) > reach:
        back = -9 if c.relative > 0 else 9
        mark = f'<svg x="{x(c.relative)}"><path class="{kind}" d="M{back} 6 0 12 {back} 18z"/></svg>'
    return (
        f'<svg role="img" aria-label="{words}"><line class="axis" x1="50%" x2="50%" y1="0" y2="24"/>'
        f'<line class="{kind}" x1="{x(low)}" x2="{x(high)}" y1="12" y2="12" stroke-width="3"/>'
        f"{mark}</svg>"
    )


# --- A comparison for programs; docs/guide-compare.md describes every key


def _change_json(c: Change) -> dict[str, Any]:
    ends = c.interval if c.interval is not None else (None, None)
    return {
        "a_s": round(c.a, 9),
        "b_s": round(c.b, 9),
        "change": _short(c.relative),
        "interval": [_short(e) for e in ends],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6) + 0.0  # no -0.0


def _seconds_json(c: Change, step_s: float) -> dict[str, Any]:
    """The change in seconds, for when a ratio says nothing."""
    ends = c.interval_s if c.interval_s is not None else (None, None)
    return {
        "seconds": round(c.difference, 9),
        "interval_s": [None if e is None else round(e, 9) for e in ends],
        "of_step": round(c.difference / step_s, 6) if step_s > 0 else None,
    }


def _side_json(letter: str, side: Side) -> dict[str, Any]:
    keys = ("id", "start", "command", "host", "version")
    return {
        "name": letter,
        "path": side.name,
        **{k: side.run.get(k) for k in keys},
        "steady_steps": side.steps,
        "ranks": side.ranks,
        "runs": len(side.members),
        "verdict": side.report.get("verdict"),
    }


def _comparison_json(c: Comparison, name: str) -> dict[str, Any]:
    stages = {s: _change_json(x) for s, x in c.stages.items()}
    for stage in c.unseen:
        sides = [side.stage(stage) for side in (c.a, c.b)]
        a, b = (None if x is None or not x.size else round(float(np.median(x)), 9) for x in sides)
        stages[stage] = {"a_s": a, "b_s": b, "change": None, "interval": [None, None]}
    return {
        "answer": c.answer,
        "difference": c.difference,
        "changed": c.changed,
        "stages": stages,
        "step": _change_json(c.step),
        "verdict": headline(c, name),
        "enough_steps": c.enough,
        "changed_in_bursts": c.changed_in_bursts,
        "bursts": {s: _change_json(x) for s, x in c.bursts.items()},
        "step_mean": _change_json(c.step_mean),
        "differences": {s: _seconds_json(x, c.step.a) for s, x in c.stages.items()},
        "throughput": {f.id: f.to_json() for f in c.throughput},
        "device": {
            **({"busy_per_step": _change_json(c.device_busy)} if c.device_busy is not None else {}),
            **{f.id: f.to_json() for f in c.device},
        },
        "io": {f.id: f.to_json() for f in c.io},
        "findings": c.findings,
        "whole_run": None if c.whole is None else {**_part_json(c.whole), "changed": c.changed_parts},
        "parts": {p: _part_json(x) for p, x in c.parts.items()},
        "steps_per_block": c.block,
        "steps_needed": c.steps_needed() if c.answer == "cannot_tell" else None,
        "notes": notes(c),
    }


def _part_json(x: RunPart) -> dict[str, Any]:
    return {"a_s": round(x.a, 9), "b_s": round(x.b, 9), "change": _short(x.b / x.a - 1) if x.a else None}


def to_json(comparisons: list[Comparison]) -> dict[str, Any]:
    """The first two runs at the top level; `others` has each further run compared with the first."""
    names = letters(len(comparisons) + 1)
    sides = [comparisons[0].a, *(c.b for c in comparisons)]
    out = {
        **_comparison_json(comparisons[0], names[1]),
        "confidence": 1 - FALSE_ALARMS,
        "runs": [_side_json(n, s) for n, s in zip(names, sides, strict=True)],
    }
    if len(comparisons) > 1:
        out["others"] = [
            {"name": n, **_comparison_json(c, n)} for n, c in zip(names[2:], comparisons[1:], strict=True)
        ]
    return out
