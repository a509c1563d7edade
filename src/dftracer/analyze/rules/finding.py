"""The structure of a finding, what rules look at, and the order of findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dftracer._text import seconds_text
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.map.account import LINE_OF_STAGE
from dftracer.analyze.rules.bound import Bound, JudgedRun
from dftracer.analyze.say.catalog import KINDS, specificity
from dftracer.analyze.stages import CLASSES, class_of
from dftracer.analyze.thresholds import (
    COMPUTE_ALONE,
    FINDING_SHARE,
    HIGH_PERCENT,
    LOW_PERCENT,
    MAJORITY,
    MEDIUM_PERCENT,
)

_KIND = {k.id: k for k in KINDS}

# The line of the account that a kind of finding is about; others say it by the stage in their evidence.
_LINES = {
    **dict.fromkeys(
        (
            "input_bound",
            "too_few_workers",
            "straggler_worker",
            "slow_items",
            "slow_file",
            "small_reads",
            "many_opens",
            "rereads",
            "cold_first_epoch",
        ),
        "input",
    ),
    "transfer_bound": "transfer",
    "exposed_comm": "comm",
    "checkpoint_stall": "checkpoint",
    "evaluation_time": "evaluation",
    "compilation_time": "compilation",
    "recompiles": "compilation",
    "own_code": "own_code",
    "user_stage": "own_code",
    "unexplained_time": "unexplained",
    "straggler_rank": "peers",
    "ranks_in_turn": "peers",
}

# What says how much a line takes: symptoms go into it, unless a specific cause explains most of it.
_OF_LINE = (
    "input_bound",
    "transfer_bound",
    "exposed_comm",
    "checkpoint_stall",
    "evaluation_time",
    "compilation_time",
    "own_code",
    "user_stage",
    "unexplained_time",
)

# Findings that are only symptoms of another one.
_HOST_LINES = ("input", "transfer", "own_code", "unexplained")
_SYMPTOMS = ("slow_steps", "step_drift", "device_idle", "too_few_workers", "small_reads", "many_opens")


@dataclass(repr=False)
class Finding:
    """One statement about the run. A perfect fix would save `seconds`, which is `percent` of the run."""

    id: str
    title: str
    seconds: float
    percent: float
    severity: str  # high, medium, low, info
    confidence: float  # 0..1
    evidence: dict[str, Any] = field(default_factory=dict)
    advice: str = ""
    line: str = ""  # of the account: what it is about
    symptoms: list[Finding] = field(default_factory=list)  # what else the same cause shows in

    def __post_init__(self) -> None:
        self.advice = self.advice or _KIND[self.id].advice
        self.line = self.line or _LINES.get(self.id) or LINE_OF_STAGE.get(str(self.evidence.get("stage")), "")

    def __repr__(self) -> str:
        cost = f", {seconds_text(self.seconds)}, {self.percent:.1f} %" if self.seconds else ""
        return f"<Finding {self.id} [{self.severity}{cost}]: {self.title}>"

    def _repr_html_(self) -> str:
        return Findings([self])._repr_html_()

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
            "symptoms": [s.to_json() for s in self.symptoms],
        }


class Findings(list[Finding]):
    """Findings in the order in which they are shown."""

    def every(self) -> list[Finding]:
        """These, and their symptoms."""
        return [each for f in self for each in (f, *f.symptoms)]

    def _repr_html_(self) -> str:
        from dftracer.report.html import findings_fragment  # noqa: PLC0415 - only where it is shown

        return findings_fragment(self) or "<p>No findings.</p>"


def _severity_of(percent: float) -> str:
    """The severity, from the share of the run."""
    for name, least in (("high", HIGH_PERCENT), ("medium", MEDIUM_PERCENT), ("low", LOW_PERCENT)):
        if percent >= least:
            return name
    return "info"


@dataclass
class JudgingContext:
    """What every rule may look at."""

    job: Job
    names: Any  # frame of per-name statistics
    files: Any  # frame of per-file statistics, None without I/O
    run_s: float
    judged: JudgedRun | None
    bound: Bound | None

    def percent(self, seconds: float) -> float:
        return 100.0 * seconds / self.run_s if self.run_s > 0 else 0.0

    def finding(self, ident: str, title: str, seconds: float, confidence: float, **more: Any) -> Finding:
        percent = self.percent(seconds)
        severity = more.pop("severity", None) or _severity_of(percent)
        if self.device_alone and severity != "info" and _LINES.get(ident) in _HOST_LINES:
            severity = "info"  # beside a device that takes nearly all of the time
        return Finding(ident, title, seconds, percent, severity, confidence, **more)

    @property
    def rank(self) -> Rank | None:
        return None if self.judged is None else self.judged.rank

    @property
    def fetches(self) -> int:
        """How many waits for a batch were recorded."""
        classes = (CLASSES[class_of(r["cat"], r["name"])] for r in self.names.iter_rows(named=True))
        waits = [c == "fetch_wait" for c in classes]
        return int(self.names.filter(pl.Series(waits, dtype=pl.Boolean))["count"].sum())

    @property
    def device_alone(self) -> bool:
        """Whether the device takes nearly all of the time."""
        part = None if self.bound is None else self.bound.part
        return part is not None and part.id == "device" and part.share >= COMPUTE_ALONE

    def is_bound(self, ident: str) -> bool:
        return self.bound is not None and self.bound.part.id == ident

    def at_stake(self, seconds: float) -> float:
        """I/O that overlaps with compute costs nothing: it costs at most the time steps waited for input."""
        return seconds if self.judged is None else min(seconds, self.judged.input_s)


def confidence(n: int) -> float:
    """Confidence, from the number of steps (or items) behind a statement."""
    return 0.3 if n < 5 else 0.6 if n < 20 else 0.8 if n < 100 else 0.95


def only_this_rank(stage: str, own_s: float, median_s: float) -> bool:
    """Whether a late rank does what the others do not do at all: then its machine is not the reason."""
    return stage in {"checkpoint", "own_code"} and median_s < own_s / 10


def _rounded(seconds: float) -> float:
    """Two digits: with more, noise would decide the order."""
    return float(f"{seconds:.1e}")


def _one_per_cause(found: list[Finding]) -> list[Finding]:
    """Findings about the same line of the account as one, the others being its symptoms.

    The one is a specific cause that explains most of the line's time, otherwise what says how much it takes.
    """
    out = [*found]
    for line in dict.fromkeys(f.line for f in found if f.line):
        same = [f for f in out if f.line == line and f.severity != "info"]
        whole = next((f for f in same if f.id in _OF_LINE), None)
        if whole is None or len(same) == 1:
            continue
        causes = [
            f
            for f in same
            if not _KIND[f.id].general and f.id not in _SYMPTOMS and f.seconds >= MAJORITY * whole.seconds
        ]
        cause = min(causes, key=lambda f: specificity(f.id), default=whole)
        for f in same:
            if f is not cause and (f is whole or f.id in _SYMPTOMS):
                cause.symptoms.append(f)
                out.remove(f)
        few = next((f for f in cause.symptoms if f.id == "too_few_workers"), None)
        if few is not None and cause is whole:
            cause.advice = f"{cause.advice} {few.advice}"
        cause.symptoms.sort(key=lambda f: -f.seconds)
    return out


def ordered(found: list[Finding]) -> list[Finding]:
    """The most expensive first; among about equal ones, the more specific; cheap ones are left out.

    A specific finding that explains most of a general one comes before it.
    """
    shown = _one_per_cause([f for f in found if f.seconds == 0 or f.percent >= 100 * FINDING_SHARE])
    shown.sort(key=lambda f: (f.severity == "info", -_rounded(f.seconds), specificity(f.id)))
    for general in [f for f in shown if _KIND[f.id].general and f.severity != "info"]:
        at = shown.index(general)
        why = [
            f
            for f in shown[at + 1 :]
            if not _KIND[f.id].general and f.severity != "info" and f.seconds >= MAJORITY * general.seconds
        ]
        for f in reversed(why):
            shown.remove(f)
            shown.insert(at, f)
    return shown
