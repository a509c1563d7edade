"""What every report begins with: three lines, and notes on what it does not show."""

from __future__ import annotations

from datetime import UTC, datetime

from dftracer.analyze import Analysis
from dftracer.analyze.ledger import unseen_stages
from dftracer.analyze.stages import INPUT_STAGES, STAGE_INDEX
from dftracer.analyze.wording import stage_words

__all__ = ["PHASE_WORDS", "culprit", "head", "identity_rows", "notes"]

PHASE_WORDS = {
    "steady": "steps",
    "startup": "start-up",
    "evaluation": "evaluation",
    "outside": "between and after steps",
    "profiled": "added by the profiler",
}
_ROW = {"other": "other", "unseen": "unexplained", "between_steps": "outside"}


def head(analysis: Analysis) -> tuple[str, str, str]:
    """The verdict, why, and what to try next."""
    return analysis.head


def culprit(a: Analysis) -> str | None:
    """The row to mark: a stage of the ledger, or a part of the run."""
    if a.bound is None or a.view is None:
        return None
    part = a.bound.part
    if part.id == "input":
        return max(INPUT_STAGES, key=lambda s: a.view.stages_s[s] if a.view is not None else 0.0)
    if part.id in {"startup", "evaluation", *_ROW}:
        return _ROW.get(part.id, part.id)
    return part.stage if part.stage in STAGE_INDEX else None


def notes(a: Analysis) -> list[str]:
    """What a reader must know besides the verdict: stages not seen, other runs in the directory."""
    out = []
    if a.view is not None:
        unseen = unseen_stages(a.view.rank)
        if unseen:
            names = [stage_words(s) for s in unseen]
            listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
            out.append(f"{listed[0].upper()}{listed[1:]} {'was' if len(names) == 1 else 'were'} not seen.")
        n = a.view.rank.main.steps.elsewhere
        if n:
            is_are = "1 step of another thread is" if n == 1 else f"{n} steps of other threads are"
            out.append(f"{is_are} not shown: a rank's steps are those of the thread with the most.")
    others = a.run["others"]
    if others:
        told = "; ".join(_run_words(r) for r in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        is_are = "1 other run is" if len(others) == 1 else f"{len(others)} other runs are"
        out.append(
            f"{is_are} in the same place and {'was' if len(others) == 1 else 'were'} left out: {told}{more}."
        )
        out.append("Choose one with --run ID, or use --run all to treat all files as one run.")
    return out


def identity_rows(a: Analysis) -> list[tuple[str, str]]:
    """Which run this is: its command, place, time, versions and id, as far as known."""
    run = a.run
    hosts = a.trace_facts["hosts"]
    more = f" and {hosts - 1} more" if isinstance(hosts, int) and hosts > 1 else ""
    versions = [
        f"{what} {run[key]}"
        for what, key in (("dftracer", "version"), ("Python", "python"))
        if run[key] is not None
    ]
    rows = [
        ("command", run["command"]),
        ("host", f"{run['host']}{more}" if run["host"] else None),
        ("date", _when(run["start"])),
        ("versions", ", ".join(versions)),
        ("run", run["id"]),
        ("launcher", run["launcher"]),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _when(start: object) -> str | None:
    if not isinstance(start, int):
        return None
    try:
        return datetime.fromtimestamp(start / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a damaged record: no calendar goes that far
        return None


def _run_words(run: dict[str, object]) -> str:
    return f"{run['id'] or 'files without a run id'} ({_when(run['start']) or 'unknown time'})"
