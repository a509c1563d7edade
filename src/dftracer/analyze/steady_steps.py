"""The steady steps of a run in a compact form, for comparing runs.

With several ranks, a step is represented by the rank that the others wait for: the one with the most work of
its own in that step. The choice does not depend on one number for the whole run, so two equal runs are not
represented by different ranks just because of noise.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from dftracer.analyze.job import Job, Rank
from dftracer.analyze.ledger import visible_stages
from dftracer.analyze.stages import STAGES
from dftracer.load.chunk import Ints

__all__ = ["MOST_STEPS", "steady_steps"]

MOST_STEPS: Final = 4096
_SHORT = 0.5  # a rank with less than this share of the steps ended early and is left out
_SEED: Final = 20
_CONSECUTIVE: Final = 32


def steady_steps(job: Job) -> dict[str, Any] | None:
    """Microseconds per step and stage; None if there are no steps.

    From more than `MOST_STEPS` steps, some consecutive ones are drawn from each of many equal stretches, with
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
    if rows.size <= MOST_STEPS:
        return rows
    edges = np.linspace(0, rows.size, MOST_STEPS // _CONSECUTIVE + 1).astype(np.int64)
    starts = np.random.default_rng(_SEED).integers(edges[:-1], edges[1:] - _CONSECUTIVE + 1)
    chosen: np.ndarray = rows[(starts[:, None] + np.arange(_CONSECUTIVE)).ravel()]
    return chosen


def _seen(ranks: list[Rank]) -> frozenset[str] | None:
    known = [visible_stages(r) for r in ranks]
    told = [k for k in known if k is not None]
    return frozenset().union(*told) if len(told) == len(known) else None
