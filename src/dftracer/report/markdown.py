"""The report in a few lines of Markdown: short enough to paste into a chat."""

from __future__ import annotations

from dftracer._units import count_text, plural, seconds_text
from dftracer.analyze import STAGES, Analysis
from dftracer.report.device import device_lines
from dftracer.report.evidence import evidence_line
from dftracer.report.head import PHASE_WORDS, account_rows, account_title, culprit, ended_words, head, notes

__all__ = ["markdown"]

_FACTS = 4  # of the evidence of a finding


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
        f" {plural(t['truncated_files'], 'file')} cut.",
        "",
    ]
    told = account_rows(a)
    if told:
        lines += [f"| where the time goes ({account_title(a)}) | s | % |", "|---|---:|---:|"]
        for line in told:
            name = f"**{line.words}**" if line.culprit else line.words
            lines.append(f"| {name} | {line.seconds:.3f} | {100 * line.share:.1f} |")
        lines += [f"| all | {sum(line.seconds for line in told):.3f} | 100 |", ""]
    for f in a.findings[:findings]:
        cost = f" ({seconds_text(f.seconds)}, {f.percent:.0f} %)" if f.seconds else ""
        lines.append(f"- **{f.id}** [{f.severity}]: {f.title}{cost} {f.advice}")
        facts = evidence_line(f.evidence, _FACTS)
        lines += [f"  - {facts}"] if facts else []
        lines += [f"  - shows in: {s.title}" for s in f.symptoms]
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
