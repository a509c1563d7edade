"""Figures on request: of a range of time, of each step, of the last moments of a run that is followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dftracer.analyze import Analysis, analyze
from dftracer.analyze.ledger import visible_stages
from dftracer.analyze.map.own_code import Samples
from dftracer.analyze.stages import STAGES
from dftracer.load.chunk import MISSING, Ints
from dftracer.load.trace import Trace
from dftracer.report.snapshot import Snapshot
from dftracer.view.drawn import KIND_INDEX, KINDS, DrawnProcess
from dftracer.view.reading import LEDGER, ledger_between
from dftracer.view.run import Run, Window

# --- A range of time: its ledger, its statistics, its files


_MAX = 200
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
        drawn = run.parts[lane.part]
        if drawn.info["source"] == LEDGER or (ranks is not None and lane.rank not in ranks):
            continue
        visible = np.array([cat not in hidden for cat, _, _ in drawn.pairs], bool)
        for row in lane.rows:
            low, high = drawn.row_span(row)
            first = low + int(np.searchsorted(drawn.end[low:high], t0, side="right"))
            last = low + int(np.searchsorted(drawn.start[low:high], t1, side="left"))
            spans = np.arange(first, last)
            if not visible.all():
                spans = spans[visible[drawn.pair[first:last]]]
            if spans.size:
                inside = np.minimum(drawn.end[spans], t1) - np.maximum(drawn.start[spans], t0)
                yield lane.part, spans, np.maximum(inside, 0)


def _ledger(run: Run, window: Window, ranks: frozenset[int] | None) -> list[dict[str, Any]]:
    out = []
    for lane in run.lanes:
        if lane.role == "stages" and (ranks is None or lane.rank in ranks):
            drawn = run.parts[lane.part]
            ns = ledger_between(drawn, run.base + window[0], run.base + window[1])
            out.append({"label": lane.group, "rank": lane.rank, "ns": ns.tolist()})
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
    names = []
    for row in table.head(_MAX).to_dicts():
        cat, name, kind = keys[row.pop("key")]
        names.append({"cat": cat, "name": name, "kind": KINDS[kind], **row})
    return {"names": names, "names_total": table.height, "events": int(ordered["n"].sum())}


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
    files = [dict(zip(columns, row, strict=True)) for row in table.head(_MAX).iter_rows()]
    return {"files": files, "files_total": table.height}


# --- The steps of a run with their stages, and its analysis results; cached like the parts


def find_steps(trace: Trace) -> DrawnProcess:
    """Analyse a run and keep what the page shows."""
    return columns_of_steps(analyze(trace, run="all"))


def columns_of_steps(analysis: Analysis) -> DrawnProcess:
    """Columns `RANK.start` and so on; times are ns since the epoch."""
    ranks = []
    columns: dict[str, Any] = {}
    stacks: dict[str, list[str]] = {}
    for rank in analysis.job.ranks:
        steps = rank.main.steps
        n = rank.number
        seen = visible_stages(rank)
        ranks.append(
            {
                "rank": n,
                "steps": len(steps),
                "workers": len(rank.workers),
                "unseen": [] if seen is None else [s for s in STAGES if s not in seen],
                "source": steps.source,
                "median_us": steps.usual_us,
            }
        )
        columns[f"{n}.start"] = steps.start * 1000
        columns[f"{n}.end"] = steps.end * 1000
        columns[f"{n}.wall"] = steps.wall
        columns[f"{n}.step"] = steps.step
        columns[f"{n}.epoch"] = steps.epoch
        columns[f"{n}.stages"] = rank.main.account
        samples = rank.main.samples
        columns[f"{n}.sample_start"] = samples.start * 1000
        columns[f"{n}.sample_dur"] = samples.dur * 1000
        columns[f"{n}.sample_stack"] = samples.stack
        stacks[str(n)] = samples.names
    info = {
        "source": "steps",
        "ranks": ranks,
        "head": list(analysis.head),
        "run_s": analysis.run_s,
        "stacks": stacks,
    }
    return DrawnProcess(info, columns=columns)


def flame_graph(
    steps: DrawnProcess | None, base: int, window: Window, ranks: frozenset[int] | None
) -> dict[str, Any]:
    """Where the program's own code was in a window of time, as a tree; of the ranks together."""
    mine = Samples()
    for rank, names in ({} if steps is None else steps.info["stacks"]).items():
        assert steps is not None
        if ranks is not None and int(rank) not in ranks:
            continue
        start, dur, stack = (steps.columns[f"{rank}.sample_{c}"] for c in ("start", "dur", "stack"))
        inside = np.minimum(start + dur, base + window[1]) - np.maximum(start, base + window[0])
        seen = inside > 0
        mine.add(Samples(names, start[seen], inside[seen] // 1000, stack[seen], stack[seen]))
    return mine.joined().flame()


def step_rows(steps: DrawnProcess, base: int, rank: int, offset: int, limit: int) -> dict[str, Any]:
    """Some rows of a rank's steps, and the shape of all of them."""
    known = next((r for r in steps.info["ranks"] if r["rank"] == rank), None)
    if known is None:
        return {"rank": rank, "total": 0, "rows": [], "shape": None, "stages": list(STAGES)}
    c = {
        name: steps.columns[f"{rank}.{name}"] for name in ("start", "end", "wall", "step", "epoch", "stages")
    }
    total = int(c["start"].size)
    offset = max(0, min(offset, total - 1))
    rows = []
    for i in range(offset, min(offset + limit, total)):
        label, epoch = int(c["step"][i]), int(c["epoch"][i])
        rows.append(
            {
                "index": i,
                "step": None if label == MISSING else label,
                "epoch": None if epoch == MISSING else epoch,
                "start": int(c["start"][i]) - base,
                "end": int(c["end"][i]) - base,
                "wall_us": int(c["wall"][i]),
                "stages_us": c["stages"][i].tolist(),
            }
        )
    return {
        **known,
        "total": total,
        "rows": rows,
        "shape": _shape(c, known["median_us"]),
        "stages": list(STAGES),
    }


def _shape(c: dict[str, Any], median_us: float, most: int = 240) -> dict[str, Any] | None:
    """The wall time of the steps in a few groups, for the strip above the rows."""
    n = int(c["wall"].size)
    if n == 0:
        return None
    edges = np.linspace(0, n, min(n, most) + 1).astype(np.int64)
    return {
        "first": edges[:-1].tolist(),
        "max_us": np.maximum.reduceat(c["wall"], edges[:-1]).tolist(),
        "median_us": median_us,
    }


def step_window(steps: DrawnProcess | None, base: int, number: int) -> dict[int, tuple[int, int]]:
    """For each rank, the time of its step with that label, or with that index if steps have no labels."""
    out: dict[int, tuple[int, int]] = {}
    for each in steps.info["ranks"] if steps is not None else ():
        assert steps is not None
        rank = each["rank"]
        label = steps.columns[f"{rank}.step"]
        at = np.flatnonzero(label == number)
        if at.size == 0 and (label == MISSING).all() and 0 <= number < label.size:
            at = np.array([number])
        if at.size:
            start, end = (int(steps.columns[f"{rank}.{c}"][at[0]]) - base for c in ("start", "end"))
            out[rank] = (start, end)
    return out


# --- The last moments of a run that is followed: the strip above the page


def live_strip(snapshot: Snapshot, last_us: int) -> dict[str, Any]:
    """The figures of `dftracer top` at this moment; `last_us` is when the last event began."""
    waits = [rank.loader_wait for rank in snapshot.ranks if rank.loader_wait is not None]
    devices = [rank.device_busy for rank in snapshot.ranks if rank.device_busy is not None]
    hottest = snapshot.files[0] if snapshot.files else None
    return {
        "window_s": snapshot.seconds,
        "ranks": len(snapshot.ranks),
        "steps_per_s": snapshot.steps_per_s if snapshot.ranks else None,
        **({} if snapshot.samples_per_s is None else {"samples_per_s": snapshot.samples_per_s}),
        "fetch_wait": sum(waits) / len(waits) if waits else None,
        "device_busy": sum(devices) / len(devices) if devices else None,
        "read_per_s": snapshot.read_bytes_per_s,
        "written_per_s": snapshot.write_bytes_per_s,
        "hottest": hottest and {"path": hottest["path"], "ns": round(hottest["time_s"] * 1e9)},
        "events_per_s": (snapshot.events or 0) / snapshot.seconds,
        "end_us": last_us,
        "running": snapshot.processes.get("running", 0),
        "dropped": snapshot.dropped,
    }
