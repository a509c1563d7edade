"""Findings about the run as a whole: ranks, communication, checkpoints, change over time, the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from dftracer.analyze.finding import Context, Finding, sureness
from dftracer.analyze.intervals import difference, intersection, total, union
from dftracer.analyze.job import Rank
from dftracer.analyze.stages import STAGE_INDEX, STAGES
from dftracer.load.chunk import MISSING

__all__ = ["rules"]


def exposed_comm(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    exposed = float(rank.stage_us("comm").sum()) / 1e6
    wall = float(rank.wall_us.sum()) / 1e6
    if wall <= 0 or exposed / wall < 0.05:
        return
    everything = total(rank.main.comm) / 1e6
    waiting = _waiting_for_peers(c, rank)
    ranks = {str(r.number): round(float(r.stage_us("comm").sum()) / 1e6, 6) for r in c.job.ranks}
    yield c.finding(
        "exposed_comm",
        f"{100 * exposed / wall:.0f} % of rank {rank.number}'s step time is communication that nothing"
        f" hides.",
        exposed,
        sureness(len(rank.main.steps)),
        evidence={
            "rank": rank.number,
            "exposed_s": round(exposed, 6),
            "communication_s": round(everything, 6),
            "hidden_s": round(max(0.0, everything - exposed), 6),
            "waiting_for_peers_s": waiting,
            "exposed_by_rank_s": ranks,
        },
        advice="Overlap it with the backward pass (bucketed all-reduce, no_sync while accumulating), send"
        " less (fp16/bf16, larger"
        " local batches); if one rank comes late, the others' communication is waiting for it.",
    )


def _waiting_for_peers(c: Context, rank: Rank) -> float | None:
    """The communication beyond that of the rank which came last to each step; None with a single rank."""
    ranks = [r for r in c.job.ranks if len(r.main.steps)]
    if len(ranks) < 2:
        return None
    n = min(len(r.main.steps) for r in ranks)
    least = np.min(np.stack([r.stage_us("comm")[:n] for r in ranks]), axis=0)
    return round(float((rank.stage_us("comm")[:n] - least).sum()) / 1e6, 6)


def checkpoint_stall(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    inside = rank.stage_us("checkpoint")
    outside = int(rank.main.outside[STAGE_INDEX["checkpoint"]])
    seconds = float(inside.sum() + outside) / 1e6
    if seconds <= 0:
        return
    longest = float(inside.max()) / 1e6 if inside.size else 0.0
    usual = float(np.median(rank.wall_us)) / 1e6
    if c.percent(seconds) < 2 and longest < 5 * usual:
        return
    yield c.finding(
        "checkpoint_stall",
        f"The training stands still for {seconds:.2f} s to write or read checkpoints.",
        seconds,
        0.9,
        evidence={
            "rank": rank.number,
            "in_steps_s": round(float(inside.sum()) / 1e6, 6),
            "between_steps_s": round(outside / 1e6, 6),
            "steps_with_checkpoint": int((inside > 0).sum()),
            "longest_in_a_step_s": round(longest, 6),
            "median_step_s": round(usual, 6),
        },
        advice="Copy the state and write it in the background (torch.distributed.checkpoint.async_save),"
        " write less often, or"
        " to faster storage.",
    )


def straggler_rank(c: Context) -> Iterator[Finding]:
    ranks = [r for r in c.job.ranks if len(r.main.steps) >= 3]
    if len(ranks) < 2:
        return
    n = min(len(r.main.steps) for r in ranks)
    # Time in communication is mostly waiting for the last to come: what is left is the rank's own work.
    work = np.stack([(r.wall_us - r.stage_us("comm"))[:n] for r in ranks]).astype(float)
    typical = np.median(work, axis=0)
    if len(ranks) == 2:
        typical = work.min(axis=0)
    excess = work - typical
    per_rank = np.maximum(excess, 0).sum(axis=1)
    i = int(np.argmax(per_rank))
    slow = (np.argmax(work, axis=0) == i) & (excess[i] > 0.05 * np.maximum(typical, 1))
    if not slow.any():
        return
    lost = float(excess[i][slow].sum()) / 1e6
    share = float(slow.mean())
    if c.percent(lost) < 2:
        return
    chronic = share >= 0.5
    # Which stage makes the difference, in the steps at fault.
    accounts = np.stack([r.main.account[:n] for r in ranks]).astype(float)
    others = np.median(np.delete(accounts, i, axis=0), axis=0)
    diff = (accounts[i] - others)[slow].mean(axis=0)
    diff[STAGE_INDEX["comm"]] = -np.inf
    stage = STAGES[int(np.argmax(diff))]
    since = int(np.flatnonzero(slow)[0])
    yield c.finding(
        "straggler_rank",
        f"Rank {ranks[i].number} is the straggler in {100 * share:.0f} % of the steps"
        f" ({stage.replace('_', ' ')}), {'chronically' if chronic else 'now and then'}.",
        lost,
        sureness(n) * (0.9 if chronic or slow.sum() >= 3 else 0.7),
        evidence={
            "rank": ranks[i].number,
            "stage": stage,
            "kind": "chronic" if chronic else "one-off",
            "steps_slowest": int(slow.sum()),
            "steps": n,
            "first_step_index": since,
            "mean_work_s": {
                str(r.number): round(float(w.mean()) / 1e6, 6) for r, w in zip(ranks, work, strict=True)
            },
        },
        advice={
            "fetch_wait": "Its loader is slower: compare its workers, its share of the data and its"
            " storage path.",
            "read": "Its storage is slower: compare node, mount and files with the other ranks.",
        }.get(
            stage,
            "Compare its node with the others (clocks, temperature, other processes, the size of its"
            " share of data).",
        ),
    )


def _epoch_labels(rank: Rank) -> np.ndarray:
    return rank.main.steps.epoch


def cold_first_epoch(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    epoch = _epoch_labels(rank)
    labels = [e for e in np.unique(epoch).tolist() if e != MISSING]
    if len(labels) < 2:
        return
    loading = sum(rank.stage_us(s) for s in ("fetch_wait", "read"))
    first = np.asarray(loading)[epoch == labels[0]].astype(float)
    rest = np.asarray(loading)[np.isin(epoch, labels[1:])].astype(float)
    if first.size < 3 or rest.size < 3:
        return
    a, b = float(np.median(first)), float(np.median(rest))
    extra = (a - b) * first.size / 1e6
    if a < 1.3 * b or c.percent(extra) < 1:
        return
    yield c.finding(
        "cold_first_epoch",
        f"Loading costs {a / max(b, 1):.1f} times as much per step in the first epoch as later: the data"
        f" was not cached.",
        extra,
        sureness(int(min(first.size, rest.size))),
        evidence={
            "first_epoch_median_s": round(a / 1e6, 6),
            "later_median_s": round(b / 1e6, 6),
            "epochs": len(labels),
            "steps_in_first_epoch": int(first.size),
        },
        advice="Stage the data to local storage or warm the cache before training; measure from the"
        " second epoch on.",
    )


def step_drift(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None or len(rank.main.steps) < 24:
        return
    wall = rank.wall_us.astype(float)[1:]
    quarter = wall.size // 4
    head, tail = wall[:quarter], wall[-quarter:]
    a, b = float(np.median(head)), float(np.median(tail))
    # The spread of a median: 1.2533 standard errors, the deviation taken robustly.
    spread = (
        1.2533
        * 1.4826
        * np.sqrt(sum(np.median(np.abs(x - np.median(x))) ** 2 / x.size for x in (head, tail)))
    )
    change = (b - a) / a if a > 0 else 0.0
    if abs(change) < 0.1 or abs(b - a) < 4 * spread:
        return
    steps = np.arange(wall.size)
    centred = np.cumsum(wall - wall.mean())
    turn = int(np.argmax(np.abs(centred))) + 1
    account = rank.main.account[1:].astype(float)
    diff = account[-quarter:].mean(axis=0) - account[:quarter].mean(axis=0)
    stage = STAGES[int(np.argmax(diff * np.sign(change)))]
    extra = float(np.maximum(wall - a, 0)[steps >= turn].sum()) / 1e6 if change > 0 else 0.0
    way = "slower" if change > 0 else "faster"
    yield c.finding(
        "step_drift",
        f"Steps get {way}: the last quarter's median is {100 * abs(change):.0f} %"
        f" {'above' if change > 0 else 'below'} the first"
        f" quarter's (mostly {stage.replace('_', ' ')}).",
        extra,
        sureness(wall.size),
        severity=None if change > 0 else "info",
        evidence={
            "first_quarter_median_s": round(a / 1e6, 6),
            "last_quarter_median_s": round(b / 1e6, 6),
            "change": round(change, 4),
            "change_point_step_index": turn,
            "stage": stage,
        },
        advice="Look for what grows with time: logging, fragmentation, longer sequences, a cache that"
        " fills, thermal limits."
        if change > 0
        else "A warm-up; measure after the change point.",
    )


def device_idle(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    main = rank.main
    if main.device is None:
        return
    steps = union(main.steps.start, main.steps.end)
    # Only the time in which the profiler was looking counts.
    window = (main.device[0][:1], main.device[1][-1:])
    seen = intersection(steps, window)
    idle = total(difference(seen, main.device)) / 1e6
    whole = total(seen) / 1e6
    if whole <= 0 or idle / whole < 0.1:
        return
    seconds = idle / whole * float(rank.wall_us.sum()) / 1e6
    yield c.finding(
        "device_idle",
        f"The device idles {100 * idle / whole:.0f} % of the profiled step time.",
        seconds,
        0.6,
        evidence={"rank": rank.number, "profiled_s": round(whole, 6), "idle_s": round(idle, 6)},
        advice="See which stage of the ledger fills the gaps: loader wait, transfers, or launch-bound"
        " small kernels (try"
        " torch.compile or CUDA graphs).",
    )


def recompiles(c: Context) -> Iterator[Finding]:
    low = pl.col("name").str.to_lowercase()
    hits = c.names.filter(
        low.str.contains("recompil") | ((pl.col("cat") == "dynamo") & low.str.contains("compile"))
    )
    n = int(hits["count"].sum()) if hits.height else 0
    if n < 2:
        return
    seconds = float(hits["total_s"].sum())
    yield c.finding(
        "recompiles",
        f"The model was compiled {n} times.",
        seconds,
        0.7,
        evidence={"compilations": n, "seconds": round(seconds, 6), "names": hits["name"].to_list()[:10]},
        advice="Keep shapes and flags constant, mark changing dimensions with torch._dynamo.mark_dynamic,"
        " or use"
        " torch.compile(dynamic=True); TORCH_LOGS=recompiles names the guard that failed.",
    )


def unexplained_time(c: Context) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    seconds = float(rank.stage_us("unexplained").sum()) / 1e6
    wall = float(rank.wall_us.sum()) / 1e6
    if wall <= 0 or seconds / wall < 0.2:
        return
    yield c.finding(
        "unexplained_time",
        f"{100 * seconds / wall:.0f} % of the step time is covered by no annotation.",
        seconds,
        1.0,
        severity="info",
        evidence={"rank": rank.number, "unexplained_s": round(seconds, 6), "step_time_s": round(wall, 6)},
        advice="Annotate more of the step (ai.compute.forward, backward, step, ai.device.transfer,"
        " ai.comm.*) to see what it is.",
    )


def rules(c: Context) -> Iterator[Finding]:
    for rule in (
        exposed_comm,
        checkpoint_stall,
        straggler_rank,
        cold_first_epoch,
        step_drift,
        device_idle,
        recompiles,
        unexplained_time,
    ):
        yield from rule(c)
