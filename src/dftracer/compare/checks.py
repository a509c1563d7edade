"""`dftracer check`: limits that a run must meet, and whether it is slower than a baseline."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from dftracer._text import bytes_text, plural
from dftracer.analyze.say.catalog import FINDING_IDS
from dftracer.analyze.stages import STAGES
from dftracer.compare.comparison import (
    MIN_MOVE,
    Comparison,
    Figure,
    RunPart,
    Side,
    device_figures,
    io_figures,
    throughput_figures,
)
from dftracer.compare.showing import (
    interval_text,
    needed_text,
    percent_text,
    plain,
    reasons,
    time_text,
    times_text,
)
from dftracer.compare.statistics import Change, Floats

# --- Limits that a run must meet: `fetch_wait.share < 0.1`, from the command line or a TOML file


_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNITS = {
    **{"": 1.0, "%": 0.01, "s": 1.0, "ms": 1e-3, "us": 1e-6},
    **{"B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4},
}
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%|[A-Za-z]*)"
_LIMIT = re.compile(rf"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*{_NUMBER}\s*")
_VALUE = re.compile(rf"\s*{_NUMBER}\s*")
_MAX_BYTES = 1 << 20


class BadLimit(ValueError):
    """A limit, or a file of limits, that cannot be read."""


@dataclass(frozen=True)
class Limit:
    """The condition for one figure of the run."""

    figure: str
    sign: str
    value: float
    text: str

    def kept(self, value: float) -> bool:
        return _OPERATORS[self.sign](value, self.value)


@dataclass
class LimitFile:
    """The contents of a limits file."""

    limits: list[Limit] = field(default_factory=list)
    max_regression: float | None = None
    max_stage_regression: float | None = None
    baseline: str | None = None


def parse_limit(text: str) -> Limit:
    """`figure < number`, optionally with % or a unit."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise BadLimit(
            f"{text!r} is not a limit; write it like 'fetch_wait.share < 0.1' or 'step.p95 < 500 ms'"
        )
    figure, sign, number, unit = found.groups()
    return Limit(figure, sign, _number(number, unit, text), " ".join(text.split()))


def parse_share(text: object) -> float:
    """`5%` or `0.05`."""
    found = _VALUE.fullmatch(str(text))
    if found is None or found[2] not in ("", "%"):
        raise BadLimit(f"{text!r} is not a share; write it like 5% or 0.05")
    value = _number(found[1], found[2], str(text))
    if not 0 <= value < 100:
        raise BadLimit(f"{text!r} is not between 0 and 100 times; write it like 5% or 0.05")
    # Someone who writes 0.05 does not mean 5 as five percent, and nobody means it as five times.
    if found[2] == "" and value >= 1:
        raise BadLimit(f"{text!r}: is that percent? Write {text}%")
    return value


def _number(number: str, unit: str, text: str) -> float:
    if unit not in _UNITS:
        raise BadLimit(f"{text!r}: unknown unit {unit!r}; known units: {', '.join(u for u in _UNITS if u)}")
    return float(number) * _UNITS[unit]


def read_limits(path: str) -> LimitFile:
    """A TOML file: a table or a list `limits`, and optionally `baseline` and `max_regression`."""
    file = Path(path)
    if file.stat().st_size > _MAX_BYTES:
        raise BadLimit(f"{path} is larger than {_MAX_BYTES} bytes")
    try:
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as e:
        raise BadLimit(f"{path}: {e}") from None
    out = LimitFile()
    for key, value in found.items():
        try:
            if key == "limits":
                out.limits += [parse_limit(text) for text in _texts(value)]
            elif key in ("max_regression", "max_stage_regression"):
                setattr(out, key, parse_share(value))
            elif key == "baseline":
                out.baseline = str(file.parent / str(value))
            else:
                known = "limits, baseline, max_regression, max_stage_regression"
                raise BadLimit(f"unknown key {key!r}; known keys: {known}")
        except BadLimit as e:
            raise BadLimit(f"{path}: {e}") from None
    return out


def _texts(value: Any, at: str = "") -> Iterator[str]:
    """`"step.p95" = "< 0.5"`, with or without quotes around the name, or whole limits in a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list):
        for inner in value:
            # A list may give one figure two limits, or contain whole limits.
            whole = isinstance(inner, str) and _LIMIT.fullmatch(inner)
            yield from _texts(inner, "" if whole else at)
    elif isinstance(value, str):
        yield f"{at} {value}" if at else value
    else:
        raise BadLimit(
            f"{at} = {value!r} does not say whether more or less is meant; write it like {at} = '< {value}'"
        )


# --- Whether a run meets its limits and is not slower than a baseline


_PERCENTILES = {"median": 50, "p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
_OF_SERIES = (*_PERCENTILES, "mean")
_ONCE = ("steps_per_s", "samples_per_s", "tokens_per_s", "au", "mfu", "run_s")
_PIECES = ("steady", "startup", "evaluation", "outside", "profiled")


@dataclass
class Check:
    """One question and its answer; `cannot_tell`: not ok because the answer is unknown."""

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
        piece = side.report.get(first)
        return (None if not piece else piece[rest]), rest
    if first == "findings" and rest in FINDING_IDS:
        costs = [f["percent"] / 100 for f in side.report["findings"] if f["id"] == rest]
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
        ("", throughput_figures(side.report, side.report)),
        ("device.", device_figures(side.report, side.report)),
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
    """One answer for all checks: what is known to be wrong comes before what is unknown."""
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
    needed = needed_text(c, max(most, MIN_MOVE))
    out = [_regression("step", c.step_alone, most, "per step", needed)]
    if c.bursts:
        out.append(_regression("step (mean)", c.step_mean, most, "per step on average", needed))
    out[0].details = [] if out[0].ok else reasons(c)
    if c.whole is not None and c.changed_parts:
        out.append(_whole_run(c, c.whole, most))
    if most_stage is not None:
        for stage, change in c.stages.items():
            if max(change.a, change.b) >= MIN_MOVE * c.step.a:
                out.append(_regression(stage, change, most_stage, "per step", needed))
    return out


def _whole_run(c: Comparison, whole: RunPart, most: float) -> Check:
    """Evaluations, checkpoints and pauses between the steps count too."""
    grown = whole.b / whole.a - 1 if whole.a else 0.0
    times = f"{time_text(whole.a)} → {time_text(whole.b)} per step ({percent_text(grown)})"
    ok = grown <= most
    allowed = percent_text(most, signed=False)
    text = f"at most {allowed} slower" if ok else f"slower by more than {allowed}"
    return Check("run", ok, f"the whole run: {times}, {text}", grown, most, [] if ok else reasons(c))


def _regression(name: str, change: Change, most: float, per: str, needed: str) -> Check:
    grown = change.relative
    slower = change.certain and change.difference > 0 and (grown is None or grown > most)
    if grown is None:
        return Check(name, not slower, f"{name}: {times_text(change)} {per}", None, most)
    times = f"{times_text(change)} {per} ({percent_text(grown)}, {interval_text(change)})"
    allowed = percent_text(most, signed=False)
    if slower:
        return Check(name, False, f"{name} is slower by more than {allowed}: {times}", grown, most)
    if change.interval is None or change.interval[1] > max(most, MIN_MOVE):
        reason = f"{name}: cannot tell whether it is slower by more than {allowed}: {times}; {needed}"
        return Check(name, False, reason, grown, most, cannot_tell=True)
    return Check(name, True, f"{name}: {times}, at most {allowed} slower", grown, most)


# --- The answer of `dftracer check` for people, for a job summary, and as JUnit XML for test reports


# Characters that XML 1.0 cannot contain, escaped or not.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def headline_of(run: str, checks: list[Check]) -> str:
    failed = [c for c in checks if not c.ok]
    if failed and all(c.cannot_tell for c in failed):
        return f"{run}: cannot tell in {len(failed)} of {plural(len(checks), 'check')}."
    if failed:
        return f"{run} fails {len(failed)} of {plural(len(checks), 'check')}."
    return f"{run} passes {'its check' if len(checks) == 1 else f'all {len(checks)} checks'}."


def check_lines(run: str, checks: list[Check]) -> list[str]:
    """Failures first."""
    out = [headline_of(run, checks)]
    for c in sorted(checks, key=lambda c: c.ok):
        out.append(f"  {'ok    ' if c.ok else 'UNSURE' if c.cannot_tell else 'FAILED'}  {c.reason}")
        out += [f"          {line}" for line in c.details]
    return out


def check_markdown(run: str, checks: list[Check], notes: list[str]) -> str:
    mark = "❌" if any(not c.ok for c in checks) else "✅"
    lines = [f"### {mark} {plain(headline_of(run, checks))}", "", "| | check | result |", "|---|---|---|"]
    for c in sorted(checks, key=lambda c: c.ok):
        lines.append(f"| {'✅' if c.ok else '❌'} | {plain(c.name)} | {plain(c.reason)} |")
    details = [f"- {plain(line)}" for c in checks for line in c.details]
    lines += ["", *details] if details else []
    lines += ["", *(f"{plain(note)}\n" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def check_junit(run: str, checks: list[Check]) -> str:
    """One test case for each check."""
    failed = sum(not c.ok for c in checks)
    counts = {"tests": str(len(checks)), "failures": str(failed), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": "dftracer check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(run), **counts, "time": "0"})
    for c in checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "dftracer.check", "name": _xml(c.name), "time": "0"}
        )
        if c.ok:
            ElementTree.SubElement(case, "system-out").text = _xml(c.reason)
        else:
            failure = ElementTree.SubElement(case, "failure", {"message": _xml(c.reason), "type": "limit"})
            failure.text = _xml("\n".join([c.reason, *c.details]))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _xml(text: str) -> str:
    return _NO_XML.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), text)
