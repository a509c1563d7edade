"""What a trace says about itself: whether it can be trusted, what is missing from it, and how the run ended.

The end of a run is what its processes said, what their parents saw, and what the launcher wrote down.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dftracer._text import plural, times_text
from dftracer.analyze.job import Job, Rank, attempt_of
from dftracer.analyze.map.partial import Partial
from dftracer.analyze.rules.finding import Finding, JudgingContext
from dftracer.analyze.thresholds import FEW_STEPS
from dftracer.format.io_calls import IO_CATEGORIES
from dftracer.format.trace_names import noted_failure, signal_name
from dftracer.load.chunk import MISSING
from dftracer.load.process import as_integer


def trace_facts(job: Job) -> dict[str, Any]:
    """What the trace says about itself: `trace` of the report."""
    processes = [p.process for p in job.partials]
    ends = [p.end or {} for p in processes]
    span = job.run_us / 1e6
    counts = [p.counts for p in processes]
    world = max((p.world_size or 0 for p in processes), default=0)
    seen = {p.rank for p in processes if p.rank is not None}
    drift = _in_ends(ends, "clock_drift_ns")
    writer = _in_ends(ends, "writer_cpu_us")
    overhead = _in_ends(ends, "overhead_us")
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


def _in_ends(ends: list[dict[str, Any]], key: str) -> list[int]:
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


def evidence_findings(c: JudgingContext, facts: dict[str, Any]) -> list[Finding]:
    """Findings about the trace itself: they weaken all others."""
    out: list[Finding] = []
    died = _who_died(c.job)
    problems = [*_problems(facts, died)]
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
        serious = facts["dropped"] or facts["ranks_missing"] or any(d["last_step"] is not None for d in died)
        title = "The trace is incomplete: " + "; ".join(problems) + "."
        evidence = {**{k: facts[k] for k in keys}, "died": died}
        severity = "medium" if serious else "low"
        out.append(Finding("incomplete_trace", title, 0.0, 0.0, severity, 1.0, evidence))
    rank = c.rank
    n = 0 if rank is None else len(rank.main.steps)
    if n < FEW_STEPS and c.bound is None and (n or _looks_like_training(c)):
        seen = f"Only {plural(n, 'step was', 'steps were')} recorded: too few to judge the run."
        title = seen if n else "No training step can be seen in this trace."
        evidence = {"steps": n, "events": facts["events"]}
        advice = "Let it run for more steps." if n else ""
        out.append(Finding("not_enough_evidence", title, 0.0, 0.0, "info", 1.0, evidence, advice))
    return out


def _looks_like_training(c: JudgingContext) -> bool:
    """Whether anything in the run may be training: an annotation, or a framework that was loaded."""
    if c.names.filter(~pl.col("cat").str.to_lowercase().is_in([*IO_CATEGORIES, "dftracer"])).height:
        return True
    if c.files is None:
        return False
    return bool(c.files["path"].str.contains(r"/(torch|jax|tensorflow|keras)/__(init|pycache)__").any())


def _problems(facts: dict[str, Any], died: list[dict[str, Any]]) -> Iterator[str]:
    n = len(facts["processes_without_end"])
    of = f"of {plural(facts['processes'], 'process', 'processes')}"
    if n:
        yield f"{n} {of} never reported {'its' if n == 1 else 'their'} end"
    n = len(facts["recovered_processes"])
    if n:
        yield f"{n} {of} ended without closing {'its' if n == 1 else 'their'} trace; all events recovered"
    if died:
        more = f" and {len(died) - 4} more" if len(died) > 4 else ""
        yield (
            ("it is " if len(died) == 1 else "these are ")
            + ", ".join(_died_words(row) for row in died[:4])
            + more
        )
    n = facts["truncated_files"]
    if n:
        yield f"{plural(n, 'file is', 'files are')} truncated or damaged"
    n = facts["dropped"]
    if n:
        yield f"{plural(n, 'event was', 'events were')} dropped"
    n = facts["bad_lines"]
    if n:
        yield f"{plural(n, 'line')} could not be read"
    missing = facts["ranks_missing"]
    if missing:
        listed = ", ".join(map(str, missing[:8]))
        yield f"{'rank' if len(missing) == 1 else 'ranks'} {listed} left no trace"


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


@dataclass(frozen=True)
class Ended:
    """The end of the process that the run failed with; of the main process if it did not fail."""

    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None  # "RuntimeError at train.py:88"
    rank: int | None = None
    step: int | None = None  # steps that it had finished
    attempts: int = 1

    @property
    def failed(self) -> bool:
        return bool(self.exit_code or self.signal or self.exception)

    def to_json(self) -> dict[str, Any]:
        return {
            key: getattr(self, key)
            for key in ("exit_code", "signal", "exception", "rank", "step", "attempts")
        }

    def words(self, ranks: int) -> str | None:
        """One line for the head of a report; None if there is nothing to say."""
        often = f" It was restarted {times_text(self.attempts - 1)}." if self.attempts > 1 else ""
        if not self.failed:
            return f"It finished normally.{often}" if often else None
        who = f"Rank {self.rank} failed" if ranks > 1 and self.rank is not None else "Failed"
        after = "" if self.step is None else f" after {plural(self.step, 'step')}"
        if self.signal == "SIGINT" or (self.exception or "").startswith("KeyboardInterrupt"):
            return (
                f"{who.replace('failed', 'was interrupted').replace('Failed', 'Interrupted')}{after}.{often}"
            )
        why = self.exception or (f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code}")
        return f"{who}{after}: {why}.{often}"


def how_it_ended(job: Job) -> Ended:
    """The first process that failed by itself; those that were ended because of it come after it."""
    children = {pid: status for p in job.partials for pid, status in p.left.items()}
    attempts = 1 + max((attempt_of(p) for p in job.partials), default=0)
    main_ranks = {id(r.main): r for r in job.ranks if attempt_of(r.main) == attempts - 1}
    ends = [(p, *_end_of(p, children)) for p in job.partials]
    last = [e for e in ends if attempt_of(e[0]) == attempts - 1] if attempts > 1 else ends
    failed = [e for e in last if e[1] or e[2] or e[3]]
    failed = [e for e in failed if _is_root_failure(e[0], failed, main_ranks)]
    if failed:
        # A launcher ends the other ranks when one has failed.
        first = min(failed, key=lambda e: (e[2] is not None, e[3] is None, _when(e[0])))
        partial, code, sent, exception = first
        step = partial.finished_steps if len(partial.steps) or id(partial) in main_ranks else None
        return Ended(code, sent, exception, partial.process.rank, step, attempts)
    noted = _noted(job)
    rank = job.slowest
    if main_ranks and (rank is None or id(rank.main) not in main_ranks):  # the last attempt had fewer ranks
        rank = max(main_ranks.values(), key=lambda r: r.main.finished_steps)
    number = None if rank is None else rank.number
    step = None if rank is None else rank.main.finished_steps
    if noted is not None:
        return Ended(
            as_integer(noted.get("exit_code"), None), noted.get("signal"), None, number, step, attempts
        )
    codes = [e[1] for e in last if e[1] is not None and (rank is None or e[0] is rank.main)]
    return Ended(codes[0] if codes else None, None, None, number, step, attempts)


def attempts(job: Job) -> list[Ended]:
    """How each attempt ended, if the launcher restarted the job."""
    numbers = sorted({attempt_of(p) for p in job.partials if p.process.world_size is not None})
    if len(numbers) < 2:
        return []
    return [replace(how_it_ended(_of_attempt(job, n)), attempts=1) for n in numbers]


def _of_attempt(job: Job, number: int) -> Job:
    mine = [p for p in job.partials if attempt_of(p) == number or p.process.world_size is None]
    part = Job(mine)
    for p in mine:
        if len(p.steps) and attempt_of(p) == number and p.process.rank is not None:
            part.ranks.append(Rank(p.process.rank, p))
    return part


def _end_of(p: Partial, children: dict[int, int]) -> tuple[int | None, str | None, str | None]:
    """Exit code, signal and exception of one process."""
    end, facts = p.process.end or {}, p.process.facts
    code = as_integer(end.get("exit_code"), None)
    sent = None
    status = children.get(p.process.pid)
    if status is not None:
        if status & 0x7F:
            code, sent = None, signal_name(status & 0x7F)
        elif code is None:
            code = status >> 8
    exception = facts.get("exception") if code != 0 else None
    if exception is not None and "exception_at" in facts:
        exception += f" at {os.path.basename(facts['exception_at'])}"
    return code, sent, exception


def _is_root_failure(p: Partial, failed: list[Any], main_ranks: dict[int, Rank]) -> bool:
    """Workers are killed when their loader goes, and tools are run to see whether they fail.

    So if a process that trains has failed, that is it; otherwise it is the first process of each rank, or of
    the run.
    """
    if any(id(e[0]) in main_ranks for e in failed):
        return id(p) in main_ranks
    if main_ranks:
        return False
    everyone = [e[0] for e in failed]
    numbered = [q for q in everyone if "rank" in q.process.facts]
    alike = [q for q in numbered if q.process.rank == p.process.rank] if numbered else everyone
    return p is min(alike, key=lambda q: (q.process.start_us or 0, q.process.pid), default=None)


def _when(p: Partial) -> int:
    raised = as_integer(p.process.facts.get("exception_us"), None)
    return raised or p.process.end_us or p.last_us or 0


def _noted(job: Job) -> dict[str, Any] | None:
    for run, folder in {
        (str(p.process.run["id"]), Path(p.process.file).parent) for p in job.partials if p.process.run
    }:
        noted = noted_failure(folder, run)
        if noted is not None:
            return noted
    return None
