"""Findings about storage: the size and number of calls, files read repeatedly, slow files."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dftracer._text import plural
from dftracer.analyze.finding import Context, Finding, confidence
from dftracer.analyze.thresholds import (
    MANY_OPENS,
    OPENS_SHARE,
    REREAD_FACTOR,
    SLOW_FILE_FACTOR,
    SLOW_FILE_MOST,
    SMALL_READ,
    SMALL_READS,
)
from dftracer.analyze.views import opens_by_rank
from dftracer.analyze.wording import short

__all__ = ["RULES"]


def _processes_with_io(c: Context) -> int:
    return max(1, sum(1 for p in c.job.partials if p.files is not None))


def small_reads(c: Context) -> Iterator[Finding]:
    if c.files is None:
        return
    f = c.files
    n, small = int(f["reads"].sum()), int(f["small_reads"].sum())
    time, small_time = float(f["read_s"].sum()), float(f["small_read_s"].sum())
    if small < SMALL_READS or small < 0.5 * n or time <= 0:
        return
    yield c.finding(
        "small_reads",
        f"{100 * small / n:.0f} % of {n} reads are smaller than {SMALL_READ >> 10} KiB and take"
        f" {short(small_time)} in all.",
        c.at_stake(small_time / _processes_with_io(c)),
        confidence(small),
        evidence={
            "reads": n,
            "small_reads": small,
            "small_read_s": round(small_time, 6),
            "read_s": round(time, 6),
            "small_bytes": int(f["small_bytes"].sum()),
            "mean_small_bytes": round(int(f["small_bytes"].sum()) / small, 1),
        },
    )


def many_opens(c: Context) -> Iterator[Finding]:
    if c.files is None:
        return
    f = c.files
    opens, reads = int((f["opens"] - f["opens_to_write"]).sum()), int(f["reads"].sum())
    meta, time = float((f["meta_s"] - f["open_to_write_s"]).sum()), float(f["time_s"].sum())
    if opens < MANY_OPENS or time <= 0 or meta < OPENS_SHARE * time:
        return
    items = sum(int(p.items.size) for p in c.job.partials)
    per_item = opens / items if items else None
    yield c.finding(
        "many_opens",
        f"{opens} opens and other metadata calls take {100 * meta / time:.0f} % of the I/O time"
        + (f" ({per_item:.1f} opens per item)." if per_item is not None else "."),
        c.at_stake(meta / _processes_with_io(c)),
        confidence(opens),
        evidence={
            "opens": opens,
            "reads": reads,
            "metadata_s": round(meta, 6),
            "io_s": round(time, 6),
            "opens_per_item": None if per_item is None else round(per_item, 3),
        },
    )


def rereads(c: Context) -> Iterator[Finding]:
    """Training reads a file once per epoch and rank; anything more is reading it again."""
    if c.files is None or c.rank is None:
        return
    epochs = c.rank.main.steps.epochs
    opened = opens_by_rank(c.job)
    if epochs == 0 or opened is None:
        return
    again = (
        c.files.join(opened, on="path")
        .filter((pl.col("opens_by_one") >= REREAD_FACTOR * epochs) & (pl.col("read_bytes") > 0))
        .sort("read_s", "path", descending=[True, False])
    )
    if again.height == 0:
        return
    wasted = float((again["read_s"] * (1 - epochs / again["opens_by_one"])).sum())
    most = int(again["opens_by_one"].max())
    shared = again.filter(pl.col("ranks") == len(c.job.ranks)).height if len(c.job.ranks) > 1 else 0
    yield c.finding(
        "rereads",
        f"{plural(again.height, 'file is', 'files are')} read several times per epoch (up to"
        f" {plural(most, 'open')} in {plural(epochs, 'epoch')}).",
        c.at_stake(wasted / _processes_with_io(c)),
        0.7,
        evidence={
            "files": again.height,
            "epochs": epochs,
            "opens_per_epoch": round(most / epochs, 3),
            "read_again_s": round(wasted, 6),
            "read_by_every_rank": shared,
            "top": [
                {
                    "path": r["path"],
                    "opens": r["opens"],
                    "read_bytes": r["read_bytes"],
                    "read_s": round(r["read_s"], 6),
                }
                for r in again.head(5).iter_rows(named=True)
            ],
        },
    )


def slow_file(c: Context) -> Iterator[Finding]:
    if c.files is None:
        return
    read = c.files.filter((pl.col("read_bytes") > 0) & (pl.col("reads") > 0))
    if read.height < 4:
        return
    # Per call as well as per byte: small files have a low rate without being slow.
    rated = read.with_columns(
        (pl.col("read_s") / pl.col("read_bytes")).alias("per_byte"),
        (pl.col("read_s") / pl.col("reads")).alias("per_read"),
    )
    byte, call = float(rated["per_byte"].median()), float(rated["per_read"].median())
    slow = rated.filter(
        (pl.col("per_byte") > SLOW_FILE_FACTOR * byte) & (pl.col("per_read") > SLOW_FILE_FACTOR * call)
    ).sort("read_s", "path", descending=[True, False])
    if slow.height == 0 or slow.height > SLOW_FILE_MOST * read.height:
        return
    first = slow.row(0, named=True)
    lost = float(((slow["read_s"] - slow["reads"] * call) / slow["ranks"].clip(1)).sum())
    factor = first["per_byte"] / byte if byte > 0 else 0.0
    yield c.finding(
        "slow_file",
        f"{slow.height} of {read.height} files {'is' if slow.height == 1 else 'are'} slow to read,"
        f"{' first of all' if slow.height > 1 else ''} {first['path']}: {short(first['per_read'])} per read,"
        f" the median file {short(call)}.",
        c.at_stake(lost),
        confidence(int(first["reads"])),
        evidence={
            "path": first["path"],
            "read_s": round(first["read_s"], 6),
            "reads": first["reads"],
            "read_bytes": first["read_bytes"],
            "times_slower_per_byte": round(factor, 2),
            "extra_s": round(lost, 6),
            "files": [r["path"] for r in slow.head(10).iter_rows(named=True)],
        },
    )


RULES = (small_reads, many_opens, rereads, slow_file)
