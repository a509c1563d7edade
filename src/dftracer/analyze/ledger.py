"""The step ledger as tables: where each step's wall time went, to the last microsecond."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.analyze.job import Job, Rank
from dftracer.analyze.stages import STAGE_INDEX, STAGES
from dftracer.load.chunk import MISSING, Ints

__all__ = ["ledger", "phase_rows", "step_rows", "unseen_stages", "visible_stages"]


def _seconds(row: Ints, seen: frozenset[str] | None = None) -> dict[str, float | None]:
    """Stage to seconds; None if a stage could not be seen."""
    return {
        s: None if seen is not None and s not in seen and not v else round(int(v) / 1e6, 6)
        for s, v in zip(STAGES, row, strict=True)
    }


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


def _total(rank: Rank) -> dict[str, float | None]:
    return _seconds(rank.main.account.sum(axis=0), visible_stages(rank))


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
