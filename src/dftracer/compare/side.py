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

__all__ = ["NotComparable", "Side", "is_report", "read_report", "side_of"]

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

    def stage(self, name: str) -> Floats | None:
        """The times of a stage; None if it could not be seen."""
        if name in self.stages:
            return self.stages[name]
        return None if name in self.not_seen else np.zeros(self.wall.size)

    @property
    def run(self) -> Mapping[str, Any]:
        run: Mapping[str, Any] = self.told["run"]
        return run


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
    return side_of(name, told)
