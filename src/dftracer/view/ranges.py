"""A range of time: its ledger, its statistics, its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
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
    """Everything shown for a range; events that overlap it count with the time inside it."""
    low, high = max(0, window[0]), min(run.length, window[1])
    window = (low, max(high, low + 1))
    of_parts = _pair_numbers(run)
    names, files = [], []
    for part, spans, inside in _parts_in(run, window, ranks, hidden):
        # Summed row by row: the same durations occur again and again, so little memory is needed.
        p = run.parts[part]
        pair = p.pair[spans]
        names.append(
            pl.DataFrame({"key": of_parts[part][pair], "ns": inside})
            .group_by("key", "ns")
            .agg(pl.len().alias("n"))
        )
        path = p.path[spans]
        at = np.flatnonzero(path >= 0)
        if at.size:
            kind = np.array([k for _, _, k in p.pairs], np.uint8)[pair[at]]
            moved = {"path": path[at], "ns": inside[at], "bytes": p.moved[spans[at]], "kind": kind}
            files.append(_by_path(pl.DataFrame(moved)).with_columns(part=pl.lit(part)))
    return {
        "start": window[0],
        "end": window[1],
        "ledger": _ledger(run, window, ranks),
        "stages": list(STAGES),
        **_statistics(run, names),
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


def _statistics(run: Run, rows: list[pl.DataFrame]) -> dict[str, Any]:
    """Per name: count, time in the range, exact percentiles (nearest rank)."""
    if not rows:
        return {"names": [], "names_total": 0, "events": 0}
    ordered = (
        pl.concat(rows)
        .group_by("key", "ns")
        .agg(pl.col("n").sum().cast(pl.Int64))
        .sort("key", "ns")
        .with_columns(
            pl.col("n").cum_sum().over("key").alias("upto"), pl.col("n").sum().over("key").alias("all")
        )
    )

    def at(part: float) -> pl.Expr:
        return pl.col("ns").filter(pl.col("upto") >= (pl.col("all") * part).ceil()).first()

    table = (
        ordered.group_by("key")
        .agg(
            pl.col("n").sum().alias("count"),
            (pl.col("ns") * pl.col("n")).sum().alias("total"),
            at(0.5).alias("p50"),
            at(0.99).alias("p99"),
            pl.col("ns").max().alias("max"),
        )
        .sort("total", "key", descending=[True, False])
    )
    keys: list[tuple[str, str, int]] = run.memo["pairs"]
    told = []
    for row in table.head(_MOST).to_dicts():
        cat, name, kind = keys[row.pop("key")]
        told.append({"cat": cat, "name": name, "kind": KINDS[kind], **row})
    return {"names": told, "names_total": table.height, "events": int(ordered["n"].sum())}


def _pair_numbers(run: Run) -> list[npt.NDArray[np.int32]]:
    """For each part, maps its own name numbers to those of the run."""
    if "pair_numbers" not in run.memo:
        numbers: dict[tuple[str, str, int], int] = {}
        run.memo["pair_numbers"] = [
            np.array([numbers.setdefault(pair, len(numbers)) for pair in p.pairs], np.int32)
            for p in run.parts
        ]
        run.memo["pairs"] = list(numbers)
    found: list[npt.NDArray[np.int32]] = run.memo["pair_numbers"]
    return found


def _by_path(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.group_by("path").agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("ns").sum(),
        pl.col("bytes").filter(pl.col("kind") == _READ).sum().alias("read"),
        pl.col("bytes").filter(pl.col("kind") == _WRITE).sum().alias("written"),
    )


def _files(run: Run, rows: list[pl.DataFrame]) -> dict[str, Any]:
    if not rows:
        return {"files": [], "files_total": 0}
    table = pl.concat(rows).group_by("part", "path").agg(pl.col("calls", "ns", "read", "written").sum())
    names = [run.parts[p].paths[f] for p, f in table.select("part", "path").iter_rows()]
    table = (
        table.with_columns(pl.Series("name", names, dtype=pl.String))
        .group_by("name")
        .agg(pl.col("calls", "ns", "read", "written").sum())
        .sort("ns", "name", descending=[True, False])
    )
    columns = ("path", "calls", "total", "read", "written")
    told = [dict(zip(columns, row, strict=True)) for row in table.head(_MOST).iter_rows()]
    return {"files": told, "files_total": table.height}
