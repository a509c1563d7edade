"""Samples of the program's own code: where it was, and for how long each sample stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer.load._scan import arg_texts
from dftracer.load.chunk import Chunk, Ints, int64s


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass
class Samples:
    """In us; `where` and `stack` are numbers of `names`."""

    names: list[str] = field(default_factory=list)
    start: Ints = field(default_factory=_none)
    dur: Ints = field(default_factory=_none)
    where: Ints = field(default_factory=_none)
    stack: Ints = field(default_factory=_none)
    _parts: list[Samples] = field(default_factory=list)

    def add(self, more: Samples | None) -> None:
        if more is not None:
            self._parts.append(more)

    def joined(self) -> Samples:
        """All that was added, in order."""
        numbers: dict[str, int] = {}
        columns: list[list[Ints]] = [[], [], [], []]
        for part in self._parts:
            number = np.array([numbers.setdefault(n, len(numbers)) for n in part.names], np.int64)
            for column, values in zip(
                columns, (part.start, part.dur, number[part.where], number[part.stack]), strict=True
            ):
                column.append(values)
        if not self._parts:
            return Samples()
        start, dur, where, stack = (np.concatenate(c) for c in columns)
        return Samples([*numbers], start, dur, where, stack)

    def seconds(self, first: int, last: int) -> dict[str, float]:
        """By place, between two moments; the longest first."""
        mine = (self.start < last) & (self.start + self.dur > first)
        sums = np.bincount(self.where[mine], weights=self.dur[mine], minlength=len(self.names))
        order = sorted(np.flatnonzero(sums).tolist(), key=lambda i: (-sums[i], self.names[i]))
        return {self.names[i]: float(sums[i]) / 1e6 for i in order}

    def flame(self) -> dict[str, Any]:
        """The stacks as a tree: `name`, `seconds` with everything below it, `children`, the longest first."""
        sums = np.bincount(self.stack, weights=self.dur, minlength=len(self.names))
        root: dict[str, Any] = {"name": "all", "seconds": 0.0, "children": {}}
        for i in np.flatnonzero(sums).tolist():
            seconds, at = float(sums[i]) / 1e6, root
            root["seconds"] += seconds
            for frame in filter(None, self.names[i].split(";")):
                at = at["children"].setdefault(frame, {"name": frame, "seconds": 0.0, "children": {}})
                at["seconds"] += seconds
        return _listed(root, root["seconds"] * _LEAST)


_LEAST = 0.002  # of all samples: what is less is not drawn


def _listed(node: dict[str, Any], least: float) -> dict[str, Any]:
    below = sorted(node["children"].values(), key=lambda c: (-c["seconds"], c["name"]))
    return {
        "name": node["name"],
        "seconds": round(node["seconds"], 6),
        "children": [_listed(c, least) for c in below if c["seconds"] >= least],
    }


def samples_of_chunk(chunk: Chunk, rows: Any, start: Ints, dur: Ints) -> Samples:
    """The samples among some rows of a trace."""
    ends, text = chunk.args_of(np.asarray(rows))
    ends = ends.astype(np.int64)
    names: list[str] = []
    columns: list[Ints] = []
    for key in (b'"where":"', b'"stack":"'):
        raw, found = arg_texts(ends, text, key)
        code = int64s(raw)
        columns.append(np.where(code < 0, len(names) + len(found), code + len(names)))
        names += [*found, ""]
    return Samples(names, start.copy(), dur.copy(), columns[0], columns[1])
