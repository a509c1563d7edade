"""A range of time: its ledger, its statistics, its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from dftracer.analyze.stages import STAGES
from dftracer.load.chunk import Ints
from dftracer.view.kinds import KIND_INDEX, KINDS
from dftracer.view.ledger_rows import LEDGER, ledger_between
from dftracer.view.run import Run, Window

__all__ = ["range_facts"]

_MOST = 200
_READ, _WRITE = KIND_INDEX["read"], KIND_INDEX["write"]


def range_facts(
    run: Run, window: Window, ranks: frozenset[int] | None, hidden: frozenset[str]
) -> dict[str, Any]:
    """All that is told of a range; events count that overlap it, with the time that lies in it."""
    low, high = max(0, window[0]), min(run.length, window[1])
    window = (low, max(high, low + 1))
    frames, files = [], []
    for part, spans, clipped in _parts_in(run, window, ranks, hidden):
        p = run.parts[part]
        frames.append(pl.DataFrame({"pair": p.pair[spans], "us": clipped}).with_columns(part=pl.lit(part)))
        path = p.path[spans]
        at = np.flatnonzero(path >= 0)
        if at.size:
            kind = np.array([k for _, _, k in p.pairs], np.uint8)[p.pair[spans[at]]]
            files.append(
                pl.DataFrame(
                    {"path": path[at], "ns": clipped[at], "bytes": p.moved[spans[at]], "kind": kind}
                ).with_columns(part=pl.lit(part))
            )
    return {
        "start": window[0],
        "end": window[1],
        "ledger": _ledger(run, window, ranks),
        "stages": list(STAGES),
        **_statistics(run, frames),
        **_files(run, files),
    }


def _parts_in(
    run: Run, window: Window, ranks: frozenset[int] | None, hidden: frozenset[str]
) -> Iterator[tuple[int, Ints, Ints]]:
    """Part, spans that overlap the window, and how long each is in it."""
    t0, t1 = (run.base + t for t in window)
    for lane in run.lanes:
        part = run.parts[lane.part]
        if part.info["source"] == LEDGER or (ranks is not None and lane.rank not in ranks):
            continue
        visible = np.array([cat not in hidden for cat, _, _ in part.pairs], bool)
        for row in lane.rows:
            low, high = part.row_span(row)
            first = low + int(np.searchsorted(part.end[low:high], t0, side="right"))
            last = low + int(np.searchsorted(part.start[low:high], t1, side="left"))
            spans = np.arange(first, last)
            if not visible.all():
                spans = spans[visible[part.pair[first:last]]]
            if spans.size:
                inside = np.minimum(part.end[spans], t1) - np.maximum(part.start[spans], t0)
                yield lane.part, spans, np.maximum(inside, 0)


def _ledger(run: Run, window: Window, ranks: frozenset[int] | None) -> list[dict[str, Any]]:
    out = []
    for lane in run.lanes:
        if lane.role == "stages" and (ranks is None or lane.rank in ranks):
            part = run.parts[lane.part]
            told = ledger_between(part, run.base + window[0], run.base + window[1])
            out.append({"label": lane.group, "rank": lane.rank, "ns": told.tolist()})
    return out


def _statistics(run: Run, frames: list[pl.DataFrame]) -> dict[str, Any]:
    if not frames:
        return {"names": [], "names_total": 0, "events": 0}
    table = _renumbered(run, pl.concat(frames))
    ns = pl.col("us")
    grouped = (
        table.group_by("key")
        .agg(
            pl.len().alias("count"),
            ns.sum().alias("total"),
            ns.quantile(0.5, "nearest").alias("p50"),
            ns.quantile(0.99, "nearest").alias("p99"),
            ns.max().alias("max"),
        )
        .sort("total", "key", descending=[True, False])
    )
    keys: list[tuple[str, str, int]] = run.memo["pairs"]
    rows = [
        {
            "cat": keys[r["key"]][0],
            "name": keys[r["key"]][1],
            "kind": KINDS[keys[r["key"]][2]],
            "count": r["count"],
            "total": r["total"],
            "p50": int(r["p50"]),
            "p99": int(r["p99"]),
            "max": r["max"],
        }
        for r in grouped.head(_MOST).to_dicts()
    ]
    return {"names": rows, "names_total": grouped.height, "events": table.height}


def _renumbered(run: Run, table: pl.DataFrame) -> pl.DataFrame:
    """The parts' own numbers of names to those of the run."""
    if "pairs" not in run.memo:
        numbers: dict[tuple[str, str, int], int] = {}
        of_parts = [[numbers.setdefault(pair, len(numbers)) for pair in p.pairs] for p in run.parts]
        run.memo["pair_numbers"] = of_parts
        run.memo["pairs"] = list(numbers)
    of_parts = run.memo["pair_numbers"]
    at = np.cumsum([0, *(len(t) for t in of_parts)])
    flat = np.concatenate([np.array(t, np.int32) for t in of_parts])
    key = flat[at[table["part"].to_numpy()] + table["pair"].to_numpy()]
    return table.with_columns(pl.Series("key", key))


def _files(run: Run, frames: list[pl.DataFrame]) -> dict[str, Any]:
    if not frames:
        return {"files": [], "files_total": 0}
    table = (
        pl.concat(frames)
        .group_by("part", "path")
        .agg(
            pl.len().alias("calls"),
            pl.col("ns").sum(),
            pl.col("bytes").filter(pl.col("kind") == _READ).sum().alias("read"),
            pl.col("bytes").filter(pl.col("kind") == _WRITE).sum().alias("written"),
        )
    )
    names = [run.parts[p].paths[f] for p, f in table.select("part", "path").iter_rows()]
    table = (
        table.with_columns(pl.Series("name", names, dtype=pl.String))
        .group_by("name")
        .agg(pl.col("calls", "ns", "read", "written").sum())
        .sort("ns", "name", descending=[True, False])
    )
    rows = [
        {"path": name, "calls": calls, "total": ns, "read": read, "written": written}
        for name, calls, ns, read, written in table.head(_MOST).iter_rows()
    ]
    return {"files": rows, "files_total": table.height}
