"""Thousands of ranks from their step rows alone: who is slow, in which stage, when, and together with whom.

Ranks that train together wait for each other, so their steps take equally long. A slow rank shows in its
stages: it takes longer than the others in one of them, and waits less. Every comparison is with the median
of the ranks, which a few slow ones do not move.

Reading is a map over files, on threads here or on a Dask cluster; what is kept of a rank is a few bytes per
step. Both ways end in the same reduction, with the same result.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import Floats
from dftracer.format.trace_names import NoTraces, Paths, find_rows
from dftracer.load.find import here
from dftracer.load.rows import STAGES, RowFile, read_row_file

Matrix = npt.NDArray[np.float32]

# In these a rank waits for others. DDP waits inside backward.
WAITING: Final = ("comm", "sync")
_BACKWARD: Final = STAGES.index("backward")
_OWN: Final = [i for i, s in enumerate(STAGES) if s not in WAITING]

_CHUNK = 64  # files per task
_TASKS_PER_THREAD = 8  # on a cluster, where a task costs about as much as reading twenty files
_SURE = 6.0  # robust standard deviations
_WORTH = 0.005  # of the time of a rank: less is not worth a line
_FEW_WORTH = 0.05  # the same where there are few
_SLOW_STEP = 1.5  # times the usual one
_MAX = 20  # of each kind are listed
_BLOCK = 8  # ranks of a node, if nothing names the nodes
_MIN = 8  # ranks, or groups, for a comparison


@dataclass
class SlowRank:
    rank: int
    stage: str
    seconds: float  # more than the median rank, over the whole run


@dataclass
class SlowStep:
    step: int
    seconds: float  # more than the usual step


@dataclass
class SlowGroup:
    ranks: list[int]
    stage: str
    seconds: float  # more than the median rank, of each of its ranks
    host: str | None = None  # the first, if they are named


@dataclass
class Fleet:
    """All ranks and steps, with what stands out."""

    ranks: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]
    own: Matrix  # rank x step: us without waiting for other ranks; NaN where a rank has no such step
    step_us: Floats  # the median rank, for each step
    stage_us: Floats  # rank x stage: us per step
    hosts: list[str | None]
    runs: list[str]
    slow_ranks: list[SlowRank] = field(default_factory=list)
    slow_steps: list[SlowStep] = field(default_factory=list)
    slow_groups: list[SlowGroup] = field(default_factory=list)
    damaged: int = 0  # files with parts that could not be read

    @property
    def usual_us(self) -> float:
        return float(np.median(self.step_us)) if self.step_us.size else 0.0

    def ledger(self) -> dict[str, float]:
        """Seconds per step of the mean rank, by stage."""
        return {s: float(v) / 1e6 for s, v in zip(STAGES, self.stage_us.mean(axis=0), strict=True)}

    def trend(self) -> dict[str, float]:
        """The usual step of the first and of the last tenth of the run, in seconds; not its first step."""
        steady = self.step_us[1:] if self.step_us.size > 1 else self.step_us
        tenth = max(1, steady.size // 10)
        return {
            "first_s": round(float(np.median(steady[:tenth])) / 1e6, 6),
            "last_s": round(float(np.median(steady[-tenth:])) / 1e6, 6),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "ranks": int(self.ranks.size),
            "steps": int(self.steps.size),
            "slow_ranks": [
                {"rank": r.rank, "stage": r.stage, "seconds": round(r.seconds, 6)} for r in self.slow_ranks
            ],
            "slow_steps": [{"step": s.step, "seconds": round(s.seconds, 6)} for s in self.slow_steps],
            "slow_groups": [
                {"ranks": g.ranks, "stage": g.stage, "seconds": round(g.seconds, 6)} for g in self.slow_groups
            ],
            "step_s": round(self.usual_us / 1e6, 6),
            "ledger": {s: round(v, 6) for s, v in self.ledger().items()},
            "trend": self.trend(),
            "runs": self.runs,
            "damaged_files": self.damaged,
        }


@dataclass
class _Rank:
    """What is kept of one file."""

    rank: int  # -1: not known
    run: str | None
    attempt: int
    host: str | None
    start_us: int
    steps: range | npt.NDArray[np.int64]
    wall: npt.NDArray[np.uint32]
    own: npt.NDArray[np.uint32]
    totals: npt.NDArray[np.int64]  # by stage
    damaged: bool


def _of(file: RowFile, chosen: tuple[int, int] | None) -> _Rank:
    steps = file.column("step")
    if (steps < 0).any():
        steps = np.arange(len(file.steps), dtype=np.int64)
    if chosen is not None:
        wanted = (steps >= chosen[0]) & (steps <= chosen[1])
        file.steps, steps = file.steps[wanted], steps[wanted]
    stages = file.stages
    wall = file.column("wall_us")
    waited = sum(stages[:, STAGES.index(s)] for s in WAITING)
    return _Rank(
        -1 if file.rank is None else file.rank,
        file.run,
        file.attempt or 0,
        file.host,
        int(file.column("start_us")[0]) if len(file.steps) else 0,
        _as_range(steps),
        np.minimum(wall, 0xFFFFFFFF).astype(np.uint32),
        np.minimum(wall - waited, 0xFFFFFFFF).astype(np.uint32),
        stages.sum(axis=0),
        file.damaged > 0,
    )


def _as_range(steps: npt.NDArray[np.int64]) -> range | npt.NDArray[np.int64]:
    """Steps that follow each other, as nearly always, need neither space nor a search."""
    if steps.size and (np.diff(steps) == 1).all():
        return range(int(steps[0]), int(steps[-1]) + 1)
    return steps.copy()


def _read(paths: list[str], chosen: tuple[int, int] | None) -> list[_Rank]:
    found = [_of(read_row_file(path), chosen) for path in paths]
    return [each for each in found if len(each.steps)]


def _read_packed(paths: list[str], chosen: tuple[int, int] | None) -> bytes:
    """In one piece: Dask sends every array for itself, which takes longer than to read them."""
    return pickle.dumps(_read(paths, chosen), protocol=5)


def _chunks(paths: list[str], size: int) -> list[list[str]]:
    return [paths[i : i + size] for i in range(0, len(paths), size)]


def _read_all(
    paths: list[str],
    dask: Any,
    chosen: tuple[int, int] | None,
    tick: Callable[[int, int], None] | None,
) -> Iterable[_Rank]:
    done = 0
    if dask is None:
        chunks = _chunks(paths, _CHUNK)
        with ThreadPoolExecutor(2) as pool:
            for chunk, found in zip(chunks, pool.map(_read, chunks, repeat(chosen)), strict=True):
                done += len(chunk)
                if tick is not None:
                    tick(done, len(paths))
                yield from found
        return
    from dftracer.analyze.analysis import connect  # noqa: PLC0415 - rows need none of the rest

    with connect(dask) as client:
        threads = max(1, sum(client.ncores().values()))
        chunks = _chunks(paths, min(4 * _CHUNK, -(-len(paths) // (_TASKS_PER_THREAD * threads)) or 1))
        # In one graph: a hundred single tasks keep the scheduler busy for longer than the workers.
        futures = client.map(_read_packed, chunks, chosen=chosen, pure=False)
        for chunk, future in zip(chunks, futures, strict=True):
            yield from pickle.loads(future.result())
            future.release()
            done += len(chunk)
            if tick is not None:
                tick(done, len(paths))


def read_fleet(
    paths: Paths,
    dask: Any = None,
    run: str | None = None,
    steps: tuple[int, int] | None = None,
    tick: Callable[[int, int], None] | None = None,
) -> Fleet:
    """The fleet under `paths`, or some of its steps; of several runs the newest, unless `run` names one."""
    files = find_rows(here(paths, heads=True))
    found = list(_read_all(files, dask, steps, tick))
    if not found:
        where = ", ".join(map(str, [paths] if isinstance(paths, (str, os.PathLike)) else paths))
        raise NoTraces(f"no step rows (*.rows) under {where}: only programs with steps have them")
    newest = max(found, key=lambda r: (r.start_us, r.run or ""))
    wanted = newest.run if run is None else run
    runs = sorted({r.run or "" for r in found})
    found = [r for r in found if r.run == wanted]
    if not found:
        raise NoTraces(f"no rows of run {run}; known runs: {', '.join(runs)}")
    # One after the other: what a later attempt did again replaces what an earlier one did.
    found.sort(key=lambda r: (r.rank, r.attempt, r.start_us))
    for number, each in enumerate(found):
        each.rank = number if each.rank < 0 else each.rank
    fleet = _joined(found)
    fleet.runs = [wanted or ""] + [r for r in reversed(runs) if r != (wanted or "")]
    _judge(fleet)
    return fleet


def _joined(found: list[_Rank]) -> Fleet:
    ranks = np.unique(np.array([r.rank for r in found], np.int64))
    steps = _all_steps(found)
    own = np.full((ranks.size, steps.size), np.nan, np.float32)
    wall = np.full((ranks.size, steps.size), np.nan, np.float32)
    totals = np.zeros((ranks.size, len(STAGES)))
    counts = np.zeros(ranks.size)
    hosts: list[str | None] = [None] * ranks.size
    for each in found:
        row = int(np.searchsorted(ranks, each.rank))
        at = _places(steps, each.steps)
        own[row, at], wall[row, at] = each.own, each.wall
        totals[row] += each.totals
        counts[row] += len(each.steps)
        hosts[row] = each.host
    fleet = Fleet(ranks, steps, own, _medians(wall), totals / np.maximum(counts, 1)[:, None], hosts, [])
    fleet.damaged = sum(r.damaged for r in found)
    return fleet


def _all_steps(found: list[_Rank]) -> npt.NDArray[np.int64]:
    spans = {r.steps for r in found if isinstance(r.steps, range)}
    others = [np.unique(r.steps) for r in found if not isinstance(r.steps, range)]
    return np.unique(np.concatenate([*(np.arange(s.start, s.stop) for s in spans), *others]))


def _places(
    steps: npt.NDArray[np.int64], some: range | npt.NDArray[np.int64]
) -> slice | npt.NDArray[np.intp]:
    """Where `some` of the steps are among all."""
    if isinstance(some, range):
        first = int(np.searchsorted(steps, some.start))
        return slice(first, first + len(some))
    return np.searchsorted(steps, some)


def _medians(table: Matrix, columns: int = 256) -> Floats:
    """Of each column; a few at a time, since sorting needs a copy."""
    out = np.empty(table.shape[1])
    for first in range(0, table.shape[1], columns):
        part = table[:, first : first + columns]
        middle = np.nanmedian if np.isnan(part).any() else np.median
        out[first : first + columns] = middle(part, axis=0)
    return out


def _spread(values: Floats) -> float:
    """The standard deviation, as far as a few outliers do not count."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _excess(fleet: Fleet) -> Floats:
    """Rank x stage: us per step beyond the median rank, where the rank itself is the reason.

    A rank that is fast elsewhere waits longer inside backward: that much is not its own.
    """
    beyond = fleet.stage_us - np.median(fleet.stage_us, axis=0)
    others = [i for i in _OWN if i != _BACKWARD]
    beyond[:, _BACKWARD] += np.minimum(beyond[:, others], 0).sum(axis=1)
    beyond[:, [STAGES.index(s) for s in WAITING]] = 0
    return beyond


def _outliers(values: Floats, worth: float) -> npt.NDArray[np.intp]:
    """Which values stand out upwards."""
    if values.size < _MIN:  # too few to know how much they differ anyway
        return np.flatnonzero(values - np.median(values) > worth * _FEW_WORTH / _WORTH)
    return np.flatnonzero(values - np.median(values) > max(_SURE * _spread(values), worth))


def _judge(fleet: Fleet) -> None:
    n = fleet.steps.size
    worth = _WORTH * float(np.median(fleet.stage_us.sum(axis=1)))
    beyond = _excess(fleet)
    fleet.slow_groups = _slow_groups(fleet, beyond, worth)
    # What a rank shares with its group is reported once.
    own = beyond.copy()
    for group in fleet.slow_groups:
        rows = np.searchsorted(fleet.ranks, group.ranks)
        own[rows, STAGES.index(group.stage)] -= group.seconds * 1e6 / n
    slow = [
        SlowRank(int(fleet.ranks[r]), STAGES[s], float(own[r, s]) * n / 1e6)
        for s in _OWN
        for r in _outliers(own[:, s], worth).tolist()
    ]
    fleet.slow_ranks = sorted(slow, key=lambda r: (-r.seconds, r.rank, r.stage))[:_MAX]
    fleet.slow_steps = _slow_steps(fleet)


def _slow_steps(fleet: Fleet) -> list[SlowStep]:
    """Steps that took the median rank much longer; the first one always does."""
    times = fleet.step_us[1:]
    if times.size < _MIN:
        return []
    usual = float(np.median(times))
    slow = np.flatnonzero((times > _SLOW_STEP * usual) & (times - usual > _SURE * _spread(times)))
    found = [SlowStep(int(fleet.steps[i + 1]), float(times[i] - usual) / 1e6) for i in slow.tolist()]
    return sorted(found, key=lambda s: (-s.seconds, s.step))[:_MAX]


def _nodes(fleet: Fleet) -> list[npt.NDArray[np.intp]]:
    """The ranks of each node, in the order of their ranks; blocks of ranks if all have one name, or none."""
    names = [h or "" for h in fleet.hosts]
    if len(set(names)) > 1:
        by_host: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            by_host.setdefault(name, []).append(row)
        return [np.array(rows) for rows in sorted(by_host.values())]
    return [np.arange(i, min(i + _BLOCK, len(names))) for i in range(0, len(names), _BLOCK)]


def _medians_of(nodes: list[npt.NDArray[np.intp]], values: Floats) -> Floats:
    """Of the values of each node; nodes with equally many ranks at once."""
    out = np.empty(len(nodes))
    sizes = np.array([rows.size for rows in nodes])
    for size in np.unique(sizes).tolist():
        same = np.flatnonzero(sizes == size)
        out[same] = np.median(values[np.stack([nodes[i] for i in same.tolist()])], axis=1)
    return out


def _slow_groups(fleet: Fleet, beyond: Floats, worth: float) -> list[SlowGroup]:
    """Nodes whose ranks are slow in the same stage; neighbours are one group, a rack."""
    nodes = [rows for rows in _nodes(fleet) if rows.size > 1]
    if len(nodes) < _MIN:
        return []
    out: list[SlowGroup] = []
    for s in _OWN:
        of_node = _medians_of(nodes, beyond[:, s])
        slow = _outliers(of_node, worth)
        for together in np.split(slow, np.flatnonzero(np.diff(slow) > 1) + 1):
            if not together.size:
                continue
            rows = np.concatenate([nodes[i] for i in together.tolist()])
            lost = float(np.median(beyond[rows, s])) * fleet.steps.size / 1e6
            ranks = sorted(fleet.ranks[rows].tolist())
            out.append(SlowGroup(ranks, STAGES[s], lost, fleet.hosts[int(rows[0])]))
    return sorted(out, key=lambda g: (-g.seconds * len(g.ranks), g.ranks[0], g.stage))[:_MAX]
