"""A comparison as tables of text, the same for terminal, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass, field

from dftracer.compare.comparison import PARTS, Comparison, RunPart
from dftracer.compare.figures import Figure
from dftracer.compare.sentences import change_text, interval_text, percent_text, time_text
from dftracer.compare.statistics import Change


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
