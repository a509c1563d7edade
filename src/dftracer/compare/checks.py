"""Whether a run meets its limits and is not slower than a baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer._units import bytes_text
from dftracer.analyze.catalog import FINDING_IDS
from dftracer.analyze.stages import STAGES
from dftracer.compare.comparison import LEAST_MOVE, Comparison, RunPart
from dftracer.compare.figures import Figure, device_figures, io_figures, throughput_figures
from dftracer.compare.limits import BadLimit, Limit
from dftracer.compare.sentences import (
    interval_text,
    needed_text,
    percent_text,
    reasons,
    time_text,
    times_text,
)
from dftracer.compare.side import Side
from dftracer.compare.statistics import Change, Floats

_PERCENTILES = {"median": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
_OF_SERIES = (*_PERCENTILES, "mean")
_ONCE = ("steps_per_s", "samples_per_s", "tokens_per_s", "au", "mfu", "run_s")
_PIECES = ("steady", "startup", "evaluation", "outside", "profiled")


@dataclass
class Check:
    """One question and its answer; `cannot_tell`: it is not ok because nobody can say."""

    name: str
    ok: bool
    reason: str
    value: float | None = None
    limit: float | None = None
    details: list[str] = field(default_factory=list)
    cannot_tell: bool = False

    @property
    def answer(self) -> str:
        return "cannot_tell" if self.cannot_tell else "same" if self.ok else "different"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "answer": self.answer,
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


def answer_of(checks: list[Check]) -> str:
    """One answer for all checks: what is known to be wrong comes before what nobody knows."""
    answers = {c.answer for c in checks}
    return next(a for a in ("different", "cannot_tell", "same") if a in answers or a == "same")


def against_baseline(c: Comparison, most: float, most_stage: float | None = None) -> list[Check]:
    """A regression is a slowdown by more than `most` and by more than the steps vary.

    It is ruled out only if the interval ends below `most`: a gate that cannot see must not open.
    """
    if not c.enough:
        few = [f"{s.name}: {s.wall.size} steady steps" for s in (c.a, c.b)]
        reason = f"cannot tell: too few steps to compare ({', '.join(few)})"
        return [Check("step", False, reason, None, most, cannot_tell=True)]
    needed = needed_text(c, max(most, LEAST_MOVE))
    out = [_regression("step", c.step_alone, most, "per step", needed)]
    if c.bursts:
        out.append(_regression("step (mean)", c.step_mean, most, "per step on average", needed))
    out[0].details = [] if out[0].ok else reasons(c)
    if c.whole is not None and c.changed_parts:
        out.append(_whole_run(c, c.whole, most))
    if most_stage is not None:
        for stage, change in c.stages.items():
            if max(change.a, change.b) >= LEAST_MOVE * c.step.a:
                out.append(_regression(stage, change, most_stage, "per step", needed))
    return out


def _whole_run(c: Comparison, whole: RunPart, most: float) -> Check:
    """Evaluations, checkpoints and pauses between the steps count too."""
    grown = whole.b / whole.a - 1 if whole.a else 0.0
    said = f"{time_text(whole.a)} → {time_text(whole.b)} per step ({percent_text(grown)})"
    ok = grown <= most
    allowed = percent_text(most, signed=False)
    text = f"at most {allowed} slower" if ok else f"slower by more than {allowed}"
    return Check("run", ok, f"the whole run: {said}, {text}", grown, most, [] if ok else reasons(c))


def _regression(name: str, change: Change, most: float, per: str, needed: str) -> Check:
    grown = change.relative
    slower = change.told and change.difference > 0 and (grown is None or grown > most)
    if grown is None:
        return Check(name, not slower, f"{name}: {times_text(change)} {per}", None, most)
    said = f"{times_text(change)} {per} ({percent_text(grown)}, {interval_text(change)})"
    allowed = percent_text(most, signed=False)
    if slower:
        return Check(name, False, f"{name} is slower by more than {allowed}: {said}", grown, most)
    if change.interval is None or change.interval[1] > max(most, LEAST_MOVE):
        reason = f"{name}: cannot tell whether it is slower by more than {allowed}: {said}; {needed}"
        return Check(name, False, reason, grown, most, cannot_tell=True)
    return Check(name, True, f"{name}: {said}, at most {allowed} slower", grown, most)
