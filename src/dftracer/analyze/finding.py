"""The structure of a finding, what rules look at, and the order of findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import polars as pl

from dftracer._units import seconds_text
from dftracer.analyze.bound import Bound
from dftracer.analyze.catalog import KINDS, specificity
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.parts import View
from dftracer.analyze.stages import CLASSES, class_of
from dftracer.analyze.thresholds import FINDING_SHARE, HIGH_PERCENT, LOW_PERCENT, MAJORITY, MEDIUM_PERCENT

__all__ = ["Context", "Finding", "Findings", "confidence", "ordered", "severity_of"]

_KIND = {k.id: k for k in KINDS}


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

    def __post_init__(self) -> None:
        self.advice = self.advice or _KIND[self.id].advice

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
        }


class Findings(list[Finding]):
    """Findings in the order in which they are shown."""

    def _repr_html_(self) -> str:
        from dftracer.report.fragment import findings_fragment  # noqa: PLC0415 - only where it is shown

        return findings_fragment(self) or "<p>No findings.</p>"


def severity_of(percent: float) -> str:
    """The severity, from the share of the run."""
    for name, least in (("high", HIGH_PERCENT), ("medium", MEDIUM_PERCENT), ("low", LOW_PERCENT)):
        if percent >= least:
            return name
    return "info"


@dataclass
class Context:
    """What every rule may look at."""

    job: Job
    names: Any  # frame of per-name statistics
    files: Any  # frame of per-file statistics, None without I/O
    run_s: float
    view: View | None
    bound: Bound | None

    def percent(self, seconds: float) -> float:
        return 100.0 * seconds / self.run_s if self.run_s > 0 else 0.0

    def finding(self, ident: str, title: str, seconds: float, confidence: float, **more: Any) -> Finding:
        percent = self.percent(seconds)
        severity = more.pop("severity", None) or severity_of(percent)
        return Finding(ident, title, seconds, percent, severity, confidence, **more)

    @property
    def rank(self) -> Rank | None:
        return None if self.view is None else self.view.rank

    @property
    def fetches(self) -> int:
        """How many waits for a batch were recorded."""
        classes = (CLASSES[class_of(r["cat"], r["name"])] for r in self.names.iter_rows(named=True))
        waits = [c == "fetch_wait" for c in classes]
        return int(self.names.filter(pl.Series(waits, dtype=pl.Boolean))["count"].sum())

    def is_bound(self, ident: str) -> bool:
        return self.bound is not None and self.bound.part.id == ident

    def at_stake(self, seconds: float) -> float:
        """I/O that overlaps with compute costs nothing: it costs at most the time steps waited for input."""
        return seconds if self.view is None else min(seconds, self.view.input_s)


def confidence(n: int) -> float:
    """Confidence, from the number of steps (or items) behind a statement."""
    return 0.3 if n < 5 else 0.6 if n < 20 else 0.8 if n < 100 else 0.95


def _rounded(seconds: float) -> float:
    """Two digits: with more, noise would decide the order."""
    return float(f"{seconds:.1e}")


def ordered(found: list[Finding]) -> list[Finding]:
    """The most expensive first; among about equal ones, the more specific; cheap ones are left out.

    A specific finding that explains most of a general one comes before it.
    """
    told = [f for f in found if f.seconds == 0 or f.percent >= 100 * FINDING_SHARE]
    told.sort(key=lambda f: (f.severity == "info", -_rounded(f.seconds), specificity(f.id)))
    for general in [f for f in told if _KIND[f.id].general and f.severity != "info"]:
        at = told.index(general)
        why = [
            f
            for f in told[at + 1 :]
            if not _KIND[f.id].general and f.severity != "info" and f.seconds >= MAJORITY * general.seconds
        ]
        for f in reversed(why):
            told.remove(f)
            told.insert(at, f)
    return told
