"""The report as one JSON document; docs/report.md describes every key."""

from __future__ import annotations

from typing import Any

from dftracer.analyze import Analysis, views
from dftracer.analyze.device import device_document

__all__ = ["SCHEMA", "document"]

SCHEMA = "dftracer.report/1"
_MOST_FILES = 1000


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def document(analysis: Analysis) -> dict[str, Any]:
    """Everything a program may want to know; keys are added over time, never renamed."""
    files = analysis.file_table
    phases = analysis.phases
    nothing = {"seconds": 0.0, "share": 0.0}
    return {
        "schema": SCHEMA,
        "trace": analysis.trace_facts,
        "verdict": analysis.verdict,
        "head": list(analysis.head),
        "bound": None if analysis.bound is None else analysis.bound.to_json(),
        "run": analysis.run,
        "run_s": round(analysis.run_s, 6),
        **{k: phases.get(k, nothing) for k in ("steady", "startup", "evaluation", "outside", "profiled")},
        "au": analysis.au,
        "samples_per_s": analysis.samples_per_s,
        "ranks": analysis.ranks,
        "ledger": analysis.ledger,
        "overlap": analysis.overlap,
        "findings": [f.to_json() for f in analysis.findings],
        "names": _rounded(analysis.name_table.to_dicts()),
        "files": [] if files is None else _rounded(files.head(_MOST_FILES).to_dicts()),
        "files_total": 0 if files is None else files.height,
        "model": analysis.model,
        "device": device_document(analysis.job),
        "workers": _rounded(views.workers(analysis.job).to_dicts()),
    }
