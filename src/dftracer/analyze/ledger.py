"""The step ledger as rows: where each step's wall time went, to the last microsecond.

For comparing runs, the steady steps come in a compact form. With several ranks, such a step is represented by
the rank that the others wait for: the one with the most work of its own in it. The choice does not depend on
one number for the whole run, so two equal runs are not represented by different ranks just because of noise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dftracer.analyze.job import Job, Rank
from dftracer.analyze.stages import STAGE_INDEX, STAGES
from dftracer.load.chunk import MISSING, Ints

MAX_STEPS: Final = 4096  # in the compact form, in runs of _CONSECUTIVE ones
_SHORT: Final = 0.5  # a rank with less than this share of the steps ended early and is left out
_SEED: Final = 20
_CONSECUTIVE: Final = 32


def ledger(job: Job) -> dict[str, Any]:
    """The ledger of the whole job, per rank, and per rank and step."""
    slowest = job.slowest
    zero = np.zeros(len(STAGES), np.int64)
    return {
        "stages": list(STAGES),
        "rank": None if slowest is None else slowest.number,
        "total": _seconds(zero) if slowest is None else _total(slowest),
        "ranks": {str(r.number): _total(r) for r in job.ranks},
        "outside_steps": {
            str(r.number): {
                **_seconds(r.main.outside),
                "evaluation": round(r.main.phases.evaluation_us / 1e6, 6),
            }
            for r in job.ranks
        },
        "wait_explained": {
            str(r.number): {k: round(v / 1e6, 6) for k, v in r.wait_stages_us().items()} for r in job.ranks
        },
        "source": None if slowest is None else slowest.main.steps.source,
        "steps": [row for r in job.ranks for row in step_rows(r)],
    }


def _total(rank: Rank) -> dict[str, float | None]:
    return _seconds(rank.main.account.sum(axis=0), visible_stages(rank))


def _seconds(row: Ints, seen: frozenset[str] | None = None) -> dict[str, float | None]:
    """Stage to seconds; None if a stage could not be seen."""
    return {
        s: None if seen is not None and s not in seen and not v else round(int(v) / 1e6, 6)
        for s, v in zip(STAGES, row, strict=True)
    }


def step_rows(rank: Rank) -> list[dict[str, Any]]:
    """One row per step: labels, start (s from the rank's first step), wall, stages."""
    steps = rank.main.steps
    seen = visible_stages(rank)
    wall = steps.wall
    waited_for = rank.waited_for
    rows: list[dict[str, Any]] = []
    for i in range(len(steps)):
        label, epoch = int(steps.step[i]), int(steps.epoch[i])
        rows.append(
            {
                "rank": rank.number,
                "index": i,
                "step": None if label == MISSING else label,
                "epoch": None if epoch == MISSING else epoch,
                "start_s": round((int(steps.start[i]) - int(steps.start[0])) / 1e6, 6),
                "wall_s": round(int(wall[i]) / 1e6, 6),
                "stages": _seconds(rank.main.account[i], seen),
                "waited_for": waited_for.get(i),
            }
        )
    return rows


def phase_rows(rank: Rank) -> dict[str, dict[str, float]]:
    """Seconds and share of the run; they add up to it."""
    p = rank.main.phases
    run = max(1, p.run_us)
    pieces = {
        "steady": p.steady_us,
        "startup": p.imports_us + p.startup_us + p.restarts_us,
        "compilation": p.compilation_us,
        "evaluation": p.evaluation_us,
        "outside": p.outside_us + p.tail_us,
        "profiled": p.profiled_us,
    }
    rows = {k: {"seconds": round(us / 1e6, 6), "share": round(us / run, 6)} for k, us in pieces.items()}
    rows["startup"]["imports_s"] = round(p.imports_us / 1e6, 6)
    rows["startup"]["setup_s"] = round(p.before_us / 1e6, 6)
    rows["startup"]["warm_up_s"] = round((p.startup_us - p.before_us) / 1e6, 6)
    rows["startup"]["restarts_s"] = round(p.restarts_us / 1e6, 6)
    rows["outside"]["between_s"] = round((p.outside_us + p.tail_us - p.after_us) / 1e6, 6)
    rows["outside"]["after_s"] = round(p.after_us / 1e6, 6)
    rows["outside"]["checkpoint_s"] = round(int(rank.main.outside[STAGE_INDEX["checkpoint"]]) / 1e6, 6)
    return rows


def visible_stages(rank: Rank) -> frozenset[str] | None:
    """The stages that automatic tracing saw; None with manual annotations, which imply that the rest is 0."""
    if not rank.main.auto:
        return None
    always = {"sync", "own_code", "other", "unexplained"}
    return frozenset(always.union(*(p.seen for p in rank.members)))


def unseen_stages(rank: Rank) -> list[str]:
    """The stages that automatic tracing could not see."""
    seen = visible_stages(rank)
    return [] if seen is None else [s for s in STAGES if s not in seen]


def steady_steps(job: Job) -> dict[str, Any] | None:
    """Microseconds per step and stage; None if there are no steps.

    From more than `MAX_STEPS` steps, some consecutive ones are drawn from each of many equal stretches, with
    a fixed seed: a regular choice could miss, or hit, everything that a program does at regular intervals,
    and single steps would not show that neighbours make up for each other (workers that take turns).
    """
    most = max((len(r.main.steps) for r in job.ranks), default=0)
    ranks = [r for r in job.ranks if len(r.main.steps) >= max(1, _SHORT * most)]
    if not ranks:
        return None
    account, wall, steady = _critical(ranks)
    rows = _chosen(np.flatnonzero(steady))
    account, wall = account[rows], wall[rows]
    seen = _seen(ranks)
    used = account.any(axis=0)
    return {
        "ranks": len(ranks),
        "steps": int(steady.sum()),
        "all_steps": int(steady.size),
        "index": rows.tolist(),
        "wall_us": wall.tolist(),
        "stages_us": {s: account[:, i].tolist() for i, s in enumerate(STAGES) if used[i]},
        "not_seen": [s for i, s in enumerate(STAGES) if seen is not None and s not in seen and not used[i]],
    }


def _critical(ranks: list[Rank]) -> tuple[Ints, Ints, np.ndarray]:
    """Stages and wall time of each step, for the rank that finishes its own work last; which are steady."""
    n = min(len(r.main.steps) for r in ranks)
    together = any(r.waiting_us.any() for r in ranks)
    first = ranks[0]
    account, wall = first.main.account[:n].copy(), first.wall_us[:n].copy()
    steady = first.main.steps.steady[:n].copy()
    work = wall - _away(first, together)[:n]
    for rank in ranks[1:]:
        own = rank.wall_us[:n] - _away(rank, together)[:n]
        later = own > work
        account[later], wall[later], work[later] = (
            rank.main.account[:n][later],
            rank.wall_us[:n][later],
            own[later],
        )
        steady &= rank.main.steps.steady[:n]
    return account, wall, steady


def _away(rank: Rank, together: bool) -> Ints:
    return rank.waiting_us if together else rank.stage_us("comm")


def _chosen(rows: np.ndarray) -> np.ndarray:
    if rows.size <= MAX_STEPS:
        return rows
    edges = np.linspace(0, rows.size, MAX_STEPS // _CONSECUTIVE + 1).astype(np.int64)
    starts = np.random.default_rng(_SEED).integers(edges[:-1], edges[1:] - _CONSECUTIVE + 1)
    chosen: np.ndarray = rows[(starts[:, None] + np.arange(_CONSECUTIVE)).ravel()]
    return chosen


def _seen(ranks: list[Rank]) -> frozenset[str] | None:
    known = [visible_stages(r) for r in ranks]
    by_rank = [k for k in known if k is not None]
    return frozenset().union(*by_rank) if len(by_rank) == len(known) else None
