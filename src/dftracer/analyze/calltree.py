"""The call tree with self time: all events with the same chain of names above them in one node."""

from __future__ import annotations

import numpy as np
import polars as pl

from dftracer.load._scan import nest
from dftracer.load.chunk import Ints, int64s
from dftracer.load.trace import Trace, scan_file

__all__ = ["call_tree"]


def _parent_rows(tid: Ints, ts: Ints, dur: Ints) -> tuple[Ints, Ints]:
    parent, own = nest(*(np.ascontiguousarray(c) for c in (tid, ts, dur)))
    return int64s(parent), int64s(own)


def call_tree(trace: Trace) -> pl.DataFrame:
    """Nodes of the merged call tree: path (names from the top), depth, count, total and self seconds.

    Nesting follows from the times on each thread, so it works for every dialect. Only one file is in memory
    at a time.
    """
    sums: dict[tuple[str, ...], list[int]] = {}
    for process in trace.processes:
        if not trace.filter.wants(process):
            continue
        parts: list[tuple[Ints, Ints, Ints, np.ndarray]] = []
        texts: list[str] = []
        for scanner, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
            if chunk.rows:
                x = chunk.ph() == ord("X")
                columns = (chunk.ints("tid"), chunk.ints("ts"), chunk.ints("dur"))
                parts.append((*(c[x] for c in columns), chunk.codes("name")[x]))
            texts = scanner.dictionary("name")
        if not parts:
            continue
        tid, ts, dur, name = (np.concatenate([p[i] for p in parts]) for i in range(4))
        parent, own = _parent_rows(tid, ts, dur)
        _add(sums, parent, name, dur, own, texts)
    rows = [
        {
            "path": "/".join(k),
            "name": k[-1],
            "depth": len(k),
            "count": n,
            "total_s": t / 1e6,
            "self_s": s / 1e6,
        }
        for k, (n, t, s) in sums.items()
    ]
    kinds = {
        "path": pl.String,
        "name": pl.String,
        "depth": pl.Int64,
        "count": pl.Int64,
        "total_s": pl.Float64,
        "self_s": pl.Float64,
    }
    frame: pl.DataFrame = pl.DataFrame(rows, schema=kinds).sort("path")
    return frame


def _add(
    sums: dict[tuple[str, ...], list[int]],
    parent: Ints,
    name: np.ndarray,
    dur: Ints,
    own: Ints,
    texts: list[str],
) -> None:
    """Number the nodes level by level: a node is its parent's node and its own name."""
    node = np.full(name.size, -1, dtype=np.int64)
    chains: list[tuple[str, ...]] = []
    at = np.flatnonzero(parent < 0)
    above = np.full(at.size, -1, dtype=np.int64)
    order = np.argsort(parent, kind="stable")
    sorted_parent = parent[order]
    while at.size:
        key = (above + 1) * (len(texts) + 1) + name[at]
        unique, inverse = np.unique(key, return_inverse=True)
        first = len(chains)
        for k in unique.tolist():
            up, code = divmod(k, len(texts) + 1)
            chains.append((*(chains[up - 1] if up else ()), texts[code]))
        node[at] = inverse + first
        n = np.bincount(inverse, minlength=unique.size)
        total = np.bincount(inverse, weights=dur[at], minlength=unique.size)
        alone = np.bincount(inverse, weights=own[at], minlength=unique.size)
        for i in range(unique.size):
            entry = sums.setdefault(chains[first + i], [0, 0, 0])
            entry[0] += int(n[i])
            entry[1] += int(total[i])
            entry[2] += int(alone[i])
        lo = np.searchsorted(sorted_parent, np.sort(at), side="left")
        hi = np.searchsorted(sorted_parent, np.sort(at), side="right")
        count = hi - lo
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        at = order[np.repeat(lo, count) + offset]
        above = node[parent[at]]
