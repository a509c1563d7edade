"""The run as tables (Polars frames), made from the merged partial results; and the call tree of a trace."""

from __future__ import annotations

import os

import numpy as np
import polars as pl

from dftracer.analyze.job import Job
from dftracer.analyze.ledger import step_rows
from dftracer.analyze.map.digest import BIN_US_SHIFT, IO_OPEN, IO_OPEN_TO_WRITE, IO_READ, IO_WRITE
from dftracer.analyze.stages import STAGES
from dftracer.load._scan import nest
from dftracer.load.chunk import Ints, int64s
from dftracer.load.trace import Trace, scan_file

_SMALL_BIN = 17  # bins are floor(log2(bytes)) + 1, so below 17 means fewer than 64 KiB


def names(job: Job) -> pl.DataFrame:
    """Per category and name: count, total, self, mean, exact percentiles, extremes; in s and us."""
    parts = [p.names for p in job.partials if p.names is not None and p.names.height]
    if not parts:
        return pl.DataFrame(
            schema={
                "cat": pl.String,
                "name": pl.String,
                "count": pl.Int64,
                "total_s": pl.Float64,
                "self_s": pl.Float64,
                "mean_us": pl.Float64,
                "p50_us": pl.Int64,
                "p90_us": pl.Int64,
                "p99_us": pl.Int64,
                "min_us": pl.Int64,
                "max_us": pl.Int64,
                "processes": pl.Int64,
            }
        )
    seen = (
        pl.concat([p.select("cat", "name").unique() for p in parts])
        .group_by("cat", "name")
        .agg(pl.len().cast(pl.Int64).alias("processes"))
    )
    counted = (
        pl.concat(parts)
        .group_by("cat", "name", "dur")
        .agg(pl.col("n").cast(pl.Int64).sum(), pl.col("self").sum())
    )
    ordered = counted.sort("cat", "name", "dur").with_columns(
        pl.col("n").cum_sum().over("cat", "name").alias("upto"),
        pl.col("n").sum().over("cat", "name").alias("all"),
    )

    def at(q: float) -> pl.Expr:
        rank = (pl.col("all") * q).ceil()
        found: pl.Expr = pl.col("dur").filter(pl.col("upto") >= rank).first().alias(f"p{round(q * 100)}_us")
        return found

    table: pl.DataFrame = (
        ordered.group_by("cat", "name", maintain_order=True)
        .agg(
            pl.col("n").sum().alias("count"),
            ((pl.col("dur") * pl.col("n")).sum() / 1e6).alias("total_s"),
            (pl.col("self").sum() / 1e6).alias("self_s"),
            ((pl.col("dur") * pl.col("n")).sum() / pl.col("n").sum()).alias("mean_us"),
            at(0.5),
            at(0.9),
            at(0.99),
            pl.col("dur").min().alias("min_us"),
            pl.col("dur").max().alias("max_us"),
        )
        .join(seen, on=["cat", "name"])
        .sort("total_s", "cat", "name", descending=[True, False, False])
    )
    return table


def _file_parts(job: Job) -> pl.DataFrame | None:
    parts = [
        p.files.with_columns(pl.lit(p.process.rank, dtype=pl.Int64).alias("rank"), pl.lit(i).alias("process"))
        for i, p in enumerate(job.partials)
        if p.files is not None
    ]
    return pl.concat(parts) if parts else None


def files(job: Job) -> pl.DataFrame | None:
    """Per file: calls, bytes, times, bandwidth; None when no I/O was traced."""
    parts = _file_parts(job)
    if parts is None:
        return None
    read, write = (pl.col("kind") == k for k in (IO_READ, IO_WRITE))
    opened, to_write = (pl.col("kind") == k for k in (IO_OPEN, IO_OPEN_TO_WRITE))
    small = read & (pl.col("bin") < _SMALL_BIN) & (pl.col("bin") > 0)
    table: pl.DataFrame = (
        parts.group_by("path")
        .agg(
            pl.col("n").sum().cast(pl.Int64).alias("ops"),
            pl.col("n").filter(opened | to_write).sum().cast(pl.Int64).alias("opens"),
            pl.col("n").filter(to_write).sum().cast(pl.Int64).alias("opens_to_write"),
            pl.col("n").filter(read).sum().cast(pl.Int64).alias("reads"),
            pl.col("n").filter(write).sum().cast(pl.Int64).alias("writes"),
            pl.col("bytes").filter(read).sum().alias("read_bytes"),
            pl.col("bytes").filter(write).sum().alias("write_bytes"),
            (pl.col("us").sum() / 1e6).alias("time_s"),
            (pl.col("us").filter(read).sum() / 1e6).alias("read_s"),
            (pl.col("us").filter(write).sum() / 1e6).alias("write_s"),
            (pl.col("us").filter(~read & ~write).sum() / 1e6).alias("meta_s"),
            (pl.col("us").filter(to_write).sum() / 1e6).alias("open_to_write_s"),
            pl.col("n").filter(small).sum().cast(pl.Int64).alias("small_reads"),
            (pl.col("us").filter(small).sum() / 1e6).alias("small_read_s"),
            pl.col("bytes").filter(small).sum().alias("small_bytes"),
            pl.col("process").n_unique().cast(pl.Int64).alias("processes"),
            pl.col("rank").drop_nulls().n_unique().cast(pl.Int64).alias("ranks"),
        )
        .with_columns(
            pl.when(pl.col("read_s") > 0)
            .then(pl.col("read_bytes") / pl.col("read_s") / 1e6)
            .alias("read_mb_s"),
            pl.when(pl.col("write_s") > 0)
            .then(pl.col("write_bytes") / pl.col("write_s") / 1e6)
            .alias("write_mb_s"),
        )
        .sort("time_s", "path", descending=[True, False])
    )
    return table


def opens_by_rank(job: Job) -> pl.DataFrame | None:
    """Per file: the most opens for reading by one rank."""
    parts = _file_parts(job)
    if parts is None:
        return None
    table: pl.DataFrame = (
        parts.filter(pl.col("kind") == IO_OPEN)
        .group_by("path", "rank")
        .agg(pl.col("n").sum().cast(pl.Int64).alias("opens"))
        .group_by("path")
        .agg(pl.col("opens").max().alias("opens_by_one"))
    )
    return table


def directories(job: Job) -> pl.DataFrame | None:
    """The same per directory."""
    table = files(job)
    if table is None:
        return None
    sums = [c for c in table.columns if c not in {"path", "processes", "ranks", "read_mb_s", "write_mb_s"}]
    grouped: pl.DataFrame = (
        table.with_columns(
            pl.Series(
                "directory", [os.path.dirname(p) or "." for p in table["path"].to_list()], dtype=pl.String
            )
        )
        .group_by("directory")
        .agg(pl.len().cast(pl.Int64).alias("files"), *(pl.col(c).sum() for c in sums))
        .sort("time_s", "directory", descending=[True, False])
    )
    return grouped


def file_sizes(job: Job) -> pl.DataFrame | None:
    """How large the transfers are: calls, bytes and time per power of two."""
    parts = _file_parts(job)
    if parts is None:
        return None
    table: pl.DataFrame = (
        parts.filter(pl.col("kind").is_in([IO_READ, IO_WRITE]))
        .with_columns(
            pl.when(pl.col("kind") == IO_READ).then(pl.lit("read")).otherwise(pl.lit("write")).alias("op"),
            pl.when(pl.col("bin") == 0)
            .then(0)
            .otherwise(2 ** (pl.col("bin").cast(pl.Int64) - 1))
            .alias("from_bytes"),
        )
        .group_by("op", "from_bytes")
        .agg(
            pl.col("n").sum().cast(pl.Int64).alias("calls"),
            pl.col("bytes").sum(),
            (pl.col("us").sum() / 1e6).alias("time_s"),
        )
        .sort("op", "from_bytes")
    )
    return table


def io_over_time(job: Job, width_s: float | None = None) -> pl.DataFrame | None:
    """Bytes and calls per time interval (at least 0.131 s wide), from the start of the trace."""
    parts = [p.io_time for p in job.partials if p.io_time is not None]
    if not parts:
        return None
    base = job.first_us >> BIN_US_SHIFT
    step_s = (1 << BIN_US_SHIFT) / 1e6
    merge = max(1, round(width_s / step_s)) if width_s else 1
    read, write = pl.col("kind") == IO_READ, pl.col("kind") == IO_WRITE
    table: pl.DataFrame = (
        pl.concat(parts)
        .with_columns(((pl.col("t") - base) // merge).alias("slot"))
        .group_by("slot")
        .agg(
            pl.col("bytes").filter(read).sum().alias("read_bytes"),
            pl.col("bytes").filter(write).sum().alias("write_bytes"),
            pl.col("n").sum().cast(pl.Int64).alias("ops"),
            (pl.col("us").sum() / 1e6).alias("time_s"),
        )
        .sort("slot")
        .with_columns(
            (pl.col("slot") * merge * step_s).alias("start_s"), pl.lit(merge * step_s).alias("width_s")
        )
    )
    return table


def steps(job: Job) -> pl.DataFrame:
    """One row per rank and step with its stages in seconds."""
    rows = [
        {**{k: v for k, v in row.items() if k != "stages"}, **row["stages"]}
        for r in job.ranks
        for row in step_rows(r)
    ]
    kinds = {
        "rank": pl.Int64,
        "index": pl.Int64,
        "step": pl.Int64,
        "epoch": pl.Int64,
        "start_s": pl.Float64,
        "wall_s": pl.Float64,
    }
    frame: pl.DataFrame = pl.DataFrame(rows, schema={**kinds, **dict.fromkeys(STAGES, pl.Float64)})
    return frame


def epochs(job: Job) -> pl.DataFrame:
    """Per rank and epoch: steps, wall time, stages."""
    frame: pl.DataFrame = (
        steps(job)
        .group_by("rank", "epoch")
        .agg(
            pl.len().cast(pl.Int64).alias("steps"), pl.col("wall_s").sum(), *(pl.col(s).sum() for s in STAGES)
        )
        .sort("rank", "epoch")
    )
    return frame


def ranks(job: Job) -> pl.DataFrame:
    """Per rank: steps, wall time, stages, workers."""
    rows = [
        {
            "rank": r.number,
            "pid": r.main.process.pid,
            "host": r.main.process.host,
            "steps": len(r.main.steps),
            "wall_s": float(r.wall_us.sum()) / 1e6,
            "median_step_s": r.main.steps.usual_us / 1e6 if len(r.main.steps) else None,
            "workers": len(r.workers),
            **{s: float(v) / 1e6 for s, v in zip(STAGES, r.main.account.sum(axis=0), strict=True)},
        }
        for r in job.ranks
    ]
    frame: pl.DataFrame = pl.DataFrame(rows)
    return frame


def workers(job: Job) -> pl.DataFrame:
    """Per loader worker: its rank, how busy it was, its stages, its items."""
    rows = []
    for r in job.ranks:
        for w in r.workers:
            items = w.lane["item_us"]
            rows.append(
                {
                    "rank": r.number,
                    "worker": w.number,
                    "pid": w.partial.process.pid,
                    "tid": w.lane["tid"],
                    "kind": "thread" if w.thread else "process",
                    "busy_s": w.lane["busy_us"] / 1e6,
                    "life_s": w.life_us / 1e6,
                    "busy_share": min(1.0, w.lane["busy_us"] / w.life_us),
                    **{
                        f"{k}_s": w.lane["stages"].get(k, 0) / 1e6
                        for k in ("read", "preprocess", "collate", "other")
                    },
                    "items": int(items.size),
                    **{f"item_p{q}_us": _nearest(items, q) for q in (50, 90, 99)},
                    "item_max_us": int(items[-1]) if items.size else None,
                }
            )
    frame: pl.DataFrame = pl.DataFrame(rows, infer_schema_length=None)
    return frame


def _nearest(ordered: np.ndarray, percent: int) -> int | None:
    if ordered.size == 0:
        return None
    return int(ordered[max(0, -(-percent * ordered.size // 100) - 1)])


def threads(job: Job) -> pl.DataFrame:
    """Per process and thread: events, first and last time, busy time by stage."""
    base = job.first_us
    rows = [
        {
            "rank": p.process.rank,
            "pid": p.process.pid,
            "tid": lane["tid"],
            "name": lane["name"],
            "events": lane["events"],
            "first_s": None if lane["first_us"] is None else (lane["first_us"] - base) / 1e6,
            "last_s": None if lane["last_us"] is None else (lane["last_us"] - base) / 1e6,
            "busy_s": lane["busy_us"] / 1e6,
        }
        for p in job.partials
        for lane in p.lanes
    ]
    frame: pl.DataFrame = pl.DataFrame(rows, infer_schema_length=None)
    return frame


def concurrency(job: Job, slots: int = 200) -> pl.DataFrame:
    """How many lanes work at once over time, by role (main thread, loader worker, other)."""
    edges = np.linspace(job.first_us, max(job.last_us, job.first_us + 1), slots + 1).astype(np.int64)
    feeding = {(id(w.partial), w.lane["tid"]) for r in job.ranks for w in r.workers}
    mains = {(id(r.main), r.main.steps.tid) for r in job.ranks}
    sums = {role: np.zeros(slots) for role in ("main", "worker", "other")}
    for p in job.partials:
        for lane in p.lanes:
            key = (id(p), lane["tid"])
            role = "main" if key in mains else "worker" if key in feeding else "other"
            sums[role] += _resample(lane["profile"], edges)
    width = np.diff(edges)
    frame: pl.DataFrame = pl.DataFrame(
        {"start_s": (edges[:-1] - job.first_us) / 1e6, **{role: v / width for role, v in sums.items()}}
    )
    return frame


def _resample(profile: tuple[np.ndarray, np.ndarray], edges: np.ndarray) -> np.ndarray:
    """Busy microseconds between `edges` from a lane's own profile (times, busy time up to them)."""
    times, busy = profile
    if times.size < 2:
        return np.zeros(edges.size - 1)
    return np.diff(np.interp(edges, times, busy))


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
