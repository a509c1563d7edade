"""The step ledger as tables: where each step's wall time went, to the last microsecond."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.analyze.job import Job, Rank
from dftracer.analyze.stages import STAGES
from dftracer.load.chunk import MISSING, Ints

__all__ = ["ledger", "step_rows"]


def _seconds(row: Ints) -> dict[str, float]:
    return {s: round(int(v) / 1e6, 6) for s, v in zip(STAGES, row, strict=True)}


def step_rows(rank: Rank) -> list[dict[str, Any]]:
    """One row per step: labels, start (s from the rank's first step), wall, stages."""
    steps = rank.main.steps
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
                "wall_s": round(int(steps.end[i] - steps.start[i]) / 1e6, 6),
                "stages": _seconds(rank.main.account[i]),
            }
        )
    return rows


def ledger(job: Job) -> dict[str, Any]:
    """The account of the whole job, per rank, and per rank and step."""
    slowest = job.slowest
    zero = np.zeros(len(STAGES), np.int64)
    return {
        "stages": list(STAGES),
        "rank": None if slowest is None else slowest.number,
        "total": _seconds(zero if slowest is None else slowest.main.account.sum(axis=0)),
        "ranks": {str(r.number): _seconds(r.main.account.sum(axis=0)) for r in job.ranks},
        "outside_steps": {str(r.number): _seconds(r.main.outside) for r in job.ranks},
        "wait_explained": {
            str(r.number): {k: round(v / 1e6, 6) for k, v in r.wait_stages_us().items()} for r in job.ranks
        },
        "source": None if slowest is None else slowest.main.steps.source,
        "steps": [row for r in job.ranks for row in step_rows(r)],
    }
