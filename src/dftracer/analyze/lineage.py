"""From a step's wait to the batch it waited for: the worker that made it, its items, the files they read.

Automatic tracing writes the loader's own batch number on the wait (with the worker's pid) and on the
batch's collation in the worker. The items of a batch are those of that thread since the previous collation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer.analyze.intervals import EMPTY
from dftracer.load.chunk import MISSING, Chunk, Ints

__all__ = ["AWAITED", "MADE", "Awaited", "Batches", "find_awaited", "read_lineage", "trace_batches"]

AWAITED = ("ts", "dur", "batch", "worker", "pid")
MADE = ("tid", "ts", "dur", "batch")
_FACTS = {name: re.compile(rf'"{key}":\s*(\d+)') for name, key in
          (("batch", "batch"), ("worker", "worker"), ("pid", "worker_pid"))}  # fmt: skip
_LEAST = 0.01  # of a step's time: shorter waits are ignored
_MOST_ITEMS, _MOST_FILES = 5, 5


def _fact(text: str, name: str) -> int:
    found = _FACTS[name].search(text)
    return MISSING if found is None else int(found.group(1))


def read_lineage(kind: str, chunk: Chunk, rows: Ints, times: tuple[Ints, Ints, Ints]) -> Ints:
    """The table of some waits (AWAITED) or collations (MADE), from their arguments."""
    texts = [chunk.args_text(int(row)) for row in rows.tolist()]
    names = AWAITED[2:] if kind == "wait" else MADE[3:]
    facts = [np.array([_fact(text, name) for text in texts], np.int64) for name in names]
    tid, ts, dur = times
    table = np.stack((ts, dur, *facts) if kind == "wait" else (tid, ts, dur, *facts))
    kept: Ints = table[:, facts[0] != MISSING]
    return kept


@dataclass
class Batches:
    """What a process made: items and collations, in chronological order; it stays where it was read."""

    made: Ints = field(default_factory=lambda: np.empty((len(MADE), 0), np.int64))
    item_tid: Ints = field(default_factory=lambda: EMPTY[0])
    item_ts: Ints = field(default_factory=lambda: EMPTY[0])
    item_dur: Ints = field(default_factory=lambda: EMPTY[0])
    item_index: Ints = field(default_factory=lambda: EMPTY[0])

    @property
    def nbytes(self) -> int:
        arrays = (self.made, self.item_tid, self.item_ts, self.item_dur, self.item_index)
        return sum(a.nbytes for a in arrays)


@dataclass
class Awaited:
    """A batch that a step waited for, as a question to the process that made it."""

    step: int
    batch: int
    worker: int | None
    pid: int
    start_us: int
    end_us: int


def find_awaited(waits: Ints, starts: Ints, ends: Ints, main_pid: int) -> list[Awaited]:
    """The longest wait of each step, unless it was negligible."""
    found: dict[int, Awaited] = {}
    for i in np.argsort(waits[1], kind="stable").tolist():  # the longest comes last and is kept
        ts, dur, batch, worker, pid = (int(v) for v in waits[:, i])
        step = int(np.searchsorted(starts, ts, side="right")) - 1
        if step < 0 or ts >= ends[step] or dur < _LEAST * (ends[step] - starts[step]):
            continue
        found[step] = Awaited(
            step,
            batch,
            None if worker == MISSING else worker,
            main_pid if pid == MISSING else pid,
            ts,
            ts + dur,
        )
    return [found[step] for step in sorted(found)]


def trace_batches(
    batches: Batches, io: tuple[Any, Ints, Ints], paths: list[str], asked: list[Awaited]
) -> dict[int, dict[str, Any]]:
    """For each step what it waited for, if this process made it."""
    out: dict[int, dict[str, Any]] = {}
    if not asked or not batches.made.shape[1]:
        return out
    made = batches.made[:, np.argsort(batches.made[1], kind="stable")]
    order = np.argsort(io[1], kind="stable")
    io_file, io_ts, io_dur = (column[order] for column in io)
    for each in asked:
        # Numbers start over with each pass: it is the latest with that number before the wait ended.
        at = np.flatnonzero((made[3] == each.batch) & (made[1] <= each.end_us))
        if not at.size:
            continue
        tid, ts, dur, _ = (int(v) for v in made[:, at[-1]])
        earlier = made[1][(made[0] == tid) & (made[1] < ts)]
        since = int(earlier[-1]) if earlier.size else 0
        mine = np.flatnonzero(
            (batches.item_tid == tid) & (batches.item_ts < ts + dur) & (batches.item_ts >= since)
        )
        start = int(batches.item_ts[mine].min()) if mine.size else ts
        slowest = mine[np.argsort(-batches.item_dur[mine], kind="stable")][:_MOST_ITEMS]
        lo, hi = np.searchsorted(io_ts, (start, ts + dur))
        known = io_file[lo:hi] >= 0
        sums = np.bincount(io_file[lo:hi][known], weights=io_dur[lo:hi][known], minlength=len(paths))
        read = [f for f in np.argsort(-sums, kind="stable")[:_MOST_FILES].tolist() if sums[f] > 0]
        out[each.step] = {
            "worker": each.worker,
            "pid": each.pid,
            "batch": each.batch,
            "seconds": round((each.end_us - each.start_us) / 1e6, 6),
            "made_in_s": round((ts + dur - start) / 1e6, 6),
            "items": [
                {
                    "index": None if batches.item_index[i] == MISSING else int(batches.item_index[i]),
                    "seconds": round(int(batches.item_dur[i]) / 1e6, 6),
                }
                for i in slowest.tolist()
            ],
            "files": [{"path": paths[f], "seconds": round(float(sums[f]) / 1e6, 6)} for f in read],
        }
    return out
