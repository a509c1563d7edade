"""The spans of one process as they are drawn: rows on which nothing overlaps, and sums that answer any zoom.

A row is one depth of one thread or device stream. Its spans are disjoint and sorted, so everything in a time
range is found by two binary searches; how much time each class of events takes in it follows from
sums kept at every 16th span. So a picture costs the same whatever it shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.load._scan import stack
from dftracer.load.chunk import Ints

__all__ = ["BLOCK", "Codes", "Part", "Spans", "build_part"]

Codes = npt.NDArray[np.int32]
BLOCK = 16
_SLACK_NS = 1000  # records are in whole microseconds: neighbours may overlap by that much


@dataclass
class Spans:
    """What was read for a process, in any order. Times are ns since the epoch."""

    tid: Ints
    start: Ints
    end: Ints
    pair: Codes
    path: Codes
    moved: Ints  # bytes
    correlation: Ints  # of launches and what they launched, -1 elsewhere

    def __len__(self) -> int:
        return int(self.start.size)


@dataclass
class Part:
    """One process, ready to be drawn."""

    info: dict[str, Any]  # who it is: see describe() in reading.py
    pairs: list[tuple[str, str, int]] = field(default_factory=list)  # category, name, kind
    paths: list[str] = field(default_factory=list)
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    # The columns, by name:
    #   start end pair path moved      of each span, row after row
    #   row_tid row_depth row_at       of each row; row_at has one more
    #   row_sums row_classes_at        where the row's sums and classes begin; each has one more
    #   classes sums                   of all rows: pairs of (category, kind), and ns up to each block
    #   launch_from launch_to          spans, by what they point from
    #   wait_span wait_batch wait_pid wait_worker   waits that name their batch
    #   made_span made_batch           batches that were made
    #   item_span item_of              items, and which of the made batches they are in

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.__dict__["columns"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return int(self.columns["start"].size)

    @property
    def rows(self) -> int:
        return int(self.columns["row_tid"].size)

    @property
    def classes_of_pairs(self) -> list[tuple[str, int]]:
        """The distinct (category, kind) of the pairs: what pictures distinguish and filters hide."""
        return list(dict.fromkeys((cat, kind) for cat, _, kind in self.pairs))

    def class_of_pair(self) -> npt.NDArray[np.uint8]:
        """The class of each pair, as an index into `classes_of_pairs`."""
        known = {c: i for i, c in enumerate(self.classes_of_pairs)}
        return np.array([min(known[cat, kind], 255) for cat, _, kind in self.pairs], np.uint8)

    def row_of(self, span: int) -> int:
        """The row that contains a span."""
        return int(np.searchsorted(self.columns["row_at"], span, side="right")) - 1

    def row_span(self, row: int) -> tuple[int, int]:
        at = self.columns["row_at"]
        return int(at[row]), int(at[row + 1])


def build_part(
    info: dict[str, Any], pairs: list[tuple[str, str, int]], paths: list[str], spans: Spans
) -> tuple[Part, Ints]:
    """Put spans on rows; also returns where each of the given spans went."""
    n = len(spans)
    tids, lane = np.unique(spans.tid, return_inverse=True)
    lane = lane.astype(np.int64).reshape(-1)
    # Among equal intervals, the one written later encloses: parents are written after their children.
    last_first = slice(None, None, -1)
    order = n - 1 - np.lexsort((-spans.end[last_first], spans.start[last_first], lane[last_first]))
    lane, start, end = lane[order], spans.start[order], spans.end[order]
    stacked: Any = stack(lane, start, end, _SLACK_NS)
    depth = np.frombuffer(stacked, np.int32)
    deepest = int(depth.max()) + 1 if n else 1
    key = lane * deepest + depth
    by_row = np.argsort(key, kind="stable")
    order, key = order[by_row], key[by_row]
    start, end = start[by_row], end[by_row]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if n else np.empty(0, np.int64)
    at = np.concatenate((first, [n])).astype(np.int64)
    if n:
        same_row = key[1:] == key[:-1]
        end[:-1][same_row] = np.minimum(end[:-1], start[1:])[same_row]
    part = Part(info, pairs, paths)
    part.columns = {
        "start": start,
        "end": end,
        "pair": spans.pair[order],
        "path": spans.path[order],
        "moved": spans.moved[order],
        "row_tid": tids[key[first] // deepest] if n else np.empty(0, np.int64),
        "row_depth": (key[first] % deepest).astype(np.int64) if n else np.empty(0, np.int64),
        "row_at": at,
    }
    _sum_up(part)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    part.columns.update(_launches(spans.correlation[order], part))
    return part, place


def _sum_up(part: Part) -> None:
    """For each row the classes in it, and the time of each up to every block of spans."""
    of_pair = part.class_of_pair()
    at = part.row_at
    classes: list[npt.NDArray[np.uint8]] = []
    sums: list[Ints] = []
    sums_at, classes_at = [0], [0]
    for row in range(part.rows):
        low, high = int(at[row]), int(at[row + 1])
        cls = of_pair[part.pair[low:high]]
        length = part.end[low:high] - part.start[low:high]
        present = np.unique(cls)
        blocks = -(-(high - low) // BLOCK)
        table = np.zeros((blocks + 1, present.size), np.int64)
        edges = np.arange(0, high - low, BLOCK)
        for k, c in enumerate(present.tolist()):
            mine = length if present.size == 1 else np.where(cls == c, length, 0)
            np.cumsum(np.add.reduceat(mine, edges), out=table[1:, k])
        classes.append(present)
        sums.append(table.reshape(-1))
        classes_at.append(classes_at[-1] + present.size)
        sums_at.append(sums_at[-1] + table.size)
    part.columns["classes"] = np.concatenate([np.empty(0, np.uint8), *classes])
    part.columns["sums"] = np.concatenate([np.empty(0, np.int64), *sums])
    part.columns["row_classes_at"] = np.array(classes_at, np.int64)
    part.columns["row_sums"] = np.array(sums_at, np.int64)


def _launches(correlation: Ints, part: Part) -> dict[str, npt.NDArray[Any]]:
    """Pairs of spans with the same number: a call on the host, and what it started on the device."""
    with_number = np.flatnonzero(correlation >= 0)
    nothing = np.empty(0, np.int64)
    if with_number.size == 0:
        return {"launch_from": nothing, "launch_to": nothing}
    row = np.searchsorted(part.row_at, with_number, side="right") - 1
    on_device = np.isin(part.row_tid[row], part.info["devices"])
    calls, work = with_number[~on_device], with_number[on_device]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    if calls.size == 0 or work.size == 0:
        return {"launch_from": nothing, "launch_to": nothing}
    found = np.minimum(np.searchsorted(correlation[calls], correlation[work]), calls.size - 1)
    hit = correlation[calls[found]] == correlation[work]
    source, target = calls[found[hit]], work[hit]
    order = np.argsort(source, kind="stable")
    return {"launch_from": source[order], "launch_to": target[order]}
