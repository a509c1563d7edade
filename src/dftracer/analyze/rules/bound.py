"""What the run is bound by: the largest line of its account, or a larger part of the run outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from dftracer.analyze.device.summary import device_shares, exact_device, uses_device
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.map.account import LINES, Account
from dftracer.analyze.peers import Straggler, find_straggler
from dftracer.analyze.stages import CLASSES, COMPUTE_STAGES, STAGE_INDEX, STAGES, class_of
from dftracer.analyze.thresholds import COMPUTE_ALONE, FEW_STEPS, MAJORITY, MENTION_SHARE, SHORT_RUN


@dataclass(frozen=True)
class Candidate:
    """A part of the run that may bound it. Its share is of the account's time or, if `of_run`, of the run."""

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
class JudgedRun:
    """The run as it is judged: from the point of view of the rank on the critical path.

    The account is that rank's too, unless the others lose most of their time waiting for it: then it is that
    of a typical one of them.
    """

    job: Job
    rank: Rank
    account: Account
    account_rank: Rank
    run_s: float
    straggler: Straggler | None

    @property
    def whole_s(self) -> float:
        """From the first steady step to the last."""
        return self.rank.account.whole_s

    @property
    def stages_s(self) -> dict[str, float]:
        """By stage of the ledger, without waiting for other ranks and without the device's part."""
        return self.rank.account.stages

    def share(self, seconds: float) -> float:
        return seconds / self.whole_s if self.whole_s > 0 else 0.0

    def of_run(self, seconds: float) -> float:
        return seconds / self.run_s if self.run_s > 0 else 0.0

    @property
    def input_s(self) -> float:
        """Without what the first steps of epochs add, where that is another finding."""
        a = self.rank.account
        return max(0.0, a.seconds["input"] - self.input_of_restarts_s)

    @property
    def input_of_restarts_s(self) -> float:
        return self.rank.account.restarts.get("input", 0.0) if restarts_often(self.rank) else 0.0

    @property
    def loads_in_main(self) -> bool:
        """Items are made in the main thread and nowhere else: workers play no part."""
        whole, waiting = self.rank.account.seconds["input"], self.stages_s["fetch_wait"]
        if self.rank.main.from_rows:  # there may have been workers
            return whole > 2 * waiting
        return not self.rank.workers and whole > waiting

    @property
    def compute_s(self) -> float:
        return self.rank.account.seconds["host"]


def judged_run(job: Job) -> JudgedRun | None:
    """None if there are no steps."""
    rank = job.slowest
    if rank is None:
        return None
    late = find_straggler(job.ranks)
    shown = rank
    if late is not None:
        others = [r for r in job.ranks if r is not late.rank and len(r.main.steps)]
        others.sort(key=lambda r: (r.account.seconds["peers"], r.number))
        typical = others[(len(others) - 1) // 2]
        if typical.account.largest == "peers":
            shown = typical
    return JudgedRun(job, rank, shown.account, shown, rank.main.phases.run_us / 1e6, late)


def input_seconds(rank: Rank) -> dict[str, float]:
    """Time that steps took for input, by stage: the main thread's, and the wait as explained by workers."""
    stages = rank.account.stages
    out = {s: stages[s] for s in ("read", "preprocess", "collate")}
    wait = stages["fetch_wait"]
    explained = rank.wait_stages_us(steady=True)
    whole = sum(explained.values())
    if whole <= 0:
        out["unseen"] = wait
    for stage, us in explained.items():
        out[stage] = out.get(stage, 0.0) + wait * us / whole
    if rank.main.auto and rank.main.items.size and not rank.workers:
        # Where the main thread makes the items, what is neither items nor collating chooses them.
        out["sampler"] = out.pop("unseen", 0.0)
    sampler = min(_sampler_s(rank), sum(out.values()))
    if sampler > 0:
        for stage in ("preprocess", "unseen", "idle", "collate", "read"):
            taken = min(out.get(stage, 0.0), sampler - out.get("sampler", 0.0))
            out["sampler"] = out.get("sampler", 0.0) + taken
            out[stage] = out.get(stage, 0.0) - taken
    return {k: v for k, v in out.items() if v > 0}


def _sampler_s(rank: Rank) -> float:
    """Time of the main process in choosing what to load: the loader's sampler and batch sampler."""
    names = rank.main.names
    if names is None or not names.height:
        return 0.0
    mine = names.filter(
        pl.col("cat").is_in(["data", "dataloader"]) & pl.col("name").str.contains("sampler", literal=True)
    )
    return float(mine["self"].sum()) / 1e6


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
    classes = {"inherit"} if rank.main.auto else {"inherit", "io_write"}
    for cat, name, us in names.group_by("cat", "name").agg(pl.col("self").sum()).iter_rows():
        if CLASSES[class_of(cat, name)] in classes and cat.lower() not in {"pp", "kineto"}:
            sums[name] = sums.get(name, 0) + int(us)
    whole = max(1, sum(sums.values()))
    return {n: sums[n] / whole for n in sorted(sums, key=lambda n: (-sums[n], n)) if sums[n] > 0}


def user_event(rank: Rank) -> str | None:
    """The user-defined event that the main process spent most time in."""
    return next(iter(user_events(rank)), None)


def user_words(rank: Rank) -> str | None:
    """The name of that event, and of the next one if it takes less than most of their time."""
    events = user_events(rank)
    alone = events and next(iter(events.values())) > MAJORITY
    return " and ".join([*events][: 1 if alone else 2]) or None


def own_code_places(rank: Rank) -> dict[str, float]:
    """Where the program's own code spent its time, as sampled: seconds, those of the longest function first."""
    steps = rank.main.steps
    if not len(steps):
        return {}
    return rank.main.samples.places((steps.start[rank.main.spent.first :][:1], steps.end[-1:]))


def between_place(rank: Rank) -> str | None:
    """Where most of the time between steps was spent."""
    places = rank.main.samples.places(rank.main.phases.gaps)
    return next((where for where in places if where), None)


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


def between_seconds(rank: Rank) -> float:
    """Time outside steps that has no other name, an unfinished last step left out."""
    outside = rank.main.outside
    unnamed = sum(int(outside[STAGE_INDEX[s]]) for s in ("other", "own_code", "unexplained"))
    return max(0, unnamed - rank.main.phases.unfinished_us) / 1e6


def host_stage(run: JudgedRun) -> str | None:
    """The stage in which the host computes, or launches, longest; None if the parts are not annotated."""
    host = run.account.host
    worst = max(COMPUTE_STAGES, key=lambda s: round(host[s], 6))
    return None if run.account_rank.main.unnamed_compute or host[worst] <= 0 else worst


def _lines(run: JudgedRun) -> Iterator[Candidate]:
    """The lines of the account under the names of the verdict."""
    a, rank = run.account, run.account_rank
    gpu, whole = uses_device(rank), max(a.whole_s, 1e-9)
    for line in LINES:
        seconds, ident, stage, of = a.seconds[line], line, None, None
        if line == "input":
            stage = _input_stage(rank)
        elif line in {"transfer", "comm", "checkpoint"}:
            stage = line
        elif line == "device" and exact_device(rank) and (exact := device_shares(rank)) is not None:
            stage = exact.kind
        elif line == "host":
            ident, stage = "host" if gpu else "compute", host_stage(run)
        elif line == "peers":
            ident = "straggler"
            if run.straggler is not None:
                late = run.straggler
                stage, of = None if late.stage == "unexplained" else late.stage, late.rank.number
        elif line == "own_code":
            if a.annotated_s > MAJORITY * seconds:
                ident, stage = "other", user_event(rank)
            else:
                stage = next(iter(own_code_places(rank)), None)
        elif line == "unexplained":
            ident = "unseen"
        if line in {"own_code", "unexplained"} and a.between_of(line) > MAJORITY * seconds:
            seconds -= a.between_of(line)  # most of it lies between steps: that is a part of its own
        yield Candidate(ident, stage, seconds, seconds / whole, rank=of)


def _of_run(run: JudgedRun) -> Iterator[Candidate]:
    """Parts of the run outside of the account's time, or that no line of it names."""
    phases, a = run.rank.main.phases, run.account
    outside = run.rank.main.outside
    evaluation = phases.evaluation_us / 1e6
    if evaluation > a.seconds["evaluation"]:
        yield Candidate("evaluation", None, evaluation, run.of_run(evaluation), True)
    compilation = phases.compilation_us / 1e6
    yield Candidate("compilation", None, compilation, run.of_run(compilation), True)
    s = STAGE_INDEX["checkpoint"]
    after = int(outside[s]) - int(run.rank.main.spent.between[s])
    if after > 0:
        seconds = a.seconds["checkpoint"] + after / 1e6
        yield Candidate("checkpoint", "checkpoint", seconds, run.of_run(seconds), True)
    between, place = between_seconds(run.rank), between_place(run.rank)
    within = a.between_of("own_code") + a.between_of("unexplained")
    if within > MAJORITY * between:
        yield Candidate("between_steps", place, within, within / a.whole_s)
    else:
        yield Candidate("between_steps", place, between, run.of_run(between), True)
    startup = (phases.startup_us + phases.restarts_us) / 1e6
    unrecorded = phases.unrecorded_us / 1e6
    if unrecorded <= MAJORITY * run.run_s:  # a short run of a program that imports much is not bound by that
        startup -= unrecorded
    yield Candidate("startup", startup_stage(run.rank), startup, run.of_run(startup), True)


def candidates(run: JudgedRun) -> list[Candidate]:
    """All parts, the most expensive first; of each kind the larger one.

    A part that is the largest line, or lies mostly in its line, keeps the figures of that line, even if the run has
    more of it: shares of different times cannot be compared.
    """
    found = {part.id: part for part in _lines(run)}
    for part in _of_run(run):
        known = found.get(part.id)
        elsewhere = known is not None and known.seconds <= MAJORITY * part.seconds
        if known is None or (elsewhere and line_of_part(part.id) != run.account.largest):
            found[part.id] = part
    # What differs by less than a millisecond is as long, except in the shortest runs.
    digits = 3 if run.account.whole_s > 0.1 else 9
    return sorted(found.values(), key=lambda p: (-round(p.seconds, digits), p.of_run))


@dataclass(frozen=True)
class Bound:
    """The winner, and the others worth mentioning."""

    part: Candidate
    beside: tuple[Candidate, ...]
    compute_share: float  # all of compute, of the account
    steps: int  # of the account
    loading_seen: bool = True  # the wait for data could be seen

    @property
    def alone(self) -> bool:
        """Compute takes nearly all of the run, and nothing else could hide in it."""
        # Start-up is not a bottleneck of the steady steps, however long it is.
        others = any(not p.is_compute and p.id != "startup" for p in self.beside)
        visible = self.loading_seen and self.part.is_compute
        return visible and self.compute_share >= COMPUTE_ALONE and not others

    def to_json(self) -> dict[str, Any]:
        p = self.part
        return {
            "id": p.id,
            "stage": p.stage,
            "rank": p.rank,
            "share": round(p.share, 4),
            "seconds": round(p.seconds, 6),
        }


# The lines of parts with other names.
_LINE_OF = {
    "compute": "host",
    "straggler": "peers",
    "other": "own_code",
    "unseen": "unexplained",
    "dependency": "device",
}


def line_of_part(ident: str) -> str:
    """The line of the account that a part of the verdict is."""
    return _LINE_OF.get(ident, ident)


def _may_win(run: JudgedRun, p: Candidate) -> bool:
    """Start-up that happens once is the answer only in a short run."""
    return p.id != "startup" or len(run.rank.main.steps) < SHORT_RUN or repeats(run.rank)


def find_bound(run: JudgedRun | None) -> Bound | None:
    """None if there are too few steps to judge; a profiler's account of the device is exact with any."""
    if run is None or (len(run.rank.main.steps) < FEW_STEPS and not exact_device(run.rank)):
        return None
    parts = candidates(run)
    first = next(p for p in parts if _may_win(run, p))
    startup = next(p for p in parts if p.id == "startup")
    if _may_win(run, startup) and all(
        startup.seconds > p.seconds - run.account.restarts.get(line_of_part(p.id), 0.0)
        for p in parts
        if p is not startup
    ):
        first = startup  # it makes up most of what the others take
    if first is startup:  # include what the choice left out
        phases = run.rank.main.phases
        seconds = (phases.startup_us + phases.restarts_us) / 1e6
        first = replace(startup, seconds=seconds, share=run.of_run(seconds))
    if first.id == "device" and _mostly_dependency(run.account_rank):
        first = Candidate("dependency", None, first.seconds, first.share)
    beside = tuple(p for p in parts if p.id not in {first.id, "device"} and p.share >= MENTION_SHARE)
    main = run.account_rank.main
    seen = not main.auto or "fetch_wait" in main.seen or run.stages_s["own_code"] > 0
    return Bound(first, beside, run.account.share("host"), run.account.steps, seen)


def _mostly_dependency(rank: Rank) -> bool:
    """Whether the work queued on the device mostly waited for another stream; only a profiler can tell."""
    sides = rank.main.devices
    exact = None if sides is None else sides.profiler
    return exact is not None and exact.idle["dependency"] > exact.busy_s
