"""The reduce step: combines the partial results of all files into one job of ranks, workers and helpers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dftracer.analyze.intervals import intersection, total, union, union_of
from dftracer.analyze.map.account import Account, account_of
from dftracer.analyze.map.partial import Partial
from dftracer.analyze.map.threads import AWAITED, Awaited, Explanation, Question, find_awaited
from dftracer.analyze.peers import Peers, mark_waiting
from dftracer.analyze.stages import STAGE_INDEX, STAGES
from dftracer.load.chunk import Ints
from dftracer.load.process import as_integer, assign_ranks

_HELPER = 0.05  # a thread with less than this share of the loading does not count as a worker
_LOADER_STAGES = ("read", "preprocess", "collate", "fetch_wait")


@dataclass
class Worker:
    """A process or helper thread that feeds a rank."""

    partial: Partial
    lane: dict[str, Any]
    number: int
    thread: bool  # a thread of the rank's own process

    @property
    def life_us(self) -> int:
        """How long it existed: loaders often start new workers for each epoch."""
        lane, process = self.lane, self.partial
        first = lane["first_us"] if self.thread else process.first_us
        last = lane["last_us"] if self.thread else process.last_us
        return max(1, (last or 0) - (first or 0))


@dataclass
class Rank:
    """One rank: the process that trains, and those that feed it."""

    number: int
    main: Partial
    workers: list[Worker] = field(default_factory=list)
    members: list[Partial] = field(default_factory=list)  # main and every process below it
    explanations: dict[int, Explanation] = field(default_factory=dict)  # by index into Job.partials
    peers: Peers = field(default_factory=lambda: Peers.none(0))

    def __post_init__(self) -> None:
        self.peers = Peers.none(len(self.main.steps))

    @property
    def waiting_us(self) -> Ints:
        """For other ranks, per step."""
        sums: Ints = self.peers.waiting.sum(axis=1)
        return sums

    @property
    def wall_us(self) -> Ints:
        """The wall time of each step, excluding evaluation inside it."""
        return self.main.steps.wall

    @cached_property
    def account(self) -> Account:
        """Where its time went, from its first steady step to its last."""
        waiting, between = self.peers.waiting, self.peers.between
        return account_of(self.main.account, waiting, between, self.main.spent, self.main.steps)

    def stage_us(self, stage: str) -> Ints:
        """The time of each step in one stage."""
        return self.main.account[:, STAGE_INDEX[stage]]

    def question(self, member: Partial) -> Question:
        """What one of its processes is asked when the rank is known."""
        steps = self.main.steps
        steady = steps.steady
        skip = steps.tid if member is self.main else None
        times = (steps.start, steps.end)
        return Question(
            self.main.waits,
            self.main.compute,
            times,
            union(steps.start[steady], steps.end[steady]),
            skip,
            [each for each in self.awaited if each.pid == member.process.pid],
        )

    @cached_property
    def awaited(self) -> list[Awaited]:
        """The batches that steps waited for, if automatic tracing recorded them."""
        steps = self.main.steps
        return find_awaited(self.main.awaited, steps.start, steps.end, self.main.process.pid)

    def awaited_between(self, first: int, last: int) -> list[tuple[int, int]]:
        """The batches that were waited for between two moments, each with the worker that made it."""
        rows = dict(zip(AWAITED, self.main.awaited, strict=True))
        mine = (rows["ts"] >= first) & (rows["ts"] < last) & (rows["pid"] >= 0)
        return list(zip(rows["batch"][mine].tolist(), rows["pid"][mine].tolist(), strict=True))

    @property
    def waited_for(self) -> dict[int, dict[str, Any]]:
        """For each step, the batch it waited for, who made it and from what."""
        return {step: batch for e in self.explanations.values() for step, batch in e.waited_for.items()}

    @property
    def loader_annotated(self) -> bool:
        """Whether all work of loader workers can be seen: only then does the time in between count as idle.

        After the items of a batch, a worker collates them, which is no part of any item.
        """
        return any(w.lane["stages"].get("collate") for w in self.workers)

    def wait_stages_us(self, steady: bool = False) -> dict[str, float]:
        """The loader wait, split by what the workers did meanwhile.

        `idle` is time when none of them worked, `unseen` the same if their work is not annotated.
        """
        waits = union(*self.main.waits)
        steps = self.main.steps
        if steady:
            waits = intersection(waits, union(steps.start[steps.steady], steps.end[steps.steady]))
        wait = total(waits)
        if not self.explanations or wait == 0:
            return {}
        rest = "idle" if self.loader_annotated else "unseen"
        stages = [e.steady_us if steady else e.stages_us for e in self.explanations.values()]
        sums = sum(stages, np.zeros(len(STAGES), np.int64))
        busy = [e.busy for e in self.explanations.values()]
        worked = total(intersection(union_of(*busy), waits))
        if sums.sum() == 0:
            return {rest: float(wait)}
        shares = {STAGES[i]: float(v) / float(sums.sum()) * worked for i, v in enumerate(sums) if v}
        return {**shares, rest: float(wait - worked)}


@dataclass
class Job:
    """Everything known about a run."""

    partials: list[Partial]
    ranks: list[Rank] = field(default_factory=list)
    others: list[Job] = field(default_factory=list)  # trainings in processes of their own, in their order

    @property
    def first_us(self) -> int:
        return min((p.first_us for p in self.partials if p.first_us is not None), default=0)

    @property
    def last_us(self) -> int:
        return max((p.last_us for p in self.partials if p.last_us is not None), default=0)

    @property
    def run_us(self) -> int:
        """From the start of its first process to the end of its last."""
        born = [t for p in self.partials for t in (p.process.born_us, p.process.start_us) if t is not None]
        over = [p.process.end_us for p in self.partials if p.process.end_us is not None]
        return max(0, max([self.last_us, *over]) - min([self.first_us, *born]))

    @property
    def slowest(self) -> Rank | None:
        """The rank on the job's critical path: its steps took longest in total.

        Ranks that synchronise take the same time; among those it is the one with the most work of its own,
        which the others wait for. If the differences could be noise, it is the first rank.
        """
        with_steps = [r for r in self.ranks if len(r.main.steps)]
        longest = max((int(r.wall_us.sum()) for r in with_steps), default=0)
        level = [r for r in with_steps if int(r.wall_us.sum()) >= 0.995 * longest]
        most = max((_own_work(r) for r in level), default=0)
        return next((r for r in level if _own_work(r) >= 0.99 * most), None)


def _own_work(rank: Rank) -> int:
    away = rank.waiting_us if rank.waiting_us.any() else rank.stage_us("comm")
    return int((rank.wall_us - away).sum())


def build_job(partials: list[Partial]) -> Job:
    """Find the ranks, and who belongs to which.

    Ranks are numbered by the launcher. Without its numbers each process that trains is a training of its own:
    the first job of the result is the one that trained longest, `others` are the rest.
    """
    assign_ranks([p.process for p in partials])
    job = Job(partials)
    parents = _parents(partials)
    mains: dict[int, int] = {}
    unnumbered: list[int] = []
    steps = any(len(p.steps) for p in partials)
    for i, p in enumerate(partials):
        if not (len(p.steps) if steps else _used_device(p)) or any(
            len(partials[a].steps) for a in parents[i]
        ):
            continue
        rank = p.process.rank
        if rank is None:
            unnumbered.append(i)
        elif rank not in mains or _order(partials[mains[rank]]) < _order(p):
            mains[rank] = i
    alone: list[int] = []
    if len(unnumbered) > 1 and not mains and all(partials[i].comm[0].size for i in unnumbered):
        # They talk to each other: one training, whose ranks nobody has numbered.
        mains = dict(enumerate(sorted(unnumbered, key=lambda i: partials[i].first_us or 0)))
    elif unnumbered and not mains:
        chosen = max(unnumbered, key=lambda i: (int(partials[i].steps.wall.sum()), -i))
        mains[0] = chosen
        alone = [i for i in unnumbered if i != chosen]
    elif unnumbered:
        alone = unnumbered
    taken = {*mains.values(), *alone}
    for number, i in sorted(mains.items()):
        job.ranks.append(_rank(number, i, partials, parents, taken))
    for i in sorted(alone, key=lambda i: partials[i].first_us or 0):
        other = Job(partials)
        other.ranks.append(_rank(0, i, partials, parents, taken))
        other.partials = other.ranks[0].members
        job.others.append(other)
    mark_waiting(job.ranks)
    return job


def _rank(number: int, i: int, partials: list[Partial], parents: list[list[int]], taken: set[int]) -> Rank:
    """A rank with its processes, which are `taken` from now on.

    Those that train by themselves, and those of another training or another attempt, are not its.
    """
    found = Rank(number, partials[i])
    attempt = attempt_of(partials[i])
    for j, p in enumerate(partials):
        if j != i and (j in taken or attempt_of(p) != attempt):
            continue
        if j == i or i in parents[j] or (p.process.rank == number and not parents[j]):
            p.process.rank = number
            found.members.append(p)
            taken.add(j)
    _find_workers(found)
    return found


def _order(p: Partial) -> tuple[int, int]:
    """Of two processes with one rank, the one to show is that of the later attempt, then the longer one."""
    return attempt_of(p), len(p.steps)


def attempt_of(p: Partial) -> int:
    """How often its launcher had restarted it."""
    return max(0, as_integer((p.process.run or {}).get("attempt"), 0) or 0)


def _used_device(p: Partial) -> bool:
    """Without steps, a process whose device was observed is a rank: a profiler's file need not mark steps."""
    return p.devices is not None and p.devices.best is not None


def _parents(partials: list[Partial]) -> list[list[int]]:
    """For each process, its ancestors among the traced ones."""
    by_key = {p.process.key: i for i, p in enumerate(partials)}
    out: list[list[int]] = []
    for i, p in enumerate(partials):
        chain: list[int] = []
        at = p.process
        while at.ppid is not None:
            up = by_key.get((at.host, at.ppid))
            if up is None or up == i or up in chain:
                break
            chain.append(up)
            at = partials[up].process
        out.append(chain)
    return out


def _loads(member: Partial) -> bool:
    """Whether it says that it makes items or batches: other programs read files too."""
    return any(
        lane["items"] or any(lane["stages"].get(s) for s in ("preprocess", "collate"))
        for lane in member.lanes
    )


def _find_workers(rank: Rank) -> None:
    # As the loader numbers them: one that starts new processes for each epoch has the same workers again.
    batch, worker_of, pid = (rank.main.awaited[AWAITED.index(key)] for key in ("batch", "worker", "pid"))
    numbers = (
        {p: w for p, w in zip(pid.tolist(), worker_of.tolist(), strict=True) if w >= 0} if batch.size else {}
    )
    # Where loading is told by name, a process that only reads files is a compiler, or a helper of one.
    named = rank.main.auto or any(lane["items"] for member in rank.members for lane in member.lanes)
    for member in rank.members:
        own = member is rank.main
        if named and not own and member.process.pid not in numbers and not _loads(member):
            continue
        feeding: dict[int, int] = {}
        for i, lane in enumerate(member.lanes):
            if own and lane["tid"] == rank.main.steps.tid:
                continue
            us = sum(lane["stages"].get(s, 0) for s in _LOADER_STAGES)
            if us and us * 2 >= lane["busy_us"]:
                feeding[i] = us
        # Besides the one that loads, a worker has threads that only pass data on; so does the rank itself.
        if any(member.lanes[i]["items"] for i in feeding):
            feeding = {i: us for i, us in feeding.items() if member.lanes[i]["items"]}
        least = max(feeding.values(), default=0) * _HELPER
        if own:
            least = max(least, float(rank.wall_us.sum()) * _HELPER)
        rank.workers += [Worker(member, member.lanes[i], 0, own) for i, us in feeding.items() if us >= least]
    rank.workers.sort(key=lambda w: (w.partial.first_us or 0, w.partial.process.pid, w.lane["tid"]))
    for number, worker in enumerate(rank.workers):
        worker.number = numbers.get(worker.partial.process.pid, number) if not worker.thread else number
