"""Findings about feeding the model: the loader, its workers, single items."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dftracer.analyze.finding import Context, Finding, input_seconds, sureness
from dftracer.analyze.job import Rank

__all__ = ["rules"]

_INPUT = ("fetch_wait", "read", "preprocess", "collate")
_WHAT_HELPS = {
    "read": "storage is the slow part: fewer and larger reads, a faster or local copy of the data, or"
    " more workers",
    "preprocess": "preprocessing is the slow part: make it cheaper, do it once and store the result, or"
    " add workers",
    "collate": "collating is the slow part: collate in the workers, avoid copies, use larger contiguous"
    " samples",
    "idle": "the workers are idle while the loop waits: raise prefetch_factor, use persistent_workers,"
    " look at the"
    " transfer between processes (large tensors, pickling)",
    "fetch_wait": "annotate the dataset (ai.data.item, ai.data.preprocess) or trace its workers to see"
    " which stage it is",
}


def input_bound(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    per_step = sum(rank.stage_us(s) for s in _INPUT)
    seconds = float(np.sum(per_step)) / 1e6
    wall = float(rank.wall_us.sum()) / 1e6
    if wall <= 0 or seconds / wall < 0.05:
        return
    stages = input_seconds(rank)
    worst = max(stages, key=lambda s: stages[s]) if stages else "fetch_wait"
    files: dict[str, int] = {}
    for e in rank.explanations.values():
        for path, us in e.files_us:
            files[path] = files.get(path, 0) + us
    top = sorted(files.items(), key=lambda kv: (-kv[1], kv[0]))[:5]
    share = 100 * seconds / wall
    yield c.finding(
        "input_bound",
        f"The training is input-bound: {share:.0f} % of rank {rank.number}'s step time waits for data"
        f" (mostly {worst.replace('_', ' ')}).",
        seconds,
        sureness(len(rank.main.steps)),
        evidence={
            "rank": rank.number,
            "steps": len(rank.main.steps),
            "share_of_step_time": round(seconds / wall, 4),
            "max_speedup": round(wall / max(wall - seconds, 1e-9), 3),
            "stage": worst,
            "stages_s": {k: round(v, 6) for k, v in sorted(stages.items(), key=lambda kv: -kv[1])},
            **({"files_while_waiting_s": {p: round(us / 1e6, 6) for p, us in top}} if top else {}),
            "steps_that_waited": int((per_step > 0.05 * rank.wall_us).sum()),
        },
        advice=f"At most {seconds:.2f} s can be gained here;"
        f" {_WHAT_HELPS.get(worst, _WHAT_HELPS['fetch_wait'])}.",
    )


def too_few_workers(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None or len(rank.main.steps) < 3:
        return
    wall = float(rank.wall_us.sum())
    wait = float(rank.stage_us("fetch_wait").sum())
    own = float(sum(rank.stage_us(s).sum() for s in ("read", "preprocess", "collate")))
    processes = [w for w in rank.workers if not w.thread]
    workers = processes or rank.workers
    if not workers:
        if own / wall >= 0.05 and own > wait:
            yield c.finding(
                "too_few_workers",
                "The main thread loads its data itself: no loader worker was seen.",
                own / 1e6,
                sureness(len(rank.main.steps)),
                evidence={"workers": 0, "loading_in_main_thread_s": round(own / 1e6, 6)},
                advice="Use loader workers (num_workers >= "
                f"{max(1, math.ceil(own / max(wall - own - wait, 1)))} by the measured times) so that"
                f" loading runs beside compute.",
            )
        return
    if wait / wall < 0.05:
        return
    steps = rank.main.steps
    span = float(steps.end[-1] - steps.start[0])
    busy = np.array([w.lane["busy_us"] for w in workers], dtype=float)
    life = np.array([min(w.life_us, span) for w in workers], dtype=float)
    share = float(min(busy.sum() / life.sum(), 1.0))
    at_once = max(1, round(float(life.sum()) / span))  # a loader may start new ones for each epoch
    needed = math.ceil(float(busy.sum()) / max(wall - wait, 1.0))
    if share < 0.7 or needed <= at_once:
        return
    yield c.finding(
        "too_few_workers",
        f"{at_once} loader workers are busy {100 * share:.0f} % of the time and cannot keep up; about"
        f" {needed} would.",
        wait / 1e6,
        sureness(len(steps)) * (0.9 if share > 0.85 else 0.7),
        evidence={
            "rank": rank.number,
            "workers": at_once,
            "busy_share": round(share, 4),
            "workers_needed": needed,
            "busy_per_step_s": round(float(busy.sum()) / len(steps) / 1e6, 6),
            "other_work_per_step_s": round((wall - wait) / len(steps) / 1e6, 6),
        },
        advice=f"Try num_workers={needed} (if the machine has the cores), or make an item cheaper to load.",
    )


def straggler_worker(c: Context) -> Iterator[Finding]:
    for rank in c.job.ranks:
        workers = [w for w in rank.workers if w.lane["items"] >= 5]
        if len(workers) < 2:
            continue
        p50 = np.array([float(np.median(w.lane["item_us"])) for w in workers])
        mean = np.array([float(np.mean(w.lane["item_us"])) for w in workers])
        i = int(np.argmax(mean))
        rest = float(np.median(np.delete(mean, i)))
        if rest <= 0 or mean[i] < 1.5 * rest:
            continue
        w = workers[i]
        chronic = bool(p50[i] >= 1.3 * float(np.median(np.delete(p50, i))))
        lost = (mean[i] - rest) * w.lane["items"] / 1e6
        wait = float(rank.stage_us("fetch_wait").sum()) / 1e6
        yield c.finding(
            "straggler_worker",
            f"Loader worker {w.number} (pid {w.partial.process.pid}) of rank {rank.number} takes"
            f" {mean[i] / rest:.1f} times as"
            f" long per item as the others ({'always' if chronic else 'now and then'}).",
            min(lost, wait) if wait > 0 else 0.0,
            sureness(w.lane["items"]),
            evidence={
                "rank": rank.number,
                "worker": w.number,
                "pid": w.partial.process.pid,
                "mean_item_s": round(float(mean[i]) / 1e6, 6),
                "others_mean_item_s": round(rest / 1e6, 6),
                "items": w.lane["items"],
                "kind": "chronic" if chronic else "one-off",
                "extra_worker_s": round(float(lost), 6),
            },
            advice="Look at where this worker runs (cores, NUMA node, other jobs) and at the samples it"
            " gets.",
        )


def slow_items(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    parts = [p.items for p in rank.members if p.items.size]
    if not parts:
        return
    items = np.sort(np.concatenate(parts))
    if items.size < 100:
        return
    p50, p99 = (int(items[math.ceil(q * items.size) - 1]) for q in (0.5, 0.99))
    if p99 < 5 * max(p50, 1):
        return
    tail = items[items > 5 * max(p50, 1)]
    lost = float((tail - p50).sum()) / 1e6 / max(1, len(rank.workers))
    wait = float(rank.stage_us("fetch_wait").sum()) / 1e6
    seconds = min(lost, wait) if rank.workers else lost
    if c.percent(seconds) < 1:
        return
    yield c.finding(
        "slow_items",
        f"A few items are slow and hold up whole batches: p99 is {p99 / max(p50, 1):.0f} times the median"
        f" item.",
        seconds,
        sureness(int(items.size)) * 0.8,
        evidence={
            "items": int(items.size),
            "p50_s": p50 / 1e6,
            "p99_s": p99 / 1e6,
            "max_s": int(items[-1]) / 1e6,
            "slow_items": int(tail.size),
        },
        advice="Find what sets these samples apart (size, format, location); a larger prefetch_factor"
        " hides single slow ones.",
    )


def first_step(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None or len(rank.main.steps) < 5:
        return
    wall = rank.wall_us.astype(float)
    rest = float(np.median(wall[1:]))
    extra = float(wall[0]) - rest
    if rest <= 0 or wall[0] < 3 * rest or c.percent(extra / 1e6) < 1:
        return
    stage = _grown(rank, np.array([0]), np.arange(1, len(wall)))
    yield c.finding(
        "first_step",
        f"The first step takes {wall[0] / rest:.0f} times as long as a usual one (mostly"
        f" {stage.replace('_', ' ')}).",
        extra / 1e6,
        0.9,
        evidence={"first_s": wall[0] / 1e6, "median_s": rest / 1e6, "stage": stage},
        advice="Start-up (workers, caches, compilation) is paid once; it matters in short runs and short"
        " epochs.",
    )


def _grown(rank: Rank, some: np.ndarray, others: np.ndarray) -> str:
    from dftracer.analyze.stages import STAGES  # noqa: PLC0415

    a = rank.main.account
    diff = a[some].mean(axis=0) - a[others].mean(axis=0)
    return STAGES[int(np.argmax(diff))]


def rules(c: Context) -> Iterator[Finding]:
    for rule in (input_bound, too_few_workers, straggler_worker, slow_items, first_step):
        yield from rule(c)
