"""Findings about storage: the size and number of calls, files read again, files that are slow."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dftracer.analyze.finding import Context, Finding, sureness
from dftracer.analyze.views import SMALL_READ

__all__ = ["rules"]


def _processes_with_io(c: Context) -> int:
    return max(1, sum(1 for p in c.job.partials if p.files is not None))


def small_reads(c: Context) -> Iterator[Finding]:
    if c.files is None:
        return
    f = c.files
    n, small = int(f["reads"].sum()), int(f["small_reads"].sum())
    time, small_time = float(f["read_s"].sum()), float(f["small_read_s"].sum())
    if small < 100 or small < 0.5 * n or time <= 0:
        return
    per_process = c.at_stake(small_time / _processes_with_io(c))
    if c.percent(per_process) < 0.5:
        return
    yield c.finding(
        "small_reads",
        f"{100 * small / n:.0f} % of {n} reads are smaller than {SMALL_READ >> 10} KiB and take"
        f" {small_time:.2f} s in all.",
        per_process,
        sureness(small),
        evidence={
            "reads": n,
            "small_reads": small,
            "small_read_s": round(small_time, 6),
            "read_s": round(time, 6),
            "small_bytes": int(f["small_bytes"].sum()),
            "mean_small_bytes": round(int(f["small_bytes"].sum()) / small, 1),
        },
        advice="Read in larger pieces: buffer, memory-map, or pack samples into larger files (tar shards,"
        " HDF5 chunks, Parquet).",
    )


def many_opens(c: Context) -> Iterator[Finding]:
    if c.files is None:
        return
    f = c.files
    opens, reads = int(f["opens"].sum()), int(f["reads"].sum())
    meta, time = float(f["meta_s"].sum()), float(f["time_s"].sum())
    items = sum(int(p.items.size) for p in c.job.partials)
    per_item = opens / items if items else None
    per_process = c.at_stake(meta / _processes_with_io(c))
    if opens < 100 or time <= 0 or meta < 0.2 * time or c.percent(per_process) < 0.5:
        return
    yield c.finding(
        "many_opens",
        f"{opens} opens and other metadata calls take {100 * meta / time:.0f} % of the I/O time"
        + (f" ({per_item:.1f} opens per item)." if per_item is not None else "."),
        per_process,
        sureness(opens),
        evidence={
            "opens": opens,
            "reads": reads,
            "metadata_s": round(meta, 6),
            "io_s": round(time, 6),
            "opens_per_item": None if per_item is None else round(per_item, 3),
        },
        advice="Keep files open, or put many samples into one file; on parallel file systems an open"
        " costs a server round trip.",
    )


def rereads(c: Context) -> Iterator[Finding]:
    if c.files is None or c.rank is None:
        return
    epochs = max(1, len({e for r in c.job.ranks for e in r.main.steps.epoch.tolist()}))
    again = c.files.filter((pl.col("opens") >= 2 * epochs) & (pl.col("read_bytes") > 0))
    if again.height == 0:
        return
    wasted = float((again["read_s"] * (1 - epochs / again["opens"])).sum())
    per_process = c.at_stake(wasted / _processes_with_io(c))
    if c.percent(per_process) < 1:
        return
    shared = again.filter(pl.col("ranks") == len(c.job.ranks)).height if len(c.job.ranks) > 1 else 0
    top = again.sort("read_s", descending=True).head(5)
    yield c.finding(
        "rereads",
        f"{again.height} files are read again and again (up to {int(again['opens'].max())} opens in"
        f" {epochs} epochs).",
        per_process,
        0.7,
        evidence={
            "files": again.height,
            "epochs": epochs,
            "read_again_s": round(wasted, 6),
            "read_by_every_rank": shared,
            "top": [
                {
                    "path": r["path"],
                    "opens": r["opens"],
                    "read_bytes": r["read_bytes"],
                    "read_s": round(r["read_s"], 6),
                }
                for r in top.iter_rows(named=True)
            ],
        },
        advice="Cache what is read more than once per epoch (in memory or on local disk), or let one rank"
        " read and share.",
    )


def slow_file(c: Context) -> Iterator[Finding]:
    if c.files is None:
        return
    read = c.files.filter((pl.col("read_bytes") > 0) & (pl.col("reads") > 0))
    if read.height < 4:
        return
    # Per call as well as per byte: short files have a bad rate without being slow.
    rated = read.with_columns(
        (pl.col("read_s") / pl.col("read_bytes")).alias("per_byte"),
        (pl.col("read_s") / pl.col("reads")).alias("per_read"),
    )
    byte, call = float(rated["per_byte"].median()), float(rated["per_read"].median())
    slow = rated.filter((pl.col("per_byte") > 4 * byte) & (pl.col("per_read") > 4 * call)).sort(
        "read_s", descending=True
    )
    if slow.height == 0 or slow.height > 0.25 * read.height:
        return
    first = slow.row(0, named=True)
    lost = float((slow["read_s"] - slow["reads"] * call).sum())
    per_process = c.at_stake(lost / _processes_with_io(c))
    if c.percent(per_process) < 0.5:
        return
    factor = first["per_byte"] / byte if byte > 0 else 0.0
    yield c.finding(
        "slow_file",
        f"{slow.height} of {read.height} files are slow to read, first of all {first['path']}"
        f" ({factor:.0f} times the usual"
        " time per byte).",
        per_process,
        sureness(int(first["reads"])),
        evidence={
            "path": first["path"],
            "read_s": round(first["read_s"], 6),
            "reads": first["reads"],
            "read_bytes": first["read_bytes"],
            "times_slower_per_byte": round(factor, 2),
            "extra_s": round(lost, 6),
            "files": [r["path"] for r in slow.head(10).iter_rows(named=True)],
        },
        advice="Look at where this file lies (another disk or server, stripes, compression) and who else"
        " reads it.",
    )


def rules(c: Context) -> Iterator[Finding]:
    for rule in (small_reads, many_opens, rereads, slow_file):
        yield from rule(c)
