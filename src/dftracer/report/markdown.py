"""The report in a few lines of Markdown: short enough to paste into a chat."""

from __future__ import annotations

from dftracer._units import count_text, seconds_text
from dftracer.analyze import STAGES, Analysis

__all__ = ["markdown"]


def markdown(a: Analysis, findings: int = 5) -> str:
    """Verdict, findings, ledger."""
    t = a.trace
    lines = [
        f"**{a.verdict}**",
        "",
        f"{count_text(t['events'])} events of {t['processes']} processes, {t['ranks']} ranks,"
        f" {seconds_text(t['span_s'])};"
        f" {100 * t['coverage']:.0f} % of step time explained, {t['dropped']} events dropped,"
        f" {t['truncated_files']} files cut.",
        "",
    ]
    for f in a.findings[:findings]:
        cost = f" ({seconds_text(f.seconds)}, {f.percent:.0f} %)" if f.seconds else ""
        lines.append(f"- **{f.id}** [{f.severity}]: {f.title}{cost} {f.advice}")
    slowest = a.job.slowest
    if slowest is not None:
        wall = max(1.0, float(slowest.wall_us.sum()))
        lines += [
            "",
            f"| stage (rank {slowest.number}, {len(slowest.main.steps)} steps) | s | % |",
            "|---|---:|---:|",
        ]
        for stage in STAGES:
            us = float(slowest.stage_us(stage).sum())
            if us > 0:
                lines.append(f"| {stage} | {us / 1e6:.3f} | {100 * us / wall:.1f} |")
        lines.append(f"| all | {wall / 1e6:.3f} | 100 |")
    return "\n".join(lines) + "\n"
