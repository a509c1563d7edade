"""Can this trace be trusted? What it says of itself, and what is missing from it."""

from __future__ import annotations

from typing import Any

from dftracer.analyze.finding import Context, Finding
from dftracer.analyze.job import Job

__all__ = ["evidence_findings", "statement"]


def statement(job: Job) -> dict[str, Any]:
    """The head of every report."""
    processes = [p.process for p in job.partials]
    ends = [p.end or {} for p in processes]
    span = max(0, job.last_us - job.first_us) / 1e6
    dropped: dict[str, int] = {}
    for end in ends:
        for key, value in end.items():
            if key.startswith("dropped_") and isinstance(value, int) and value:
                dropped[key.removeprefix("dropped_")] = dropped.get(key.removeprefix("dropped_"), 0) + value
    counts = [p.counts for p in processes]
    missing = [p.pid for p in processes if p.end is None]
    world = max((p.world_size or 0 for p in processes), default=0)
    seen = {p.rank for p in processes if p.rank is not None}
    slowest = job.slowest
    if slowest is not None and slowest.wall_us.sum() > 0:
        coverage = 1 - float(slowest.stage_us("unexplained").sum()) / float(slowest.wall_us.sum())
    elif span > 0 and job.partials:
        longest = max(job.partials, key=lambda p: (p.last_us or 0) - (p.first_us or 0))
        whole = (longest.last_us or 0) - (longest.first_us or 0)
        coverage = longest.covered_us / whole if whole else 0.0
    else:
        coverage = 0.0
    drift = [abs(e["clock_drift_ns"]) for e in ends if isinstance(e.get("clock_drift_ns"), int)]
    writer = [e["writer_cpu_us"] for e in ends if isinstance(e.get("writer_cpu_us"), int)]
    overhead = [e["overhead_us"] for e in ends if isinstance(e.get("overhead_us"), int)]
    return {
        "events": sum(p.events for p in job.partials),
        "processes": len(processes),
        "ranks": len(job.ranks),
        "hosts": len({p.host for p in processes}),
        "span_s": round(span, 6),
        "dropped": sum(int(e.get("dropped", 0) or 0) for e in ends),
        "dropped_by_reason": dropped,
        "truncated_files": sum(1 for c in counts if c.get("members_cut") or c.get("cut_lines")),
        "bad_lines": sum(c.get("bad_lines", 0) for c in counts),
        "processes_without_end": missing,
        "recovered_processes": [p.pid for p, e in zip(processes, ends, strict=True) if e.get("recovered")],
        "ranks_missing": sorted(set(range(world)) - seen) if world and seen else [],
        "coverage": round(coverage, 4),
        "clock_error_us": round(max(drift) / 1e3, 3) if drift else None,
        "writer_cpu_s": round(sum(writer) / 1e6, 6) if writer else None,
        "overhead_s": round(sum(overhead) / 1e6, 6) if overhead else None,
        "bytes": sum(c.get("file_bytes", 0) for c in counts),
        "files": [str(p.file) for p in processes],
        "start_us": job.first_us,
    }


def evidence_findings(c: Context, said: dict[str, Any]) -> list[Finding]:
    """What weakens every other statement."""
    out: list[Finding] = []
    problems = []
    if said["processes_without_end"]:
        n = len(said["processes_without_end"])
        problems.append(f"{n} of {said['processes']} processes never reported their end")
    if said["recovered_processes"]:
        n = len(said["recovered_processes"])
        problems.append(
            f"{n} of {said['processes']} processes died without a word; their traces were completed from what"
            " they left"
        )
    if said["truncated_files"]:
        problems.append(f"{said['truncated_files']} files are cut")
    if said["dropped"]:
        problems.append(f"{said['dropped']} events were dropped")
    if said["bad_lines"]:
        problems.append(f"{said['bad_lines']} lines could not be read")
    if said["ranks_missing"]:
        problems.append(f"ranks {', '.join(map(str, said['ranks_missing'][:8]))} left no trace")
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
        out.append(
            Finding(
                "incomplete_trace",
                "The trace is incomplete: " + "; ".join(problems) + ".",
                0.0,
                0.0,
                "medium" if said["dropped"] or said["ranks_missing"] else "low",
                1.0,
                {k: said[k] for k in keys},
                "Numbers cover what was recorded. A process without an end was killed or still runs;"
                " `dftracer validate` tells"
                " which files, `dftracer repair` closes them.",
            )
        )
    rank = c.rank
    n = 0 if rank is None else len(rank.main.steps)
    if n < 3:
        out.append(
            Finding(
                "not_enough_evidence",
                "No training step can be seen in this trace."
                if n == 0
                else f"Only {n} steps were recorded: too few to judge the run.",
                0.0,
                0.0,
                "info",
                1.0,
                {"steps": n, "events": said["events"]},
                "Wrap the training loop: `for batch in ai.dataloader.fetch.iter(loader):`, and annotate"
                " forward, backward and"
                " the optimizer step.",
            )
        )
    return out
