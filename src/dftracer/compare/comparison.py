"""Two runs, or two groups of runs, side by side: what changed by more than their own steps vary."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._text import bytes_text, count_text, seconds_text
from dftracer.analyze.stages import STAGES
from dftracer.compare.statistics import (
    MIN_STEPS,
    Center,
    Change,
    Floats,
    block_length,
    blocks,
    change_of,
    mean_of,
    median_of,
    of_one_run,
    of_runs,
)

# --- A run as used in comparisons: from a trace, or from a saved report


_SCHEMA = "dftracer.report/"
_KNOWN = "dftracer.report/2"
_AGAIN = "save it again with `dftracer report TRACE --json -o FILE`"


class NotComparable(ValueError):
    """The input cannot be compared; the text says why and what to do."""


@dataclass
class Side:
    """One run: its figures, and the times of its steady steps in seconds, in order."""

    name: str
    report: Mapping[str, Any]
    steps: int = 0  # steady ones; those below may be a sample of them
    all_steps: int = 0
    ranks: int = 0
    wall: Floats = field(default_factory=lambda: np.empty(0))
    stages: dict[str, Floats] = field(default_factory=dict)
    not_seen: frozenset[str] = frozenset()
    several: tuple[Side, ...] = ()  # the runs of a group, one after another in the series above

    @property
    def members(self) -> tuple[Side, ...]:
        """The runs of a group, or the run itself."""
        return self.several or (self,)

    def apart(self, series: Floats) -> list[Floats]:
        """A series of this side, run by run; one that is not made of steps belongs to a single run."""
        sizes = [m.wall.size for m in self.members]
        if len(sizes) == 1 or sum(sizes) != series.size:
            return [series]
        return list(np.split(series, np.cumsum(sizes)[:-1]))

    def stage(self, name: str) -> Floats | None:
        """The times of a stage; None if it could not be seen."""
        if name in self.stages:
            return self.stages[name]
        return None if name in self.not_seen else np.zeros(self.wall.size)

    @property
    def run(self) -> Mapping[str, Any]:
        run: Mapping[str, Any] = self.report["run"]
        return run


def group_of(sides: list[Side]) -> Side:
    """Several runs of the same program as one side; figures that a run has once are averaged."""
    if len(sides) == 1:
        return sides[0]
    names = list(dict.fromkeys(s for side in sides for s in side.stages))
    not_seen = frozenset.intersection(*(s.not_seen for s in sides))
    return Side(
        ", ".join(s.name for s in sides),
        _averaged([s.report for s in sides]),
        sum(s.steps for s in sides),
        sum(s.all_steps for s in sides),
        sides[0].ranks,
        np.concatenate([s.wall for s in sides]),
        {n: np.concatenate([s.stages.get(n, np.zeros(s.wall.size)) for s in sides]) for n in names},
        not_seen,
        tuple(sides),
    )


_AVERAGED = ("run_s", "au", "samples_per_s")


def _averaged(reports: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first run's document, with the sums of I/O and the means of what each run has once."""
    out = dict(reports[0])
    for key in _AVERAGED:
        out[key] = _mean([t.get(key) for t in reports])
    models = [t.get("model") or {} for t in reports]
    out["model"] = {k: _mean([m.get(k) for m in models]) for k in dict.fromkeys(k for m in models for k in m)}
    io = [t.get("io") or {} for t in reports]
    out["io"] = {
        k: max(i.get(k, 0) for i in io) if k == "files" else sum(i.get(k, 0) for i in io)
        for k in dict.fromkeys(k for i in io for k in i)
    }
    return out


def _mean(values: list[Any]) -> Any:
    """The mean of numbers; what is not a number in every run, as the first has it."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else values[0]


def side_of(name: str, report: Mapping[str, Any]) -> Side:
    """From a report document, or the part of it that is compared."""
    if "steady_steps" not in report:
        raise NotComparable(f"{name} was saved by an older dftracer and lacks its steps: {_AGAIN}")
    found = report["steady_steps"]
    if found is None:
        raise NotComparable(f"{name} has no training step: there is nothing to compare")
    try:
        wall = np.asarray(found["wall_us"], float) / 1e6
        stages = {str(k): np.asarray(v, float) / 1e6 for k, v in found["stages_us"].items()}
        side = Side(
            name,
            report,
            int(found["steps"]),
            int(found["all_steps"]),
            int(found["ranks"]),
            wall,
            stages,
            frozenset(found["not_seen"]),
        )
        whole = all(s.shape == wall.shape for s in stages.values()) and wall.ndim == 1
        whole = whole and isinstance(report["run"], dict) and isinstance(report["findings"], list)
    except (KeyError, TypeError, ValueError, AttributeError):
        whole = False
    if not whole:
        raise NotComparable(f"{name} is a damaged report: {_AGAIN}")
    return side


# What a comparison reads of a saved report. "number" and "text" may be null, with a ! they may not; a key
# with a ! must be there; * is every key.
_SHAPE: dict[str, Any] = {
    "run!": {"others": [None], "command": "text", "host": "text", "start": "number"},
    "run_s": "number",
    "au": "number",
    "samples_per_s": "number",
    "machine": {"waited_for_cpu_share": "number", "waited_for_cpu_in_steps_share": "number"},
    "io": {"read_bytes!": "number!", "read_s!": "number!", "*": "number!"},
    "findings!": [{"id!": "text!", "title!": "text!", "percent!": "number!"}],
    "model": {
        "steps_per_s": "number",
        "samples_per_s": "number",
        "tokens_per_s": "number",
        "flops_per_step": "number",
        "flops_per_s": "number",
        "mfu": "number",
        "memory_peak_bytes": "number",
    },
    "device": {
        "source": "text",
        "ranks": {"*": {"observed_s": "number!", "busy_s": "number!", "idle": {"*": "number!"}}},
        "steps": [{"step!": "number!", "busy_s!": "number!"}],
    },
    **{part: {"seconds": "number"} for part in ("steady", "startup", "evaluation", "outside")},
}


def _mismatch(value: Any, shape: Any, at: str) -> str | None:
    """What about a part of a saved report is not as it was saved; None if all of it is."""
    if shape is None or (value is None and not str(shape).endswith("!")):
        return None
    if isinstance(shape, str):
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
        fits = number if shape.startswith("number") else isinstance(value, str)
        return None if fits else f"{at} is not a {shape.rstrip('!')}"
    kind = list if isinstance(shape, list) else dict
    if not isinstance(value, kind):
        return f"{at or 'it'} is not {'a list' if kind is list else 'an object'}"
    inner: list[tuple[Any, Any, str]]
    if isinstance(value, list):
        inner = [(v, shape[0], f"{at}[{n}]") for n, v in enumerate(value)]
    else:
        assert isinstance(value, dict)
        under = f"{at}." if at else ""
        absent = [k[:-1] for k in shape if k.endswith("!") and k[:-1] not in value]
        if value and absent:
            return f"{under}{absent[0]} is missing"
        inner = [
            (v, shape.get(f"{k}!", shape.get(k, shape.get("*"))), f"{under}{k}") for k, v in value.items()
        ]
    return next((wrong for each in inner if (wrong := _mismatch(*each))), None)


def is_report(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a saved report rather than some kind of trace."""
    path = Path(path)
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return text.find(_SCHEMA.encode()) >= 0


def read_report(path: str | os.PathLike[str]) -> Side:
    """A saved report."""
    name = os.fspath(path)
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as e:
        raise NotComparable(f"{name} is truncated or damaged: {e}") from None
    if not isinstance(report, dict) or not str(report.get("schema", "")).startswith(_SCHEMA):
        raise NotComparable(f"{name} is not a dftracer report")
    if report["schema"] != _KNOWN:
        raise NotComparable(f"{name} is a report of another version ({report['schema']}): {_AGAIN}")
    side = side_of(name, report)
    if wrong := _mismatch(report, _SHAPE, ""):
        raise NotComparable(f"{name} is a damaged report, {wrong}: {_AGAIN}")
    return side


# --- Figures that a run has once: throughput, device time, I/O; and the findings of both runs


@dataclass(frozen=True)
class Figure:
    """One figure of both runs; None if a run does not have it."""

    id: str
    words: str
    values: tuple[float | None, float | None]
    text: Callable[[float], str]

    @property
    def a(self) -> float | None:
        return self.values[0]

    @property
    def b(self) -> float | None:
        return self.values[1]

    @property
    def change(self) -> float | None:
        return self.b / self.a - 1 if self.a and self.b is not None else None

    def to_json(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "change": self.change}


def _rate(unit: str) -> Callable[[float], str]:
    return lambda v: f"{v:.3g} {unit}/s" if v < 1000 else f"{count_text(round(v))} {unit}/s"


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    return count_text(round(value)) if value >= 100 or value == round(value) else f"{value:.3g}"


def _kept(figures: list[Figure]) -> list[Figure]:
    return [f for f in figures if f.a is not None or f.b is not None]


def throughput_figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Figure]:
    """Over the steady steps; without an interval, because a run has each only once."""

    def both(key: str) -> tuple[Any, Any]:
        return a.get(key), b.get(key)

    def model(key: str) -> tuple[Any, Any]:
        first, second = ((t.get("model") or {}).get(key) for t in (a, b))
        return first, second

    return _kept(
        [
            Figure("steps_per_s", "steps", model("steps_per_s"), _rate("steps")),
            Figure("samples_per_s", "samples", both("samples_per_s"), _rate("samples")),
            Figure("tokens_per_s", "tokens", model("tokens_per_s"), _rate("tokens")),
            Figure("mfu", "share of the device's peak (MFU)", model("mfu"), _share),
            Figure("au", "accelerator utilisation", both("au"), _percent),
            Figure("run_s", "whole run", both("run_s"), seconds_text),
        ]
    )


def _device(report: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the time in which devices were observed, over all ranks; for the steady steps if known."""
    ranks = [r.get("steady", r) for r in ((report.get("device") or {}).get("ranks") or {}).values()]
    observed = sum(r["observed_s"] for r in ranks)
    if not observed:
        return {}
    out = {"busy_share": sum(r["busy_s"] for r in ranks) / observed}
    for kind in sorted({k for r in ranks for k in r["idle"]}):
        out[f"idle.{kind}"] = sum(r["idle"].get(kind, 0.0) for r in ranks) / observed
    exposed = [r.get("exposed_comm_s") for r in ranks]
    if all(e is not None for e in exposed):
        out["exposed_comm"] = sum(exposed) / observed
    return out


_DEVICE_WORDS = {
    "busy_share": "device busy",
    "idle.input": "idle: waiting for data",
    "idle.host": "idle: the host has launched nothing",
    "idle.dependency": "idle: waiting for another stream or event",
    "idle.launch": "idle: launching",
    "idle.comm": "idle: the host is communicating",
    "idle.checkpoint": "idle: the host is writing or reading a checkpoint",
    "idle.unknown": "idle: reason unknown",
    "exposed_comm": "communication that overlaps no computation",
}


def device_figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Figure]:
    first, second = _device(a), _device(b)
    out = [
        Figure(key, _DEVICE_WORDS.get(key, key), (first.get(key), second.get(key)), _share)
        for key in dict.fromkeys([*first, *second])
        if first.get(key) or second.get(key)
    ]
    peak = tuple((t.get("model") or {}).get("memory_peak_bytes") for t in (a, b))
    return out + _kept(
        [Figure("memory_peak_bytes", "peak memory on the device", (peak[0], peak[1]), bytes_text)]
    )


_IO = (
    ("read_bytes", "read", bytes_text),
    ("write_bytes", "written", bytes_text),
    ("reads", "reads", _count),
    ("small_reads", "reads below 64 KiB", _count),
    ("writes", "writes", _count),
    ("opens", "opens", _count),
    ("time_s", "time in I/O calls", seconds_text),
)


def io_figures(a: Side, b: Side) -> list[Figure]:
    """Per step, so that runs of different lengths can be compared; rates, and the number of files."""
    sums = [side.report.get("io") or {} for side in (a, b)]
    steps = [max(1, side.all_steps) for side in (a, b)]

    def per_step(key: str) -> tuple[float | None, float | None]:
        a, b = (s[key] / n if key in s else None for s, n in zip(sums, steps, strict=True))
        return a, b

    def rate(what: str) -> tuple[float | None, float | None]:
        a, b = (s[f"{what}_bytes"] / s[f"{what}_s"] if s.get(f"{what}_s") else None for s in sums)
        return a, b

    out = [Figure(f"{key}_per_step", f"{words} per step", per_step(key), text) for key, words, text in _IO]
    for what in ("read", "write"):
        out.append(Figure(f"{what}_bytes_per_s", f"{what} rate", rate(what), lambda v: f"{bytes_text(v)}/s"))
    out.append(Figure("files", "files", (sums[0].get("files"), sums[1].get("files")), _count))
    return [f for f in _kept(out) if f.a or f.b]


def findings_change(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Findings that are new, those that are gone, and those in both runs with their costs."""
    first, second = ({f["id"]: f for f in reversed(t["findings"])} for t in (a, b))

    def short(f: dict[str, Any]) -> dict[str, Any]:
        return {k: f.get(k) for k in ("id", "severity", "title", "seconds", "percent")}

    return {
        "new": [short(second[i]) for i in reversed(second) if i not in first],
        "gone": [short(first[i]) for i in reversed(first) if i not in second],
        "both": [
            {"id": i, "title": f["title"], "a_percent": first[i]["percent"], "b_percent": f["percent"]}
            for i, f in reversed(second.items())
            if i in first
        ],
    }


# --- Two runs, or two groups of runs, side by side: what changed by more than their own steps vary


FALSE_ALARMS = 0.05  # of whole comparisons of equal runs
MIN_MOVE = 0.01  # of the step: a smaller change is not worth mentioning
SAME_WITHIN = 0.05  # runs are called the same if, with 95 % confidence, they differ by no more than this
_BURST = 2.0  # a mean this many times the median: the stage takes time in only a few of the steps
# A run has its evaluations and pauses once, so how much they vary is not known: only a clear change counts.
_PART_MOVE = 0.05  # of the run without its start-up
_PART_CHANGE = 0.25  # of the part itself
_TAIL_MOVE_S = (
    1.0  # workers and the interpreter end at different speeds: after the last step, less is no change
)
# What the run does outside its steps, as the report names it, and in words.
PARTS: Mapping[str, str] = {"evaluation": "evaluation", "outside": "between steps"}
# A stage that automatic tracing did not see in a run did not happen in it, if it cannot be overlooked.
_NOT_OVERLOOKED = ("transfer", "sync", "comm", "checkpoint")


@dataclass(frozen=True)
class RunPart:
    """What the run did outside its steps, in seconds per step."""

    a: float
    b: float
    changed: bool


@dataclass
class Comparison:
    """What changed from run a to run b."""

    a: Side
    b: Side
    step: Change
    stages: dict[str, Change]
    bursts: dict[str, Change]  # means, for stages that take time in only a few steps
    step_mean: Change
    device_busy: Change | None
    unseen: dict[str, str]  # stage -> the run that could not see it
    step_alone: Change = field(default_factory=lambda: change_of(None, None, (0.0, 0.0), FALSE_ALARMS))
    block: int = 1  # consecutive steps that make up for each other
    whole: RunPart | None = None  # all but the start-up
    parts: dict[str, RunPart] = field(default_factory=dict)
    device: list[Figure] = field(default_factory=list)
    io: list[Figure] = field(default_factory=list)
    throughput: list[Figure] = field(default_factory=list)
    findings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """Whether there are enough steps to say anything."""
        return self.step.interval_s is not None

    @property
    def changed(self) -> list[str]:
        """The stages that changed, starting with the one that changes the step most."""
        found = [s for s, c in self.stages.items() if c.certain and abs(self.moves(s)) >= MIN_MOVE]
        return sorted(found, key=lambda s: -abs(self.moves(s)))

    @property
    def changed_in_bursts(self) -> list[str]:
        """Stages that changed in the few steps where they take time."""
        least = MIN_MOVE * self.step_mean.a
        found = [s for s, c in self.bursts.items() if c.certain and abs(c.difference) >= least]
        return sorted(found, key=lambda s: -abs(self.bursts[s].difference))

    @property
    def changed_parts(self) -> list[str]:
        """What changed outside the steps, starting with the largest change."""
        found = [p for p, x in self.parts.items() if x.changed]
        return sorted(found, key=lambda p: -abs(self.parts[p].b - self.parts[p].a))

    @property
    def step_changed(self) -> bool:
        return self.step.certain and abs(self.step.difference) >= MIN_MOVE * self.step.a

    @property
    def difference(self) -> bool:
        return bool(self.step_changed or self.changed or self.changed_in_bursts or self.changed_parts)

    @property
    def answer(self) -> str:
        """`same`, `different` or `cannot_tell`."""
        if self.difference:
            return "different"
        return "same" if self.enough and self.reach <= SAME_WITHIN else "cannot_tell"

    @property
    def reach(self) -> float:
        """How far the step may have changed, either way, with 95 % confidence."""
        ends = self.step_alone.interval
        return max(abs(e) for e in ends) if ends is not None else math.inf

    def steps_needed(self, limit: float = SAME_WITHIN) -> int | None:
        """How many steps each run would need to detect a change; None if only more runs would help."""
        least = min(self.a.wall.size, self.b.wall.size)
        if not self.enough:
            return max(MIN_STEPS * 4, 2 * least)
        times = (self.reach / limit) ** 2
        return math.ceil(least * times / 10) * 10 if times <= _HOPELESS else None

    def moves(self, stage: str) -> float:
        """The change of a stage as a share of a's step."""
        return self.stages[stage].difference / self.step.a if self.step.a > 0 else 0.0


_HOPELESS = 50.0


def compare_all(sides: list[Side]) -> list[Comparison]:
    """Every run against the first; together they raise no more false alarms than a single comparison may."""
    return [compare(sides[0], other, FALSE_ALARMS / (len(sides) - 1)) for other in sides[1:]]


def compare(a: Side, b: Side, alpha: float = FALSE_ALARMS) -> Comparison:
    """`alpha` is the share of false alarms over all stages together."""
    names = [s for s in (*STAGES, *_others(a, b)) if s in a.stages or s in b.stages]
    seen = {s: (_times(a, s), _times(b, s)) for s in names}
    unseen = {s: side.name for s in names for side, x in zip((a, b), seen[s], strict=True) if x is None}
    pairs = {s: (x, y) for s, (x, y) in seen.items() if x is not None and y is not None}
    block = _common_block(a, b)
    step = _middle(a.wall), _middle(b.wall)
    bursty = [s for s, (x, y) in pairs.items() if _in_bursts(a, x, block) or _in_bursts(b, y, block)]
    # Only stages long enough to change the step can raise an alarm.
    long = [s for s, p in pairs.items() if max(map(_middle, p)) >= MIN_MOVE * step[0]]
    each = alpha / (1 + len(long) + len(bursty) + (1 if bursty else 0))
    busy = _device_busy(a), _device_busy(b)
    one = len(a.members) == len(b.members) == 1

    def median(x: Floats, y: Floats, most_alarms: float = each) -> Change:
        return _change(median_of, (a, x), (b, y), block, most_alarms)

    def mean(x: Floats, y: Floats) -> Change:
        return _change(mean_of, (a, x), (b, y), 1, each)

    return Comparison(
        a,
        b,
        median(a.wall, b.wall),
        {s: median(x, y) for s, (x, y) in pairs.items()},
        {s: mean(*pairs[s]) for s in bursty},
        mean(a.wall, b.wall),
        _change(median_of, (a, busy[0]), (b, busy[1]), 1, each)
        if one and busy[0].size and busy[1].size
        else None,
        unseen,
        median(a.wall, b.wall, alpha),
        block,
        *_whole_run(a, b),
        device_figures(a.report, b.report),
        io_figures(a, b),
        throughput_figures(a.report, b.report),
        findings_change(a.report, b.report),
    )


def _others(a: Side, b: Side) -> list[str]:
    """Stages of a later version, in the order in which they appear."""
    return [s for s in dict.fromkeys([*a.stages, *b.stages]) if s not in STAGES]


def _times(side: Side, stage: str) -> Floats | None:
    """The times of a stage; None if the run could not see it."""
    found = side.stage(stage)
    return np.zeros(side.wall.size) if found is None and stage in _NOT_OVERLOOKED else found


def _common_block(a: Side, b: Side) -> int:
    """A number of steps that make up for each other in both runs."""
    lengths = [block_length(m.wall) for side in (a, b) for m in side.members if m.wall.size]
    common = math.lcm(*lengths) if lengths else 1
    fewest = min((m.wall.size for side in (a, b) for m in side.members), default=0)
    return common if fewest // common >= MIN_STEPS else max(lengths, default=1)


def _middle(x: Floats) -> float:
    return float(np.median(x)) if x.size else 0.0


def _in_bursts(side: Side, x: Floats, block: int) -> bool:
    """Whether a stage takes time in only a few steps, and not at the loader's own rhythm."""
    if x.size < MIN_STEPS * block:
        return False
    x = blocks(x, block)
    mean = float(np.sort(x)[: -max(1, x.size // 100)].mean())  # an outlier or two is not a burst
    return mean > _BURST * _middle(x) and mean >= MIN_MOVE * float(np.median(side.wall))


def _change(
    center: Callable[[Floats], Center],
    a: tuple[Side, Floats],
    b: tuple[Side, Floats],
    block: int,
    alpha: float,
) -> Change:
    parts = [[blocks(x, block) for x in side.apart(series)] for side, series in (a, b)]
    few = any(p.size < MIN_STEPS for ps in parts for p in ps)
    if few:
        values = [float(np.median(series)) if series.size else 0.0 for _, series in (a, b)]
        return change_of(None, None, (values[0], values[1]), alpha)
    centers = [[center(p) for p in ps] for ps in parts]
    x, y = _joined(centers, (_waited_in_steps(a[0]), _waited_in_steps(b[0])))
    return change_of(x, y, (x.value, y.value), alpha)


def _waited(side: Side) -> float:
    """The share of the run in which it waited for a CPU because the machine was busy; 0 if nobody looked."""
    return float((side.report.get("machine") or {}).get("waited_for_cpu_share") or 0.0)


def _waited_in_steps(side: Side) -> float:
    """The same of its steps: a CPU that it waited for while it imported torch says nothing about them."""
    share = (side.report.get("machine") or {}).get("waited_for_cpu_in_steps_share")
    return _waited(side) if share is None else float(share)


def _joined(sides: list[list[Center]], waited: tuple[float, float]) -> tuple[Center, Center]:
    """One center a side; the spread between runs, relative to their size, is taken from both sides."""
    if all(len(s) == 1 for s in sides):
        return of_one_run(sides[0][0], waited[0]), of_one_run(sides[1][0], waited[1])
    freedom = sum(len(s) - 1 for s in sides)
    squares = 0.0
    for centers in sides:
        middle = sum(c.value for c in centers) / len(centers)
        if middle > 0:
            squares += sum((c.value / middle - 1) ** 2 for c in centers)
    relative = squares / freedom
    first, second = (
        of_runs(s, relative * (sum(c.value for c in s) / len(s)) ** 2, freedom / 2) for s in sides
    )
    return first, second


def _whole_run(a: Side, b: Side) -> tuple[RunPart | None, dict[str, RunPart]]:
    """What the runs do outside their steps: an evaluation more often, a checkpoint between epochs."""
    first, second = _outside(a), _outside(b)
    if first is None or second is None:
        return None, {}
    wholes = [sum(s.values()) for s in (first, second)]
    tails = [sum(_tail(m) for m in side.members) / len(side.members) for side in (a, b)]
    busy = _waited(a) + _waited(b)
    judged = first, second
    if abs(tails[1] - tails[0]) < _TAIL_MOVE_S:
        judged = _outside(a, tail=False) or first, _outside(b, tail=False) or second
    parts = {}
    for part in PARTS:
        if first[part] or second[part]:
            x, y = (side[part] for side in judged)
            moved = abs(y - x)
            changed = moved >= _PART_MOVE * min(wholes) and moved >= (_PART_CHANGE + busy) * max(x, y)
            parts[part] = RunPart(first[part], second[part], changed)
    return RunPart(wholes[0], wholes[1], any(p.changed for p in parts.values())), parts


def _outside(side: Side, *, tail: bool = True) -> dict[str, float] | None:
    """Seconds per step of each part of the run but its start-up (and what follows the last step, if not
    `tail`), averaged over the runs of a side.
    """
    each = []
    for member in side.members:
        seconds: dict[str, Any] = {p: (member.report.get(p) or {}).get("seconds") for p in ("steady", *PARTS)}
        if not member.all_steps or any(v is None for v in seconds.values()):
            return None
        if not tail:
            seconds["outside"] -= _tail(member)
        each.append({p: float(v) / member.all_steps for p, v in seconds.items()})
    return {p: sum(e[p] for e in each) / len(each) for p in each[0]} if each else None


def _tail(run: Side) -> float:
    """Seconds between the last step and the end of the process."""
    return float((run.report.get("outside") or {}).get("after_s") or 0.0)


def _device_busy(side: Side) -> Floats:
    """The longest busy time of all ranks' devices, per step, without the first step."""
    longest: dict[int, float] = {}
    for row in (side.report.get("device") or {}).get("steps", []):
        step = row["step"]
        longest[step] = max(longest.get(step, 0.0), row["busy_s"])
    return np.array([longest[s] for s in sorted(longest)][1:], float)
