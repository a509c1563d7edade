"""The parts of a run that compete to be its bottleneck, each with its seconds.

To add a kind of part, add a function to `PROVIDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from dftracer.analyze.device_bound import device_shares, used_unseen
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.peers import Straggler, find_straggler
from dftracer.analyze.stages import CLASSES, COMPUTE_STAGES, INPUT_STAGES, STAGE_INDEX, STAGES, class_of
from dftracer.analyze.thresholds import MAJORITY
from dftracer.format.io_calls import is_process

__all__ = [
    "PROVIDERS",
    "Part",
    "View",
    "candidates",
    "input_seconds",
    "recurring_s",
    "repeats",
    "restarts_often",
    "startup_stage",
    "user_event",
    "user_words",
    "view_of",
]


@dataclass(frozen=True)
class Part:
    """A part of the run. Its share is of the steady steps, or, if `of_run`, of the whole run."""

    id: str
    stage: str | None
    seconds: float
    share: float
    of_run: bool = False
    rank: int | None = None

    @property
    def is_compute(self) -> bool:
        return self.id == "compute"


@dataclass
class View:
    """The run from the view of the rank on the critical path; stages exclude waiting for other ranks."""

    job: Job
    rank: Rank
    stages_s: dict[str, float]  # of the steady steps
    waiting_s: float  # for other ranks, in the steady steps
    steady_s: float
    run_s: float
    straggler: Straggler | None

    def share(self, seconds: float) -> float:
        return seconds / self.steady_s if self.steady_s > 0 else 0.0

    def of_run(self, seconds: float) -> float:
        return seconds / self.run_s if self.run_s > 0 else 0.0

    @property
    def input_s(self) -> float:
        return sum(self.stages_s[s] for s in INPUT_STAGES)

    @property
    def loads_in_main(self) -> bool:
        """Items are made in the main thread and nowhere else: nothing is to be said about workers."""
        return not self.rank.workers and self.input_s > self.stages_s["fetch_wait"]

    @property
    def compute_s(self) -> float:
        return sum(self.stages_s[s] for s in COMPUTE_STAGES)


def _steady_stages(rank: Rank) -> tuple[dict[str, float], float]:
    """Seconds per stage in the steady steps without waiting for others, and that waiting."""
    steady = rank.main.steps.steady
    account = rank.main.account[steady].sum(axis=0).astype(float)
    waiting = left = float(rank.waiting_us[steady].sum())
    for stage in ("comm", "backward"):
        taken = min(left, account[STAGE_INDEX[stage]])
        account[STAGE_INDEX[stage]] -= taken
        left -= taken
    return {s: float(v) / 1e6 for s, v in zip(STAGES, account, strict=True)}, waiting / 1e6


def view_of(job: Job) -> View | None:
    """None if there are no steps."""
    rank = job.slowest
    if rank is None:
        return None
    stages, waiting = _steady_stages(rank)
    steady_s = float(rank.wall_us[rank.main.steps.steady].sum()) / 1e6
    run_s = rank.main.phases.run_us / 1e6
    return View(job, rank, stages, waiting, steady_s, run_s, find_straggler(job.ranks))


def input_seconds(rank: Rank) -> dict[str, float]:
    """Input time of the steady steps by stage: the main thread's, and the wait as explained by workers."""
    steady = rank.main.steps.steady
    out = {s: float(rank.stage_us(s)[steady].sum()) / 1e6 for s in ("read", "preprocess", "collate")}
    wait = float(rank.stage_us("fetch_wait")[steady].sum()) / 1e6
    explained = rank.wait_stages_us(steady=True)
    whole = sum(explained.values())
    if whole <= 0:
        out["unseen"] = wait
    for stage, us in explained.items():
        out[stage] = out.get(stage, 0.0) + wait * us / whole
    return {k: v for k, v in out.items() if v > 0}


def _input_stage(rank: Rank) -> str | None:
    """The stage that loading spends most time in; None if most of it cannot be seen."""
    stages = input_seconds(rank)
    if not stages:
        return None
    worst = max(stages, key=lambda s: (round(stages[s], 4), s))
    return None if worst in {"unseen", "fetch_wait"} else worst


def user_events(rank: Rank) -> dict[str, float]:
    """User-defined events with their share of the time in all of them, the largest first.

    Events of the profiler and starting processes are not among them.
    """
    names = rank.main.names
    if names is None or not names.height:
        return {}
    sums: dict[str, int] = {}
    for cat, name, us in names.group_by("cat", "name").agg(pl.col("self").sum()).iter_rows():
        if CLASSES[class_of(cat, name)] not in {"inherit", "io_write"}:
            continue
        if cat.lower() not in {"pp", "kineto"} and not is_process(name):
            sums[name] = sums.get(name, 0) + int(us)
    whole = max(1, sum(sums.values()))
    return {n: sums[n] / whole for n in sorted(sums, key=lambda n: (-sums[n], n)) if sums[n] > 0}


def user_event(rank: Rank) -> str | None:
    """The one that the main process spent most time in."""
    return next(iter(user_events(rank)), None)


def user_words(rank: Rank) -> str | None:
    """Its name, and that of the next where it is not most of them."""
    events = user_events(rank)
    alone = events and next(iter(events.values())) > MAJORITY
    return " and ".join([*events][: 1 if alone else 2]) or None


def _in_steps(v: View) -> Iterator[Part]:
    """Loading as one part; the parts of compute separately."""
    yield Part("input", _input_stage(v.rank), v.input_s, v.share(v.input_s))
    for stage in COMPUTE_STAGES:
        seconds = v.stages_s[stage]
        named = None if v.rank.main.unnamed_compute else stage
        yield Part("compute", named, seconds, v.share(seconds))
    for ident, stage, name in (
        ("transfer", "transfer", "transfer"),
        ("comm", "comm", "comm"),
        ("other", "other", user_event(v.rank)),
        ("unseen", "unexplained", None),
    ):
        seconds = v.stages_s[stage]
        yield Part(ident, name, seconds, v.share(seconds))


def _device(v: View) -> Iterator[Part]:
    """What the device lost, and why; this replaces the host's stages."""
    d = device_shares(v.rank)
    if d is None:
        return
    shares = (
        ("device", d.kind, d.device),
        ("input", _input_stage(v.rank), d.input),
        ("host", d.phase, d.host),
        ("comm", "comm", d.comm),
        ("dependency", None, d.dependency),
        ("unseen", None, d.unknown),
    )
    for ident, stage, share in shares:
        yield Part(ident, stage, share * v.steady_s, share)
    outside = float(v.rank.main.outside[STAGE_INDEX["checkpoint"]]) / 1e6
    seconds = d.checkpoint * v.steady_s + outside
    share = v.of_run(seconds) if outside > 0 else d.checkpoint
    yield Part("checkpoint", "checkpoint", seconds, share, outside > 0)


def _launching(v: View) -> Iterator[Part]:
    """A device was used but nothing is known about it: time in compute is launching, not computing."""
    for part in _in_steps(v):
        if part.id not in {"compute", "unseen"}:
            yield part
    seconds = v.compute_s + v.stages_s["unexplained"]
    yield Part("unseen", None, seconds, v.share(seconds))


def _checkpoints(v: View) -> Iterator[Part]:
    """Inside and outside steps."""
    inside = v.stages_s["checkpoint"]
    outside = float(v.rank.main.outside[STAGE_INDEX["checkpoint"]]) / 1e6
    seconds = inside + outside
    share = v.of_run(seconds) if outside > 0 else v.share(seconds)
    yield Part("checkpoint", "checkpoint", seconds, share, outside > 0)


def _outside(v: View) -> Iterator[Part]:
    """Time outside steps."""
    phases = v.rank.main.phases
    seconds = phases.evaluation_us / 1e6
    yield Part("evaluation", None, seconds, v.of_run(seconds), True)
    seconds = phases.compilation_us / 1e6
    yield Part("compilation", None, seconds, v.of_run(seconds), True)
    outside = v.rank.main.outside
    between = (phases.outside_us - phases.unfinished_us - int(outside[STAGE_INDEX["checkpoint"]])) / 1e6
    known = {s: int(outside[STAGE_INDEX[s]]) for s in STAGES[:-1] if s != "checkpoint"}
    stage = max(known, key=lambda s: known[s])
    most = 2 * known[stage] >= phases.outside_us > 0
    yield Part("between_steps", stage if most else None, between, v.of_run(between), True)


def _startup(v: View) -> Iterator[Part]:
    """Once, and at the beginning of later epochs."""
    phases = v.rank.main.phases
    seconds = (phases.startup_us + phases.restarts_us) / 1e6
    yield Part("startup", startup_stage(v.rank), seconds, v.of_run(seconds), True)


def restarts_often(rank: Rank) -> bool:
    """Whether the first step of most later epochs took much longer than a usual one."""
    phases = rank.main.phases
    return phases.epoch_starts > 0 and phases.restarts * 2 > phases.epoch_starts


def recurring_s(rank: Rank) -> float:
    """What restarts cost in all epochs; the first may have had more to do than to start."""
    phases = rank.main.phases
    again = phases.restarts_us / max(1, phases.epoch_starts)
    return (phases.restarts_us + min(again, phases.startup_us)) / 1e6


def repeats(rank: Rank) -> bool:
    """Whether most of the start-up recurs in every epoch."""
    phases = rank.main.phases
    return restarts_often(rank) and recurring_s(rank) >= MAJORITY * (
        (phases.startup_us + phases.restarts_us) / 1e6
    )


def startup_stage(rank: Rank) -> str | None:
    """The stage that makes the first steps long; None if most is before them or in no stage."""
    steps = rank.main.steps
    begins = steps.first.copy()
    begins[:1] = True
    begins &= ~steps.steady
    if not begins.any():
        return None
    account = rank.main.account
    grown = account[begins].sum(axis=0) - begins.sum() * np.median(account[steps.steady], axis=0)
    phases = rank.main.phases
    s = int(np.argmax(grown[:-1]))
    return STAGES[s] if 2 * grown[s] >= phases.startup_us + phases.restarts_us > 0 else None


def _stragglers(v: View) -> Iterator[Part]:
    """The late rank, if the others lose more to it than to any stage of their own."""
    late = v.straggler
    if late is None:
        return
    others = [r for r in v.job.ranks if r is not late.rank and len(r.main.steps)]
    accounts = [_steady_stages(r) for r in others]
    waiting = float(np.median([w for _, w in accounts])) or late.lost_s
    parts = [sum(float(np.mean([a[s] for a, _ in accounts])) for s in INPUT_STAGES)]
    parts += [float(np.mean([a[s] for a, _ in accounts])) for s in STAGES if s not in INPUT_STAGES]
    if waiting > max(parts):
        stage = None if late.stage == "unexplained" else late.stage
        yield Part("straggler", stage, waiting, v.share(waiting), rank=late.rank.number)


PROVIDERS: tuple[Callable[[View], Iterator[Part]], ...] = (
    _in_steps,
    _checkpoints,
    _outside,
    _startup,
    _stragglers,
)


def _providers(v: View) -> list[Callable[[View], Iterator[Part]]]:
    if device_shares(v.rank) is not None:
        return [_device, *(p for p in PROVIDERS if p not in (_in_steps, _checkpoints))]
    if used_unseen(v.rank):
        return [_launching, *(p for p in PROVIDERS if p is not _in_steps)]
    return [*PROVIDERS]


def candidates(v: View) -> list[Part]:
    """All parts, the most expensive first."""
    found = [part for provider in _providers(v) for part in provider(v)]
    return sorted(found, key=lambda p: -round(p.seconds, 3))
