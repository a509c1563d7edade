"""Findings about feeding the model: the loader, its workers and items, the files they read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from dftracer._text import plural
from dftracer.analyze.frames import opens_by_rank
from dftracer.analyze.ledger import unseen_stages
from dftracer.analyze.machine import hosts_of
from dftracer.analyze.rules.bound import input_seconds
from dftracer.analyze.rules.finding import Finding, JudgingContext, confidence
from dftracer.analyze.say.catalog import advise, case_of, input_kind
from dftracer.analyze.say.wording import input_words, short
from dftracer.analyze.stages import INPUT_STAGES
from dftracer.analyze.thresholds import (
    FEW_STEPS,
    FINDING_SHARE,
    MAJORITY,
    MANY_OPENS,
    MENTION_SHARE,
    OPENS_SHARE,
    REREAD_FACTOR,
    SLOW_FILE_FACTOR,
    SLOW_FILE_MAX,
    SLOW_ITEM_FACTOR,
    SMALL_READ,
    SMALL_READS,
    WORKER_FACTOR,
    WORKERS_BUSY,
)

_CHRONIC_FACTOR = 1.3  # a worker whose median item is this much slower is always slow, not just occasionally
_FEW_ITEMS = 5


def input_bound(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None or run.share(run.input_s) < MENTION_SHARE:
        return
    rank = run.rank
    steady = rank.main.steps.steady
    per_step = np.sum([rank.stage_us(s) for s in INPUT_STAGES], axis=0)[steady]
    stages = input_seconds(rank)
    files: dict[str, int] = {}
    for e in rank.explanations.values():
        for path, us in e.files_us:
            files[path] = files.get(path, 0) + us
    top = sorted(files.items(), key=lambda kv: (-kv[1], kv[0]))[:5]
    share = run.share(run.input_s)
    worst = max(stages, key=lambda s: (stages[s], s)) if stages else "unseen"
    advice = advise(input_kind(stages), case_of(c.job, rank))
    of = f"rank {rank.number}'s" if len(c.job.ranks) > 1 else "the"
    apart = run.share(run.input_of_restarts_s) >= FINDING_SHARE
    besides = ", besides the first steps of epochs" if apart else ""
    yield c.finding(
        "input_bound",
        f"{100 * share:.0f} % of {of} steady time is spent waiting for data{input_words(stages)}{besides}.",
        run.input_s,
        confidence(int(steady.sum())),
        evidence={
            "rank": rank.number,
            "steps": int(steady.sum()),
            "share_of_step_time": round(share, 4),
            "max_speedup": round(run.whole_s / max(run.whole_s - run.input_s, 1e-9), 3),
            "stage": worst,
            "stages_s": {k: round(s, 6) for k, s in sorted(stages.items(), key=lambda kv: -kv[1])},
            **({"files_while_waiting_s": {p: round(us / 1e6, 6) for p, us in top}} if top else {}),
            "steps_that_waited": int((per_step > 0.05 * rank.wall_us[steady]).sum()),
        },
        advice=f"At most {short(run.input_s)} can be gained here. {advice}",
    )


def too_few_workers(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None or len(run.rank.main.steps) < FEW_STEPS:
        return
    rank, steps = run.rank, run.rank.main.steps
    n = int(steps.steady.sum())
    wait = run.stages_s["fetch_wait"]
    own = min(run.input_s, run.rank.account.seconds["input"] - wait)
    wait = min(wait, run.input_s)
    case = case_of(c.job, rank)
    if case.short_items or input_kind(input_seconds(rank)) == "input.sampler":
        return  # other workers would not help
    processes = [w for w in rank.workers if not w.thread]
    workers = processes or rank.workers
    if not workers:
        if run.share(own) >= MENTION_SHARE and own > wait:
            needed = max(1, math.ceil(own / max(run.whole_s - own - wait, 1e-6)))
            has_loader = "fetch_wait" not in unseen_stages(rank)
            use = "Use loader workers" if has_loader else "Load the data with a DataLoader that has workers"
            enough = f"num_workers >= {min(needed, 64)} by the measured times"
            cpus = _cpus(c)
            if cpus is not None:
                enough += f"; the machine has {plural(cpus, 'core')}"
            yield c.finding(
                "too_few_workers",
                "The main thread loads its data itself: no loader workers were found.",
                own,
                confidence(n),
                evidence={"workers": 0, "loading_in_main_thread_s": round(own, 6)},
                advice=f"{use} ({enough}) so that loading overlaps with compute.",
            )
        return
    if run.share(wait) < MENTION_SHARE:
        return
    span = float(steps.end[-1] - steps.start[0])
    busy = np.array([w.lane["busy_us"] for w in workers], dtype=float)
    life = np.array([min(w.life_us, span) for w in workers], dtype=float)
    share = float(min(busy.sum() / life.sum(), 1.0))
    at_once = max(1, round(float(life.sum()) / span))  # a loader may start new ones for each epoch
    per_step = float(busy.sum()) / 1e6 / len(steps)
    other = (run.whole_s - wait) / max(run.rank.account.steps, 1)
    needed = math.ceil(per_step / max(other, 1e-6) - 1e-3)
    if share < WORKERS_BUSY or needed <= at_once:
        return
    verb = "is" if at_once == 1 else "are"
    cpus = _cpus(c)
    has = "" if cpus is None else f" (it has {cpus})"
    yield c.finding(
        "too_few_workers",
        f"{plural(at_once, 'loader worker')} {verb} busy {100 * share:.0f} % of the time and cannot keep up;"
        f" about {needed} would.",
        wait,
        confidence(n) * (0.9 if share > 0.85 else 0.7),
        evidence={
            "rank": rank.number,
            "workers": at_once,
            "busy_share": round(share, 4),
            "workers_needed": needed,
            "busy_per_step_s": round(per_step, 6),
            "other_work_per_step_s": round(other, 6),
        },
        advice=f"Use num_workers={needed} if the machine has the cores{has}, or make an item cheaper to load.",
    )


def _cpus(c: JudgingContext) -> int | None:
    """How many cores the machine has."""
    host = None if c.rank is None else hosts_of(c.job).get(c.rank.main.process.host)
    return None if host is None else host.cpus


def straggler_worker(c: JudgingContext) -> Iterator[Finding]:
    for rank in c.job.ranks:
        workers = [w for w in rank.workers if w.lane["items"] >= _FEW_ITEMS]
        if len(workers) < 2:
            continue
        p50 = np.array([float(np.median(w.lane["item_us"])) for w in workers])
        mean = np.array([float(np.mean(w.lane["item_us"])) for w in workers])
        usual = float(np.median(np.sort(mean)[: (len(workers) + 1) // 2]))
        slow = (mean >= WORKER_FACTOR * max(usual, 1.0)) & (mean - usual >= MAJORITY * (mean.max() - usual))
        if not slow.any() or slow.sum() > MAJORITY * len(workers):
            continue
        i = int(np.argmax(mean))
        w = workers[i]
        chronic = bool(p50[i] >= _CHRONIC_FACTOR * float(np.median(p50[~slow])))
        items = np.array([w.lane["items"] for w in workers])
        lost = float(((mean - usual) * items)[slow].sum()) / 1e6
        wait = float(rank.stage_us("fetch_wait")[rank.main.steps.steady].sum()) / 1e6
        times = f"{mean[i] / max(usual, 1.0):.1f} times as long per item as the others"
        who = (
            f"Loader worker {w.number} (pid {w.partial.process.pid}) of rank {rank.number} takes {times}"
            if slow.sum() == 1
            else f"{slow.sum()} of {len(workers)} loader workers of rank {rank.number} are slow; worker"
            f" {w.number} (pid {w.partial.process.pid}) takes {times}"
        )
        yield c.finding(
            "straggler_worker",
            f"{who}, {'always' if chronic else 'occasionally'}: {short(mean[i] / 1e6)}, the others"
            f" {short(usual / 1e6)}.",
            min(lost, wait),
            confidence(int(items[slow].min())),
            evidence={
                "rank": rank.number,
                "worker": w.number,
                "pid": w.partial.process.pid,
                "workers": [workers[k].number for k in np.flatnonzero(slow).tolist()],
                "mean_item_s": round(float(mean[i]) / 1e6, 6),
                "others_mean_item_s": round(usual / 1e6, 6),
                "items": w.lane["items"],
                "kind": "chronic" if chronic else "one-off",
                "extra_worker_s": round(lost, 6),
            },
        )


def slow_items(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    parts = [p.items for p in run.rank.members if p.items.size]
    if not parts:
        return
    items = np.sort(np.concatenate(parts))
    if items.size < 100:
        return
    p50, p99 = (int(items[math.ceil(q * items.size) - 1]) for q in (0.5, 0.99))
    # Slower than what one in twenty takes anyway: if there were more, they would be a different kind of item.
    p95 = int(items[math.ceil(0.95 * items.size) - 1])
    tail = items[items > max(SLOW_ITEM_FACTOR * max(p50, 1), 2 * p95)]
    if tail.size == 0:
        return
    lost = float((tail - p50).sum()) / 1e6
    seconds = min(lost, run.input_s)
    yield c.finding(
        "slow_items",
        f"{tail.size} of {items.size} items {'is' if tail.size == 1 else 'are'} slow and hold"
        f"{'s' if tail.size == 1 else ''} up whole batches: {short(float(np.median(tail)) / 1e6)}, the median"
        f" item {short(p50 / 1e6)}.",
        seconds,
        confidence(int(items.size)) * (0.8 if tail.size >= 3 else 0.5),
        evidence={
            "items": int(items.size),
            "p50_s": p50 / 1e6,
            "p99_s": p99 / 1e6,
            "max_s": int(items[-1]) / 1e6,
            "slow_items": int(tail.size),
        },
    )


def _processes_with_io(c: JudgingContext) -> int:
    return max(1, sum(1 for p in c.job.partials if p.files is not None))


def small_reads(c: JudgingContext) -> Iterator[Finding]:
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


def many_opens(c: JudgingContext) -> Iterator[Finding]:
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


def rereads(c: JudgingContext) -> Iterator[Finding]:
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


def slow_file(c: JudgingContext) -> Iterator[Finding]:
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
    if slow.height == 0 or slow.height > SLOW_FILE_MAX * read.height:
        return
    first = slow.row(0, named=True)
    lost = float(((slow["read_s"] - slow["reads"] * call) / slow["ranks"].clip(1)).sum())
    factor = first["per_byte"] / byte if byte > 0 else 0.0
    yield c.finding(
        "slow_file",
        f"{slow.height} of {read.height} files {'is' if slow.height == 1 else 'are'} slow to read,"
        f"{' above all' if slow.height > 1 else ''} {first['path']}: {short(first['per_read'])} per read,"
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


RULES = (
    input_bound,
    too_few_workers,
    straggler_worker,
    slow_items,
    small_reads,
    many_opens,
    rereads,
    slow_file,
)
