"""The shape of a finding, and the words for how sure it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dftracer.analyze.job import Job, Rank

__all__ = ["FINDING_IDS", "Context", "Finding", "input_seconds", "severity_of", "sureness"]

FINDING_IDS = (
    "input_bound",
    "too_few_workers",
    "small_reads",
    "many_opens",
    "rereads",
    "cold_first_epoch",
    "checkpoint_stall",
    "exposed_comm",
    "straggler_rank",
    "straggler_worker",
    "slow_file",
    "slow_items",
    "device_idle",
    "recompiles",
    "step_drift",
    "first_step",
    "unexplained_time",
    "incomplete_trace",
    "not_enough_evidence",
)


@dataclass
class Finding:
    """One statement about the run. `seconds` is what a perfect cure would save, `percent` its share of the
    run.
    """

    id: str
    title: str
    seconds: float
    percent: float
    severity: str  # high, medium, low, info
    confidence: float  # 0..1
    evidence: dict[str, Any] = field(default_factory=dict)
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "title": self.title,
            "seconds": round(self.seconds, 6),
            "percent": round(self.percent, 3),
            "confidence": round(self.confidence, 2),
            "evidence": self.evidence,
            "advice": self.advice,
        }


def severity_of(percent: float) -> str:
    """How much of the run is at stake."""
    return "high" if percent >= 20 else "medium" if percent >= 8 else "low"


@dataclass
class Context:
    """What every rule may look at."""

    job: Job
    names: Any  # frame of per-name statistics
    files: Any  # frame of per-file statistics, None without I/O
    run_s: float  # from the first step to the end of the last, on the slowest rank; else the whole trace

    def percent(self, seconds: float) -> float:
        return 100.0 * seconds / self.run_s if self.run_s > 0 else 0.0

    def finding(self, ident: str, title: str, seconds: float, confidence: float, **more: Any) -> Finding:
        percent = self.percent(seconds)
        severity = more.pop("severity", None) or severity_of(percent)
        return Finding(ident, title, seconds, percent, severity, confidence, **more)

    @property
    def rank(self) -> Rank | None:
        return self.job.slowest

    def at_stake(self, seconds: float) -> float:
        """I/O that runs beside compute costs nothing: what it can cost is what the steps waited for input."""
        rank = self.rank
        return seconds if rank is None else min(seconds, sum(input_seconds(rank).values()))


def input_seconds(rank: Rank) -> dict[str, float]:
    """Input time in seconds by stage: the main thread's own, and the wait as the workers explain it."""
    out = {s: float(rank.stage_us(s).sum()) / 1e6 for s in ("read", "preprocess", "collate")}
    wait = float(rank.stage_us("fetch_wait").sum()) / 1e6
    explained = rank.wait_stages_us()
    whole = sum(explained.values())
    if whole <= 0:
        out["fetch_wait"] = wait
    for stage, us in explained.items():
        out[stage] = out.get(stage, 0.0) + wait * us / whole
    return {k: v for k, v in out.items() if v > 0}


def sureness(n: int) -> float:
    """Confidence from the number of steps (or items) behind a statement."""
    return 0.3 if n < 5 else 0.6 if n < 20 else 0.8 if n < 100 else 0.95
