"""Whether a run meets its limits and is not slower than a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer._units import bytes_text
from dftracer.analyze.catalog import FINDING_IDS
from dftracer.analyze.stages import STAGES
from dftracer.compare.comparison import LEAST_MOVE, Comparison
from dftracer.compare.figures import Figure, device_figures, io_figures, throughput_figures
from dftracer.compare.limits import BadLimit, Limit
from dftracer.compare.sentences import interval_text, percent_text, reasons, time_text, times_text
from dftracer.compare.side import Side
from dftracer.compare.statistics import Change, Floats

__all__ = ["Check", "against_baseline", "check_limit", "known_figures"]

_PERCENTILES = {"median": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
_OF_SERIES = (*_PERCENTILES, "mean")
_ONCE = ("steps_per_s", "samples_per_s", "tokens_per_s", "au", "mfu", "run_s")
_PIECES = ("steady", "startup", "evaluation", "outside", "profiled")


@dataclass
class Check:
    """One question and its answer."""

    name: str
    ok: bool
    reason: str
    value: float | None = None
    limit: float | None = None
    details: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "reason": self.reason,
            "value": self.value,
            "limit": self.limit,
            "details": self.details,
        }


def known_figures() -> str:
    """How figures are named."""
    return (
        f"step.X and STAGE.X with X of {', '.join(_OF_SERIES)}, and STAGE.share; {', '.join(_ONCE)};"
        f" PIECE.share and PIECE.seconds of {', '.join(_PIECES)}; device.busy_share, device.idle.WHY,"
        " device.memory_peak_bytes; io.read_bytes_per_step and the like; findings.ID"
    )


def check_limit(side: Side, limit: Limit) -> Check:
    """A limit whose figure the run does not contain fails."""
    value, kind = _figure(side, limit.figure)
    if value is None:
        return Check(limit.text, False, f"{side.name} does not contain {limit.figure}", None, limit.value)
    shown, wanted = _text(value, kind), _text(limit.value, kind)
    reason = f"{limit.figure} is {shown}, the limit is {limit.sign} {wanted}"
    return Check(limit.text, limit.kept(value), reason, value, limit.value)


def _text(value: float, kind: str) -> str:
    if kind == "seconds":
        return time_text(value)
    if kind == "share":
        return percent_text(value, signed=False)
    return bytes_text(value) if kind == "bytes" else f"{value:.4g}"


def _figure(side: Side, name: str) -> tuple[float | None, str]:
    """The figure and its kind; BadLimit if there is none of that name."""
    first, _, rest = name.partition(".")
    if first == "step" and rest in _OF_SERIES:
        return _of_series(side.wall, rest), "seconds"
    if first in STAGES and rest in (*_OF_SERIES, "share"):
        return _of_stage(side, first, rest)
    if first in _PIECES and rest in ("share", "seconds"):
        piece = side.told.get(first)
        return (None if not piece else piece[rest]), rest
    if first == "findings" and rest in FINDING_IDS:
        costs = [f["percent"] / 100 for f in side.told["findings"] if f["id"] == rest]
        return max(costs, default=0.0), "share"
    return _once(side, name)


def _of_stage(side: Side, stage: str, what: str) -> tuple[float | None, str]:
    series = side.stage(stage)
    if series is None:
        return None, "seconds"
    if what == "share":
        whole = float(side.wall.sum())
        return (float(series.sum()) / whole if whole > 0 else None), "share"
    return _of_series(series, what), "seconds"


def _once(side: Side, name: str) -> tuple[float | None, str]:
    """Figures that a run has once."""
    for prefix, figures in (
        ("", throughput_figures(side.told, side.told)),
        ("device.", device_figures(side.told, side.told)),
        ("io.", io_figures(side, side)),
    ):
        found = _named(figures, name, prefix)
        if found is not None:
            return found
    if name in _ONCE or name.startswith(("device.", "io.")):
        return None, ""
    raise BadLimit(f"{name!r} is not a figure of a run; known figures: {known_figures()}")


def _named(figures: list[Figure], name: str, prefix: str) -> tuple[float, str] | None:
    for f in figures:
        if prefix + f.id == name and f.a is not None:
            if f.id == "au":  # a share like all others here, although reports show it in percent
                return f.a / 100, "share"
            kind = "bytes" if f.id.endswith(("_bytes", "bytes_per_step")) else ""
            if prefix == "device." and not kind:
                kind = "share"
            if f.id in ("run_s", "time_s_per_step"):
                kind = "seconds"
            return f.a, kind
    return None


def _of_series(x: Floats, what: str) -> float | None:
    if not x.size:
        return None
    if what == "mean":
        return float(x.mean())
    return float(np.percentile(x, _PERCENTILES[what]))


def against_baseline(c: Comparison, most: float, most_stage: float | None = None) -> list[Check]:
    """A regression is a slowdown by more than `most` and by more than the steps vary."""
    if not c.enough:
        few = [f"{s.name}: {s.wall.size} steady steps" for s in (c.a, c.b)]
        return [Check("step", False, f"too few steps to compare ({', '.join(few)})", None, most)]
    out = [_regression("step", c.step, most, "per step")]
    if c.bursts:
        out.append(_regression("step (mean)", c.step_mean, most, "per step on average"))
    out[0].details = [] if out[0].ok else reasons(c)
    if most_stage is not None:
        for stage, change in c.stages.items():
            if max(change.a, change.b) >= LEAST_MOVE * c.step.a:
                out.append(_regression(stage, change, most_stage, "per step"))
    return out


def _regression(name: str, change: Change, most: float, per: str) -> Check:
    grown = change.relative
    slower = change.told and change.difference > 0 and (grown is None or grown > most)
    if grown is None:
        return Check(name, not slower, f"{name}: {times_text(change)} {per}", None, most)
    said = f"{times_text(change)} {per} ({percent_text(grown)}, {interval_text(change)})"
    allowed = percent_text(most, signed=False)
    if slower:
        reason = f"{name} is slower by more than {allowed}: {said}"
    elif grown > most:
        reason = f"{name}: {said}; no more than the steps vary"
    else:
        reason = f"{name}: {said}, at most {allowed} slower"
    return Check(name, not slower, reason, grown, most)
