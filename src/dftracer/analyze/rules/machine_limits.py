"""Findings about the machine: busy with something else, throttled, out of memory; and what they explain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dftracer._text import bytes_text, plural
from dftracer.analyze.job import Rank
from dftracer.analyze.machine import (
    Host,
    Series,
    hosts_of,
    read_use,
    throttle_words,
    throttled,
    waited_use,
)
from dftracer.analyze.map.partial import Partial
from dftracer.analyze.rules.finding import Finding, JudgingContext, confidence, only_this_rank
from dftracer.analyze.say.wording import percent
from dftracer.analyze.stages import STAGE_INDEX
from dftracer.analyze.thresholds import (
    BUSY_SHARE,
    FINDING_SHARE,
    LIMIT_SHARE,
    MAJORITY,
    REREAD_BYTES,
    SLOW_STEP_FACTOR,
    SLOW_STEP_MAX,
    SWAP_RATE,
    THROTTLED_SHARE,
)
from dftracer.load.chunk import MISSING

_OTHERS = "others"  # what took the CPUs: other programs, the program itself, or its control group's limit
_OWN = "own"
_LIMIT = "cpu_limit"
_UNKNOWN = "unknown"
_NEARLY_ALL = 0.8  # of what slow items take: those that are slow by themselves also wait, but less


@dataclass
class _Waiting:
    """How long a rank waited for CPUs during its steps, and for what reason."""

    start: float
    end: float
    main_s: float  # its first thread
    workers_s: float  # of the time it waited for data, in which the loader's workers waited for a CPU
    slow_steps: int  # steps several times as long as the others whose extra time is such waiting
    slow_s: float

    @property
    def seconds(self) -> float:
        return self.main_s + self.workers_s

    @property
    def share(self) -> float:
        return self.seconds * 1e6 / max(1.0, self.end - self.start)


def _host(c: JudgingContext) -> Host | None:
    if c.rank is None:
        return None
    return hosts_of(c.job).get(c.rank.main.process.host)


def _steps_time(rank: Rank) -> tuple[float, float]:
    steps = rank.main.steps
    return float(steps.start[0]), float(steps.end[-1])


def _workers_waited(rank: Rank, start: float, end: float) -> float:
    """The share of the time in which a worker of the loader waited for a CPU, on average."""
    shares = []
    for worker in rank.workers:
        series = None if worker.thread else waited_use(worker.partial)
        if series is None:
            continue
        first, last = max(start, float(series.ts[0])), min(end, float(series.ts[-1]))
        if last > first:
            shares.append(series.grown("waited_us", first, last) / (last - first))
    return float(np.mean(shares)) if shares else 0.0


def _slow_steps(rank: Rank, series: Series) -> tuple[int, float]:
    """Steps several times as long as the others: how many, and the seconds lost, if waiting explains them.

    Counters are sampled once a second: the waiting is that of the intervals in which the slow steps lie.
    """
    steps = rank.main.steps
    steady = np.flatnonzero(steps.steady)
    wall = rank.wall_us.astype(float)[steady]
    if wall.size < 10:
        return 0, 0.0
    usual = float(np.median(wall))
    slow = np.flatnonzero(wall > SLOW_STEP_FACTOR * max(usual, 1.0))
    if slow.size == 0 or slow.size > SLOW_STEP_MAX * wall.size:
        return 0, 0.0
    at = steady[slow]
    edges = series.ts.astype(float)
    low = np.clip(np.searchsorted(edges, steps.start[at], side="right") - 1, 0, edges.size - 2)
    high = np.clip(np.searchsorted(edges, steps.end[at], side="left"), 1, edges.size - 1)
    touched = np.unique(np.concatenate([np.arange(a, max(b, a + 1)) for a, b in zip(low, high, strict=True)]))
    length = np.diff(edges)
    ran, waited = (np.diff(series.values[k]) for k in ("ran_us", "waited_us"))
    asleep = length - ran - waited
    others = np.setdiff1d(np.arange(length.size), touched)
    if others.size > 1:  # also in usual steps it sleeps, or waits for data
        asleep = asleep - length * float(np.median(asleep[others] / length[others]))
    waited, asleep = waited[touched], asleep[touched]
    lost = float((wall[slow] - usual).sum())
    # A step that sleeps, or waits for something else than a CPU, is the program's own.
    explained = waited.sum() >= MAJORITY * lost and asleep.sum() < MAJORITY * lost
    return (int(slow.size), lost / 1e6) if explained else (0, 0.0)


def _waiting(c: JudgingContext) -> _Waiting | None:
    rank = c.rank
    if rank is None:
        return None
    series = waited_use(rank.main)
    if series is None:
        return None
    start, end = _steps_time(rank)
    start, end = max(start, float(series.ts[0])), min(end, float(series.ts[-1]))
    if end <= start:
        return None
    main = series.grown("waited_us", start, end) / 1e6
    fetch = float(rank.stage_us("fetch_wait").sum()) / 1e6
    workers = fetch * _workers_waited(rank, start, end)
    return _Waiting(start, end, main, workers, *_slow_steps(rank, series))


def _cause(host: Host, w: _Waiting) -> tuple[str, dict[str, Any]]:
    """Who had the CPUs meanwhile, and the figures that say so."""
    own, busy = host.own_cpu_s(w.start, w.end), host.busy_cpu_s(w.start, w.end)
    facts: dict[str, Any] = {"own_cpu_s": round(own, 3)}
    group = host.shared.get("cgroup")
    if group is not None and group.has("cpu_limit_milli", "throttled_us"):
        held = group.grown("throttled_us", w.start, w.end) / 1e6
        facts["cpu_limit"] = group.values["cpu_limit_milli"][-1] / 1e3
        facts["throttled_s"] = round(held, 3)
        if held >= MAJORITY * w.seconds:
            return _LIMIT, facts
    if busy is None:
        return _UNKNOWN, facts
    others = max(0.0, busy - own)
    facts["other_cpu_s"] = round(others, 3)
    return (_OTHERS if others >= MAJORITY * w.seconds else _OWN), facts


_BUSY = {
    _OTHERS: (
        "The machine was busy with something else: the program waited {share} of the time for a CPU{where}.",
        "",
    ),
    _OWN: (
        "The program has more threads to run than CPUs: its steps waited {share} of the time for one{where}.",
        "Use fewer loader workers and fewer threads (torch.set_num_threads, OMP_NUM_THREADS): together no"
        " more than there are CPUs.",
    ),
    _LIMIT: (
        "The CPU limit of its control group held the program up: it waited {share} of the time for a CPU"
        " ({limit}).",
        "Raise the limit (cpu.max, --cpus, resources.limits.cpu), or use fewer threads and loader workers.",
    ),
    _UNKNOWN: ("The program waited {share} of the time for a CPU{where}.", ""),
}


def machine_busy(c: JudgingContext) -> Iterator[Finding]:
    w, host = _waiting(c), _host(c)
    if w is None or host is None or c.rank is None:
        return
    outliers = w.slow_steps > 0 and c.percent(w.slow_s) >= 100 * FINDING_SHARE
    if w.share < BUSY_SHARE and not outliers:
        return
    cause, facts = _cause(host, w)
    cpu = host.shared.get("host.cpu")
    runnable = None if cpu is None else cpu.mean("runnable", w.start, w.end)
    cpus = host.cpus
    details = [plural(cpus, "core")] if cpus else []
    details += [f"{runnable:.0f} runnable"] if runnable is not None else []
    title, advice = _BUSY[cause]
    limit = facts.get("cpu_limit")
    words = title.format(
        share=percent(w.share),
        where=f" ({', '.join(details)})" if details else "",
        limit=f"{limit:g} CPUs" if limit is not None else "",
    )
    if w.share < BUSY_SHARE:
        slow = f"{plural(w.slow_steps, 'step')} took several times as long as the others"
        words = f"{words.rstrip('.')}; {slow} because of it."
    yield c.finding(
        "machine_busy",
        words,
        max(w.seconds, w.slow_s),
        confidence(len(c.rank.main.steps)),
        evidence={
            "rank": c.rank.number,
            "cause": cause,
            "waited_s": round(w.main_s, 3),
            "waited_by_workers_s": round(w.workers_s, 3),
            "waited_for_cpu_share": round(w.share, 4),
            "cpus": cpus,
            "runnable": None if runnable is None else round(runnable, 1),
            **facts,
            "slow_steps": w.slow_steps,
        },
        advice=advice,
    )


def without_symptoms(c: JudgingContext, found: list[Finding]) -> list[Finding]:
    """All but what unsteady scheduling explains: that becomes part of the finding about it."""
    busy = next((f for f in found if f.id == "machine_busy"), None)
    if busy is None:
        return found
    busy.symptoms = [f for f in found if _is_symptom(c, f, busy) or _items_waited(c, f, busy)]
    left = [f for f in found if f not in busy.symptoms]
    regular = busy.evidence["waited_for_cpu_share"] < BUSY_SHARE and not busy.symptoms
    return [f for f in left if f is not busy] if regular else left


def _is_symptom(c: JudgingContext, f: Finding, busy: Finding) -> bool:
    if f.id == "slow_steps":  # every n-th step is slow for a reason of its own
        return bool(busy.evidence["slow_steps"]) and f.evidence["every"] is None
    if f.id == "step_drift" and c.rank is not None:
        return _drifted(c.rank) >= MAJORITY * f.seconds > 0
    if f.id == "straggler_rank":
        if only_this_rank(f.evidence["stage"], f.evidence["own_s"], f.evidence["median_rank_s"]):
            return False  # it waited more because it had more to run
        late = next((r.main for r in c.job.ranks if r.number == f.evidence["rank"]), None)
        others = [r.main for r in c.job.ranks if r.main is not late]
        return late is not None and _beyond(late, others) >= MAJORITY * f.seconds > 0
    if f.id == "straggler_worker" and c.rank is not None:
        workers = [w.partial for w in c.rank.workers if not w.thread]
        late = next((p for p in workers if p.process.pid == f.evidence["pid"]), None)
        others = [p for p in workers if p is not late]
        return late is not None and _beyond(late, others) >= MAJORITY * f.evidence["extra_worker_s"] > 0
    return False


def _items_waited(c: JudgingContext, f: Finding, busy: Finding) -> bool:
    """Whether slow items are those that had to wait for a CPU, in a thread that waited as much in all it did."""
    if f.id != "slow_items" or c.judged is None:
        return False
    waited = busy.evidence["waited_by_workers_s"]
    if c.judged.loads_in_main:
        waited = busy.evidence["waited_s"] * c.judged.share(c.judged.input_s)
    return bool(waited >= _NEARLY_ALL * f.seconds)


def _beyond(late: Partial, others: list[Partial]) -> float:
    """How many seconds longer than the others, at the median, one process waited for a CPU."""
    waited = [s.grown("waited_us", *s.span) for p in others if (s := waited_use(p)) is not None]
    own = waited_use(late)
    if own is None or not waited:
        return 0.0
    return (own.grown("waited_us", *own.span) - float(np.median(waited))) / 1e6


def _drifted(rank: Rank) -> float:
    """How many seconds longer a rank waited than if all of its steps were like those of the first quarter."""
    series = waited_use(rank.main)
    if series is None:
        return 0.0
    start, end = _steps_time(rank)
    quarter = (end - start) / 4
    first = series.grown("waited_us", start, start + quarter)
    last = series.grown("waited_us", end - quarter, end)
    return 2 * (last - first) / 1e6


def gpu_throttled(c: JudgingContext) -> Iterator[Finding]:
    worst: tuple[float, Host, int, Series] | None = None
    start, end = _run_time(c)
    for host in hosts_of(c.job).values():
        for number, gpu in host.gpus.items():
            inside = gpu.inside(start, end)
            if not gpu.has("throttle") or not inside.any():
                continue
            share = float(throttled(gpu)[inside].mean())
            if worst is None or share > worst[0]:
                worst = (share, host, number, gpu)
    if worst is None or worst[0] < THROTTLED_SHARE:
        return
    share, host, number, gpu = worst
    rows = throttled(gpu) & gpu.inside(start, end)
    clock, highest, slowdown = None, gpu.highest("sm_max_mhz"), 0.0
    details = []
    if gpu.has("sm_mhz") and highest:
        clock = float(gpu.values["sm_mhz"][rows].mean())
        slowdown = max(0.0, 1 - clock / highest)
        details.append(f"{clock:.0f} of {highest} MHz")
    if gpu.has("temperature"):
        details.append(f"{gpu.values['temperature'][rows].max()} °C")
    if gpu.has("power_mw"):
        details.append(f"{gpu.values['power_mw'][rows].mean() / 1e3:.0f} W")
    yield c.finding(
        "gpu_throttled",
        f"GPU {number} was throttled {percent(share)} of the time ({throttle_words(gpu, rows)})"
        + (f": {', '.join(details)}." if details else "."),
        (end - start) / 1e6 * share * slowdown,
        confidence(int(gpu.inside(start, end).sum())),
        evidence={
            "host": host.name,
            "device": number,
            "throttled_share": round(share, 4),
            "reasons": throttle_words(gpu, rows),
            "sm_mhz": None if clock is None else round(clock),
            "sm_max_mhz": highest,
        },
    )


def _run_time(c: JudgingContext) -> tuple[float, float]:
    """The time of the steps; without any, of the run."""
    return (float(c.job.first_us), float(c.job.last_us)) if c.rank is None else _steps_time(c.rank)


def swapping(c: JudgingContext) -> Iterator[Finding]:
    start, end = _run_time(c)
    for host in hosts_of(c.job).values():
        memory = host.shared.get("host.memory")
        if memory is None or not memory.has("swapped_in", "swapped_out") or memory.ts.size < 2:
            continue
        first, last = max(start, float(memory.ts[0])), min(end, float(memory.ts[-1]))
        if last <= first:
            continue
        seconds = (last - first) / 1e6
        read = memory.grown("swapped_in", first, last)
        faults = sum(
            s.grown("major_faults", first, last)
            for p in host.partials
            if (s := p.counters.get("memory")) is not None
        )
        if read / seconds < SWAP_RATE or faults == 0:
            continue
        pressure = host.shared.get("host.pressure")
        stalled = 0.0 if pressure is None else pressure.grown("memory_some_us", first, last) / 1e6
        yield c.finding(
            "swapping",
            f"The machine swaps: {bytes_text(read / seconds)}/s is read back into memory, and the program"
            f" waited for {plural(round(faults), 'page')}.",
            min(stalled, seconds),
            confidence(int(memory.inside(first, last).sum())),
            severity=None if stalled else "medium",
            evidence={
                "host": host.name,
                "swapped_in_bytes": round(read),
                "swapped_out_bytes": round(memory.grown("swapped_out", first, last)),
                "major_faults": round(faults),
                "memory_pressure_s": round(stalled, 3),
            },
        )
        return


def _memory_words(host: Host) -> tuple[int | None, str]:
    """How much memory there is for the page cache, and what sets it."""
    group, memory = host.shared.get("cgroup"), host.shared.get("host.memory")
    total = None if memory is None else memory.last("total")
    limit = None if group is None else group.last("memory_limit")
    if limit is not None and (total is None or limit < total):
        return limit, f"its memory is limited to {bytes_text(limit)}"
    return total, "" if total is None else f"the machine has {bytes_text(total)}"


def cache_thrash(c: JudgingContext) -> Iterator[Finding]:
    """Bytes come from the disk again in later epochs, because the page cache had to give them up."""
    host, rank = _host(c), c.rank
    if host is None or rank is None:
        return
    steps = rank.main.steps
    label = np.where(steps.epoch == MISSING, steps.loop, steps.epoch)
    epochs = np.unique(label)
    if epochs.size < 2:
        return
    later = label != epochs[0]
    start, end = float(steps.start[later][0]), float(steps.end[-1])
    read = sum(read_use(p, p is not rank.main).grown(start, end) for p in rank.members)
    per_epoch = read / (epochs.size - 1)
    caches = [s for name in ("cgroup", "host.memory") if (s := host.shared.get(name)) is not None]
    again = max((s.grown("cache_refaults", start, end) for s in caches), default=0.0)
    if per_epoch < REREAD_BYTES or again < MAJORITY * read:
        return
    loading = sum(rank.main.account[later][:, STAGE_INDEX[s]] for s in ("fetch_wait", "read")).astype(float)
    io = np.sum([e.step_io_us for e in rank.explanations.values()], axis=0).astype(float)[later]
    # Not even seen where files are mapped: then all of the loading is at stake.
    seconds = float(np.minimum(loading, io).sum() if io.any() else loading.sum()) / 1e6
    size, words = _memory_words(host)
    yield c.finding(
        "cache_thrash",
        f"The data set does not fit into memory: {bytes_text(per_epoch)} is read from the disk again in each"
        f" epoch{f' ({words})' if words else ''}.",
        seconds,
        confidence(int(later.sum())),
        evidence={
            "rank": rank.number,
            "epochs": int(epochs.size),
            "read_again_per_epoch_bytes": round(per_epoch),
            "evicted_and_read_again_bytes": round(again),
            "memory_bytes": size,
        },
    )


def memory_limit(c: JudgingContext) -> Iterator[Finding]:
    for host in hosts_of(c.job).values():
        group = host.shared.get("cgroup")
        if group is None or not group.has("memory_limit"):
            continue
        limit, used = group.last("memory_limit") or 1, group.highest("anonymous") or 0
        first, last = group.span
        killed = round(group.grown("oom_kills", first, last))
        if not killed and used < LIMIT_SHARE * limit:
            continue
        stalled = group.grown("memory_some_us", first, last) / 1e6
        who = f"{plural(killed, 'process was', 'processes were')} killed at the memory limit of"
        near = f"The program needs {percent(used / limit)} of its memory limit of"
        yield c.finding(
            "memory_limit",
            f"{who} {bytes_text(limit)}." if killed else f"{near} {bytes_text(limit)}.",
            min(stalled, c.run_s),
            0.9,
            severity="high" if killed else "medium",
            evidence={
                "host": host.name,
                "limit_bytes": limit,
                "used_bytes": used,
                "limit_hits": round(group.grown("limit_hits", first, last)),
                "oom_kills": killed,
                "memory_pressure_s": round(stalled, 3),
            },
        )
        return


RULES = (machine_busy, gpu_throttled, swapping, cache_thrash, memory_limit)
