"""Can this trace be trusted? What it says about itself, and what is missing from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from dftracer._text import plural
from dftracer.analyze.finding import Context, Finding
from dftracer.analyze.job import Job
from dftracer.analyze.thresholds import FEW_STEPS
from dftracer.format.io_calls import IO_CATEGORIES
from dftracer.load.chunk import MISSING

__all__ = ["evidence_findings", "looks_like_training", "statement"]


def statement(job: Job) -> dict[str, Any]:
    """The head of every report."""
    processes = [p.process for p in job.partials]
    ends = [p.end or {} for p in processes]
    span = job.run_us / 1e6
    counts = [p.counts for p in processes]
    world = max((p.world_size or 0 for p in processes), default=0)
    seen = {p.rank for p in processes if p.rank is not None}
    drift = _said(ends, "clock_drift_ns")
    writer = _said(ends, "writer_cpu_us")
    overhead = _said(ends, "overhead_us")
    return {
        "events": sum(p.events for p in job.partials),
        "processes": len(processes),
        "ranks": len(job.ranks),
        "hosts": len({p.host for p in processes}),
        "span_s": round(span, 6),
        "dropped": sum(int(e.get("dropped", 0) or 0) for e in ends),
        "dropped_by_reason": _dropped_by_reason(ends),
        "truncated_files": sum(
            1
            for p, c in zip(processes, counts, strict=True)
            if c.get("members_cut") or c.get("cut_lines") or p.copied_with_damage
        ),
        "bad_lines": sum(c.get("bad_lines", 0) for c in counts),
        "processes_without_end": [p.pid for p in processes if p.end is None],
        "recovered_processes": [p.pid for p, e in zip(processes, ends, strict=True) if e.get("recovered")],
        "ranks_missing": sorted(set(range(world)) - seen) if world and seen else [],
        "coverage": round(_coverage(job), 4),
        "clock_error_us": round(max(map(abs, drift)) / 1e3, 3) if drift else None,
        "writer_cpu_s": round(sum(writer) / 1e6, 6) if writer else None,
        "overhead_s": round(sum(overhead) / 1e6, 6) if overhead else None,
        "bytes": sum(c.get("file_bytes", 0) for c in counts),
        "files": [str(p.file) for p in processes],
        "start_us": job.first_us,
    }


def _said(ends: list[dict[str, Any]], key: str) -> list[int]:
    """A value from the processes' `end` records."""
    return [end[key] for end in ends if isinstance(end.get(key), int)]


def _dropped_by_reason(ends: list[dict[str, Any]]) -> dict[str, int]:
    dropped: dict[str, int] = {}
    for end in ends:
        for key, value in end.items():
            if key.startswith("dropped_") and isinstance(value, int) and value:
                reason = key.removeprefix("dropped_")
                dropped[reason] = dropped.get(reason, 0) + value
    return dropped


def _coverage(job: Job) -> float:
    """How much of the slowest rank's steps is annotated; without steps, how much of the longest process."""
    slowest = job.slowest
    if slowest is not None and slowest.wall_us.sum() > 0:
        return 1 - float(slowest.stage_us("unexplained").sum()) / float(slowest.wall_us.sum())
    longest = max(job.partials, key=lambda p: (p.last_us or 0) - (p.first_us or 0), default=None)
    whole = 0 if longest is None else (longest.last_us or 0) - (longest.first_us or 0)
    return longest.covered_us / whole if longest is not None and whole else 0.0


def _who_died(job: Job) -> list[dict[str, Any]]:
    """The processes that did not end, their role in the training, and their last step."""
    mains = {id(r.main): r for r in job.ranks}
    feeding = {id(w.partial): (r, w.number) for r in job.ranks for w in r.workers if not w.thread}
    out: list[dict[str, Any]] = []
    for p in job.partials:
        end = p.process.end
        if end is not None and not end.get("recovered"):
            continue
        rank, worker = mains.get(id(p)), None
        if rank is None and id(p) in feeding:
            rank, worker = feeding[id(p)]
        row = {"pid": p.process.pid, "rank": p.process.rank, "worker": worker, "last_step": None}
        if rank is not None and len(rank.main.steps) and p.last_us is not None:
            steps = rank.main.steps
            at = int(np.searchsorted(steps.start, p.last_us, side="right")) - 1
            label = int(steps.step[max(at, 0)])
            row["last_step"] = max(at, 0) if label == MISSING else label
        out.append(row)
    return out


def _died_words(row: dict[str, Any]) -> str:
    role = (
        f"loader worker {row['worker']} of rank {row['rank']}"
        if row["worker"] is not None
        else f"rank {row['rank']}"
        if row["last_step"] is not None
        else ""
    )
    if not role:
        return f"pid {row['pid']}"
    last = "" if row["last_step"] is None else f", last step {row['last_step']}"
    return f"{role} (pid {row['pid']}{last})"


def _problems(said: dict[str, Any], died: list[dict[str, Any]]) -> Iterator[str]:
    n = len(said["processes_without_end"])
    of = f"of {plural(said['processes'], 'process', 'processes')}"
    if n:
        yield f"{n} {of} never reported {'its' if n == 1 else 'their'} end"
    n = len(said["recovered_processes"])
    if n:
        yield f"{n} {of} ended without closing {'its' if n == 1 else 'their'} trace; all events recovered"
    if died:
        more = f" and {len(died) - 4} more" if len(died) > 4 else ""
        yield (
            ("it is " if len(died) == 1 else "these are ")
            + ", ".join(_died_words(row) for row in died[:4])
            + more
        )
    n = said["truncated_files"]
    if n:
        yield f"{plural(n, 'file is', 'files are')} truncated or damaged"
    n = said["dropped"]
    if n:
        yield f"{plural(n, 'event was', 'events were')} dropped"
    n = said["bad_lines"]
    if n:
        yield f"{plural(n, 'line')} could not be read"
    missing = said["ranks_missing"]
    if missing:
        listed = ", ".join(map(str, missing[:8]))
        yield f"{'rank' if len(missing) == 1 else 'ranks'} {listed} left no trace"


def looks_like_training(c: Context) -> bool:
    """Whether anything in the run may be training: an annotation, or a framework that was loaded."""
    if c.names.filter(~pl.col("cat").str.to_lowercase().is_in([*IO_CATEGORIES, "dftracer"])).height:
        return True
    if c.files is None:
        return False
    return bool(c.files["path"].str.contains(r"/(torch|jax|tensorflow|keras)/__(init|pycache)__").any())


def evidence_findings(c: Context, said: dict[str, Any]) -> list[Finding]:
    """What weakens every other statement."""
    out: list[Finding] = []
    died = _who_died(c.job)
    problems = [*_problems(said, died)]
    if problems:
        keys = (
            "processes_without_end",
            "recovered_processes",
            "truncated_files",
            "dropped",
            "dropped_by_reason",
            "bad_lines",
            "ranks_missing",
        )
        serious = said["dropped"] or said["ranks_missing"] or any(d["last_step"] is not None for d in died)
        title = "The trace is incomplete: " + "; ".join(problems) + "."
        evidence = {**{k: said[k] for k in keys}, "died": died}
        severity = "medium" if serious else "low"
        out.append(Finding("incomplete_trace", title, 0.0, 0.0, severity, 1.0, evidence))
    rank = c.rank
    n = 0 if rank is None else len(rank.main.steps)
    if n < FEW_STEPS and c.bound is None and (n or looks_like_training(c)):
        seen = f"Only {plural(n, 'step was', 'steps were')} recorded: too few to judge the run."
        title = seen if n else "No training step can be seen in this trace."
        evidence = {"steps": n, "events": said["events"]}
        advice = "Let it run for more steps." if n else ""
        out.append(Finding("not_enough_evidence", title, 0.0, 0.0, "info", 1.0, evidence, advice))
    return out
