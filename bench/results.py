"""Rows of the result table: a number, what it is compared with, and the goals it has."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.rounds import Comparison

__all__ = ["Goal", "Results", "Row", "Run"]


@dataclass
class Goal:
    """`value` against `limit`; `at_most` says which side is good."""

    text: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


@dataclass
class Row:
    """One line of the table. `ratio` is rival / ours, the median over rounds where there are rounds."""

    subject: str
    what: str
    unit: str
    ours: float
    rival: float | None = None
    ratio: float | None = None
    baselines: dict[str, float] = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, what: str, subject: str, comparison: Comparison, fraction: float | None) -> Row:
        """A timed comparison; `fraction` is the goal as a part of the rival's cost, 60 for 1/60."""
        ratio = comparison.ratio()
        row = cls(subject, what, "ns", comparison.cost(), comparison.rival_cost(), ratio)
        if fraction is not None and ratio is not None:
            row.goals.append(Goal(f"at most 1/{fraction:g} of the rival", 1 / ratio, 1 / fraction))
        row.baselines["plain loop or call"] = statistics.median(r["plain"] for r in comparison.ours)
        if "end" in comparison.facts["ours"] and comparison.dropped():
            row.notes.append(f"events dropped while measuring: {comparison.dropped()}")
        return row


@dataclass
class Run:
    """What one call of the bench measured, and under which circumstances."""

    date: str
    subjects: list[str]
    circumstances: dict[str, str]


@dataclass
class Results:
    machine: dict[str, str]
    versions: dict[str, str]
    runs: list[Run]
    rows: list[Row] = field(default_factory=list)
    side: list[Row] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        raw = json.loads(path.read_text())
        raw["runs"] = [Run(**run) for run in raw["runs"]]
        for key in ("rows", "side"):
            raw[key] = [Row(**{**row, "goals": [Goal(**goal) for goal in row["goals"]]}) for row in raw[key]]
        return cls(**raw)

    def take_over(self, earlier: Results) -> None:
        """Keep what an earlier run says of subjects that this one did not measure."""
        mine = {subject for run in self.runs for subject in run.subjects}
        for run in earlier.runs:
            run.subjects = [subject for subject in run.subjects if subject not in mine]
        self.runs[:0] = [run for run in earlier.runs if run.subjects]
        self.rows[:0] = [row for row in earlier.rows if row.subject not in mine]
        self.side[:0] = [row for row in earlier.side if row.subject not in mine]

    def sort(self, order: list[str]) -> None:
        self.rows.sort(key=lambda row: order.index(row.subject))
