"""A run as used in comparisons: from a trace, or from a saved report."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.compare.statistics import Floats

_SCHEMA = "dftracer.report/"
_KNOWN = "dftracer.report/2"
_AGAIN = "save it again with `dftracer report TRACE --json -o FILE`"


class NotComparable(ValueError):
    """The input cannot be compared; the text says why and what to do."""


@dataclass
class Side:
    """One run: its figures, and the times of its steady steps in seconds, in order."""

    name: str
    told: Mapping[str, Any]
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
        run: Mapping[str, Any] = self.told["run"]
        return run


def group_of(sides: list[Side]) -> Side:
    """Several runs of the same program as one side; figures that a run has once are averaged."""
    if len(sides) == 1:
        return sides[0]
    names = list(dict.fromkeys(s for side in sides for s in side.stages))
    not_seen = frozenset.intersection(*(s.not_seen for s in sides))
    return Side(
        ", ".join(s.name for s in sides),
        _averaged([s.told for s in sides]),
        sum(s.steps for s in sides),
        sum(s.all_steps for s in sides),
        sides[0].ranks,
        np.concatenate([s.wall for s in sides]),
        {n: np.concatenate([s.stages.get(n, np.zeros(s.wall.size)) for s in sides]) for n in names},
        not_seen,
        tuple(sides),
    )


_AVERAGED = ("run_s", "au", "samples_per_s")


def _averaged(told: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first run's document, with the sums of I/O and the means of what each run has once."""
    out = dict(told[0])
    for key in _AVERAGED:
        out[key] = _mean([t.get(key) for t in told])
    models = [t.get("model") or {} for t in told]
    out["model"] = {k: _mean([m.get(k) for m in models]) for k in dict.fromkeys(k for m in models for k in m)}
    io = [t.get("io") or {} for t in told]
    out["io"] = {
        k: max(i.get(k, 0) for i in io) if k == "files" else sum(i.get(k, 0) for i in io)
        for k in dict.fromkeys(k for i in io for k in i)
    }
    return out


def _mean(values: list[Any]) -> Any:
    """The mean of numbers; what is not a number in every run, as the first has it."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else values[0]


def side_of(name: str, told: Mapping[str, Any]) -> Side:
    """From a report document, or the part of it that is compared."""
    if "steady_steps" not in told:
        raise NotComparable(f"{name} was saved by an older dftracer and lacks its steps: {_AGAIN}")
    found = told["steady_steps"]
    if found is None:
        raise NotComparable(f"{name} has no training step: there is nothing to compare")
    try:
        wall = np.asarray(found["wall_us"], float) / 1e6
        stages = {str(k): np.asarray(v, float) / 1e6 for k, v in found["stages_us"].items()}
        side = Side(
            name,
            told,
            int(found["steps"]),
            int(found["all_steps"]),
            int(found["ranks"]),
            wall,
            stages,
            frozenset(found["not_seen"]),
        )
        whole = all(s.shape == wall.shape for s in stages.values()) and wall.ndim == 1
        whole = whole and isinstance(told["run"], dict) and isinstance(told["findings"], list)
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


def _misfit(value: Any, shape: Any, at: str) -> str | None:
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
    return next((wrong for each in inner if (wrong := _misfit(*each))), None)


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
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as e:
        raise NotComparable(f"{name} is truncated or damaged: {e}") from None
    if not isinstance(told, dict) or not str(told.get("schema", "")).startswith(_SCHEMA):
        raise NotComparable(f"{name} is not a dftracer report")
    if told["schema"] != _KNOWN:
        raise NotComparable(f"{name} is a report of another version ({told['schema']}): {_AGAIN}")
    side = side_of(name, told)
    if wrong := _misfit(told, _SHAPE, ""):
        raise NotComparable(f"{name} is a damaged report, {wrong}: {_AGAIN}")
    return side
