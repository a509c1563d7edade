"""How a run ended: what its processes said, what their parents saw, and what the launcher wrote down."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.analyze.job import Job, Rank, attempt_of
from dftracer.analyze.map.partial import Partial
from dftracer.format.files import noted_failure, signal_name
from dftracer.load.process import as_integer

__all__ = ["Ended", "how_it_ended"]


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
        often = f" It was restarted {_times(self.attempts - 1)}." if self.attempts > 1 else ""
        if not self.failed:
            return f"It ended well.{often}" if often else None
        who = f"Rank {self.rank} failed" if ranks > 1 and self.rank is not None else "Failed"
        after = "" if self.step is None else f" after {plural(self.step, 'step')}"
        if self.signal == "SIGINT" or (self.exception or "").startswith("KeyboardInterrupt"):
            return (
                f"{who.replace('failed', 'was interrupted').replace('Failed', 'Interrupted')}{after}.{often}"
            )
        why = self.exception or (f"killed by {self.signal}" if self.signal else f"exit code {self.exit_code}")
        return f"{who}{after}: {why}.{often}"


def _times(n: int) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times")


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


def how_it_ended(job: Job) -> Ended:
    """The first process that failed by itself; those that were ended because of it come after it."""
    children = {pid: status for p in job.partials for pid, status in p.left.items()}
    attempts = 1 + max((attempt_of(p) for p in job.partials), default=0)
    main_ranks = {id(r.main): r for r in job.ranks if attempt_of(r.main) == attempts - 1}
    ends = [(p, *_end_of(p, children)) for p in job.partials]
    last = [e for e in ends if attempt_of(e[0]) == attempts - 1] if attempts > 1 else ends
    failed = [e for e in last if e[1] or e[2] or e[3]]
    failed = [e for e in failed if _matters(e[0], failed, main_ranks)]
    if failed:
        # A launcher ends the other ranks when one has failed.
        first = min(failed, key=lambda e: (e[2] is not None, e[3] is None, _when(e[0])))
        partial, code, sent, exception = first
        step = partial.finished_steps if len(partial.steps) or id(partial) in main_ranks else None
        return Ended(code, sent, exception, partial.process.rank, step, attempts)
    noted = _noted(job)
    rank = job.slowest
    number = None if rank is None else rank.number
    step = None if rank is None else rank.main.finished_steps
    if noted is not None:
        return Ended(
            as_integer(noted.get("exit_code"), None), noted.get("signal"), None, number, step, attempts
        )
    said = [e[1] for e in last if e[1] is not None and (rank is None or e[0] is rank.main)]
    return Ended(said[0] if said else None, None, None, number, step, attempts)


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


def _matters(p: Partial, failed: list[Any], main_ranks: dict[int, Rank]) -> bool:
    """Workers are killed when their loader goes, and tools are run to see whether they fail.

    So if a process that trains has failed, that is it; otherwise it is the first process of the run.
    """
    if any(id(e[0]) in main_ranks for e in failed):
        return id(p) in main_ranks
    if main_ranks:
        return False
    numbered = [e[0] for e in failed if "rank" in e[0].process.facts]
    return p is min(
        numbered or [e[0] for e in failed], key=lambda q: (q.process.start_us or 0, q.process.pid)
    )


def _when(p: Partial) -> int:
    said = as_integer(p.process.facts.get("exception_us"), None)
    return said or p.process.end_us or p.last_us or 0


def _noted(job: Job) -> dict[str, Any] | None:
    for run, folder in {
        (str(p.process.run["id"]), Path(p.process.file).parent) for p in job.partials if p.process.run
    }:
        noted = noted_failure(folder, run)
        if noted is not None:
            return noted
    return None
