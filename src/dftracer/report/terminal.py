"""The report as text: on a terminal, and in a few lines of Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dftracer._console import safe_console
from dftracer._packages import need
from dftracer._text import (
    Column,
    bar,
    bar_room,
    bytes_text,
    count_text,
    counted,
    plural,
    print_table,
    seconds_text,
    shortened,
)
from dftracer.analyze import STAGES, Analysis, frames
from dftracer.report.contents import (
    COLOURS,
    LINE_COLOURS,
    PHASE_WORDS,
    account_rows,
    account_title,
    culprit,
    ended_words,
    evidence_line,
    head,
    notes,
    shown_files,
    without_waiting,
)
from dftracer.report.device import device_lines, print_device
from dftracer.report.machine import print_machine

if TYPE_CHECKING:
    from rich.console import Console


# --- The report on a terminal


_SHARES = (Column("time", right=True), Column("share", right=True))
_WORKER_COLUMNS = (
    Column("rank", right=True),
    Column("worker", right=True),
    Column("pid", right=True, drop=1),
    Column("busy", right=True),
    Column("read", right=True),
    Column("prepare", right=True),
    Column("items", right=True, drop=2),
    Column("item p50", right=True),
    Column("item p99", right=True),
)
_EVENT_COLUMNS = (
    Column("event", lead=True),
    *(Column(name, right=True) for name in ("count", "total", "self")),
    Column("median", right=True, drop=2),
    Column("p99", right=True, drop=1),
    Column("max", right=True, drop=3),
)
_FILE_COLUMNS = (
    Column("path", lead=True, tail=True),
    Column("opens", right=True, drop=1),
    Column("reads", right=True, drop=2),
    *(Column(name, right=True) for name in ("read", "written", "time", "rate/s")),
)
_PLACES = 8
_FACTS = 6  # of the evidence of a finding
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "cyan", "info": "dim"}


def print_report(
    analysis: Analysis, console: Console | None = None, findings: int = 8, names: int = 10
) -> None:
    """Print what matters, most important first."""
    need("rich.console")
    con = console or safe_console()
    _head(con, analysis)
    _account(con, analysis)
    _findings(con, analysis, findings)
    _ledger(con, analysis)
    print_device(con, analysis)
    _own_code(con, analysis)
    print_machine(con, analysis)
    _workers(con, analysis)
    _names(con, analysis, names)
    _files(con, analysis)


def _head(con: Console, a: Analysis) -> None:
    t = a.trace_facts
    panel, text = need("rich.panel"), need("rich.text")
    verdict, why, advice = head(a)
    lines = text.Text()
    ended = ended_words(a)
    if ended:
        lines.append(f"{ended}\n", style="bold red" if a.ended.failed else "")
    lines.append(verdict, style="bold")
    for line in (why, f"Try: {advice}" if advice else ""):
        lines.append(f"\n{line}" if line else "")
    con.print(panel.Panel(lines, title="dftracer", border_style="blue", expand=True))
    for line in notes(a):
        con.print(line, style="yellow")
    facts = [
        counted(t["events"], "event"),
        plural(t["processes"], "process", "processes"),
        *([plural(t["ranks"], "rank")] if t["ranks"] else []),
        f"run of {seconds_text(a.run_s)}",
        *([f"{100 * t['coverage']:.0f} % of step time explained"] if a.job.slowest is not None else []),
        f"{plural(t['dropped'], 'event')} dropped",
        f"{plural(t['truncated_files'], 'file')} truncated",
    ]
    died = len(t["recovered_processes"]) + len(t["processes_without_end"])
    if died:
        facts.append(f"{plural(died, 'process', 'processes')} died or still running")
    if t["clock_error_us"] is not None:
        facts.append(f"clock within {t['clock_error_us']:.0f} us")
    if t["writer_cpu_s"] is not None:
        facts.append(f"tracer used {seconds_text(t['writer_cpu_s'])} of CPU")
    if t["overhead_s"] is not None:
        facts.append(f"recording cost {seconds_text(t['overhead_s'])}")
    con.print("  ·  ".join(facts), style="dim")


def _account(con: Console, a: Analysis) -> None:
    """The account that the verdict is drawn from."""
    lines = account_rows(a)
    if not lines:
        return
    text = need("rich.text")
    longest = bar_room(con, 44)
    rows: list[list[Any]] = [
        [
            row.words,
            seconds_text(row.seconds),
            f"{100 * row.share:.1f} %",
            bar(longest * row.share, LINE_COLOURS[row.line], row.culprit),
        ]
        for row in lines
    ]
    whole = sum(row.seconds for row in lines)
    rows.append(["all", seconds_text(whole), "100 %", ""])
    columns = (Column("activity", whole=True), *_SHARES, Column("", drop=1))
    print_table(con, "Where the time goes", columns, rows)
    con.print(text.Text(account_title(a), style="dim"))


def _findings(con: Console, a: Analysis, most: int) -> None:
    if not a.findings:
        return
    con.print()
    con.print("Findings", style="bold")
    text = need("rich.text")
    for f in a.findings[:most]:
        head = text.Text(f" {f.severity:<6} ", style=_SEVERITY[f.severity])
        head.append(f.title, style="bold" if f.severity in {"high", "medium"} else "")
        if f.seconds:
            head.append(
                f"  {seconds_text(f.seconds)}, {f.percent:.1f} %, confidence {f.confidence:.2f}", style="dim"
            )
        con.print(head)
        con.print(text.Text(f.advice, style="dim"), soft_wrap=False)
        facts = evidence_line(f.evidence, _FACTS)
        if facts:
            con.print(text.Text(facts, style="dim"), soft_wrap=False)
        for symptom in f.symptoms:
            con.print(text.Text(f"symptom: {symptom.title}", style="dim"), soft_wrap=False)
    if len(a.findings) > most:
        con.print(f" ... and {len(a.findings) - most} more (--json has all)", style="dim")


def _ledger(con: Console, a: Analysis) -> None:
    ranks = [r for r in a.job.ranks if len(r.main.steps)]
    if not ranks:
        return
    text = need("rich.text")
    slowest = a.job.slowest
    assert slowest is not None
    wall = max(1.0, float(slowest.wall_us.sum()))
    blamed = culprit(a)
    longest = bar_room(con, 36)
    rows: list[list[Any]] = []
    for stage in STAGES:
        us = float(slowest.stage_us(stage).sum())
        if us <= 0:
            continue
        drawn = bar(longest * us / wall, COLOURS[stage], stage == blamed)
        rows.append([stage.replace("_", " "), seconds_text(us / 1e6), f"{100 * us / wall:.1f} %", drawn])
    n = plural(len(slowest.main.steps), "step")
    rows.append(
        ["all", seconds_text(wall / 1e6), "100 %", text.Text(f"{n} of rank {slowest.number}", style="dim")]
    )
    columns = (Column("stage", whole=True), *_SHARES, Column("", drop=1))
    print_table(con, "Where the step time goes", columns, rows)
    _phases(con, a)
    if len(ranks) > 1:
        _ranks(con, a)


def _phases(con: Console, a: Analysis) -> None:
    """The parts of the run; only the steps if there is nothing else."""
    pieces = [(name, row) for name, row in a.phases.items() if name == "steady" or row["share"] >= 0.001]
    if len(pieces) < 2:
        return
    text = need("rich.text")
    rows = []
    for name, row in pieces:
        mark = text.Text("◀" if name == culprit(a) else "", style="bold red")
        rows.append([PHASE_WORDS[name], seconds_text(row["seconds"]), f"{100 * row['share']:.1f} %", mark])
    rows.append(["run", seconds_text(a.run_s), "100 %", text.Text()])
    print_table(con, "The whole run", (Column("part", whole=True), *_SHARES, Column("")), rows)


def _ranks(con: Console, a: Analysis) -> None:
    text = need("rich.text")
    ranks = sorted(a.job.ranks, key=lambda r: -int(r.wall_us.sum()))
    longest = max(1.0, float(ranks[0].wall_us.sum()))
    room = min(40, con.width - 20)
    rows = []
    for r in ranks[:16]:
        drawn = text.Text()
        stages, waited = without_waiting(r)
        for stage, seconds in stages.items():
            drawn.append("█" * round(room * 1e6 * seconds / longest), style=COLOURS[stage])
        drawn.append("█" * round(room * 1e6 * waited / longest), style=LINE_COLOURS["peers"])
        rows.append([str(r.number), seconds_text(float(r.wall_us.sum()) / 1e6), drawn])
    columns = (Column("rank", right=True), Column("step time", right=True), Column("stages", drop=1))
    print_table(con, "Ranks, slowest first", columns, rows)


def _workers(con: Console, a: Analysis) -> None:
    table = frames.workers(a.job)
    if table.height == 0:
        return
    rows = [
        [
            str(w["rank"]),
            str(w["worker"]),
            str(w["pid"]),
            f"{100 * w['busy_share']:.0f} %",
            seconds_text(w["read_s"]),
            seconds_text(w["preprocess_s"] + w["collate_s"]),
            str(w["items"]),
            *("-" if w[k] is None else seconds_text(w[k] / 1e6) for k in ("item_p50_us", "item_p99_us")),
        ]
        for w in table.head(16).iter_rows(named=True)
    ]
    print_table(con, "Loader workers", _WORKER_COLUMNS, rows)


def _own_code(con: Console, a: Analysis) -> None:
    """Where the program's own code spends its time, as sampled."""
    sampled = a.own_code
    if sampled is None or not sampled["places"]:
        return
    rows = [
        [p["where"], seconds_text(p["seconds"]), f"{100 * p['share']:.1f} %"]
        for p in sampled["places"][:_PLACES]
    ]
    columns = (Column("function and line", lead=True), *_SHARES)
    print_table(con, "The program's own code, as sampled", columns, rows)


def _names(con: Console, a: Analysis, most: int) -> None:
    rows = [
        [
            f"{r['cat']}: {r['name']}",
            count_text(r["count"]),
            seconds_text(r["total_s"]),
            seconds_text(r["self_s"]),
            *(seconds_text(r[k] / 1e6) for k in ("p50_us", "p99_us", "max_us")),
        ]
        for r in a.name_table.head(most).iter_rows(named=True)
    ]
    print_table(con, "Events", _EVENT_COLUMNS, rows)


def _files(con: Console, a: Analysis) -> None:
    if a.file_table is None:
        return
    rows = [
        [
            shortened(r["path"], 40, tail=True),
            str(r["opens"]),
            str(r["reads"]),
            bytes_text(r["read_bytes"]),
            bytes_text(r["write_bytes"]),
            seconds_text(r["time_s"]),
            "-" if r["read_mb_s"] is None else bytes_text(r["read_mb_s"] * 1e6),
        ]
        for r in shown_files(a.file_table).head(8).iter_rows(named=True)
    ]
    print_table(con, f"Files ({a.file_table.height})", _FILE_COLUMNS, rows)


# --- The report in a few lines of Markdown: short enough to paste into a chat


_MARKDOWN_FACTS = 4  # of the evidence of a finding


def markdown(a: Analysis, findings: int = 5) -> str:
    """Verdict, findings, ledger."""
    t = a.trace_facts
    verdict, why, advice = head(a)
    ended = ended_words(a)
    lines = [
        *([f"**{ended}**"] if ended else []),
        f"**{verdict}**",
        *filter(None, (why, f"Try: {advice}" if advice else "")),
        "",
        *notes(a),
        f"{count_text(t['events'])} events of {plural(t['processes'], 'process', 'processes')},"
        f" {plural(t['ranks'], 'rank')}, {seconds_text(a.run_s)};"
        f" {100 * t['coverage']:.0f} % of step time explained, {plural(t['dropped'], 'event')} dropped,"
        f" {plural(t['truncated_files'], 'file')} truncated.",
        "",
    ]
    account = account_rows(a)
    if account:
        title = account_title(a)
        lines += [f"| where the time goes ({title[0].lower()}{title[1:]}) | s | % |", "|---|---:|---:|"]
        for line in account:
            name = f"**{line.words}**" if line.culprit else line.words
            lines.append(f"| {name} | {line.seconds:.3f} | {100 * line.share:.1f} |")
        lines += [f"| all | {sum(line.seconds for line in account):.3f} | 100 |", ""]
    for f in a.findings[:findings]:
        cost = f" ({seconds_text(f.seconds)}, {f.percent:.0f} %)" if f.seconds else ""
        lines.append(f"- **{f.id}** [{f.severity}]: {f.title}{cost} {f.advice}")
        facts = evidence_line(f.evidence, _MARKDOWN_FACTS)
        lines += [f"  - {facts}"] if facts else []
        lines += [f"  - symptom: {s.title}" for s in f.symptoms]
    slowest = a.job.slowest
    if slowest is not None:
        wall = max(1.0, float(slowest.wall_us.sum()))
        lines += [
            "",
            f"| stage (rank {slowest.number}, {plural(len(slowest.main.steps), 'step')}) | s | % |",
            "|---|---:|---:|",
        ]
        for stage in STAGES:
            us = float(slowest.stage_us(stage).sum())
            if us > 0:
                name = f"**{stage}**" if stage == culprit(a) else stage
                lines.append(f"| {name} | {us / 1e6:.3f} | {100 * us / wall:.1f} |")
        lines.append(f"| all | {wall / 1e6:.3f} | 100 |")
        pieces = [(k, row) for k, row in a.phases.items() if k != "steady" and row["share"] >= 0.001]
        if pieces:
            lines += ["", f"| of the run ({a.run_s:.3f} s) | s | % |", "|---|---:|---:|"]
            for name, row in pieces:
                lines.append(f"| {PHASE_WORDS[name]} | {row['seconds']:.3f} | {100 * row['share']:.1f} |")
    lines += device_lines(a)
    return "\n".join(lines) + "\n"
