"""The report as one JSON document; docs/report.md describes every key."""

from __future__ import annotations

from typing import Any

from dftracer.analyze import Analysis, frames
from dftracer.analyze.device.summary import device_document
from dftracer.analyze.ledger import steady_steps
from dftracer.analyze.map.account import Account

SCHEMA = "dftracer.report/2"
_MOST_FILES = 1000
_PIECES = ("steady", "startup", "compilation", "evaluation", "outside", "profiled")


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


_IO_SUMS = (
    "ops",
    "opens",
    "reads",
    "writes",
    "read_bytes",
    "write_bytes",
    "time_s",
    "read_s",
    "write_s",
    "small_reads",
)


def _io(analysis: Analysis) -> dict[str, Any] | None:
    """All files together; None if no I/O was traced."""
    files = analysis.file_table
    if files is None:
        return None
    sums = {k: files[k].sum() for k in _IO_SUMS}
    return {"files": files.height, **_rounded([sums])[0]}


def comparable(analysis: Analysis) -> dict[str, Any]:
    """The part of the document used to compare runs."""
    return {
        "schema": SCHEMA,
        "verdict": analysis.verdict,
        "bound": None if analysis.bound is None else analysis.bound.to_json(),
        "account": Account().to_json() if analysis.account is None else analysis.account.to_json(),
        "account_s": 0.0 if analysis.account is None else round(analysis.account.whole_s, 6),
        "run": analysis.run,
        "run_s": round(analysis.run_s, 6),
        "ended": analysis.ended.to_json(),
        **{k: analysis.phases.get(k, {"seconds": 0.0, "share": 0.0}) for k in _PIECES},
        "au": analysis.au,
        "samples_per_s": analysis.samples_per_s,
        "steady_steps": steady_steps(analysis.job),
        "io": _io(analysis),
        "findings": [f.to_json() for f in analysis.findings],
        "model": analysis.model,
        "device": device_document(analysis.job),
        "machine": analysis.machine,
    }


def _training(a: Analysis) -> dict[str, Any]:
    """One of several trainings of a run."""
    main = a.job.ranks[0].main
    return {
        "pid": main.process.pid,
        "command": main.process.command or None,
        "steps": len(main.steps),
        "run_s": round(a.run_s, 6),
        "verdict": a.verdict,
        "bound": None if a.bound is None else a.bound.to_json(),
        "ended": a.ended.to_json(),
    }


def document(analysis: Analysis) -> dict[str, Any]:
    """Everything in the report, for programs; keys are added over time, never renamed."""
    files = analysis.file_table
    rest = comparable(analysis)
    return {
        "schema": SCHEMA,
        "trace": analysis.trace_facts,
        "verdict": rest.pop("verdict"),
        "head": list(analysis.head),
        "bound": rest.pop("bound"),
        "account": rest.pop("account"),
        "account_s": rest.pop("account_s"),
        "run": rest.pop("run"),
        "run_s": rest.pop("run_s"),
        **rest,
        "own_code": analysis.own_code,
        "attempts": [each.to_json() for each in analysis.attempts],
        "trainings": [_training(each) for each in analysis.trainings],
        "ranks": analysis.ranks,
        "ledger": analysis.ledger,
        "overlap": analysis.overlap,
        "names": _rounded(analysis.name_table.to_dicts()),
        "files": [] if files is None else _rounded(files.head(_MOST_FILES).to_dicts()),
        "files_total": 0 if files is None else files.height,
        "workers": _rounded(frames.workers(analysis.job).to_dicts()),
    }
