"""The steps of a run with their stages, and its analysis results; cached like the parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.analyze import STAGES, Analysis, analyze
from dftracer.analyze.ledger import visible_stages
from dftracer.analyze.rates import samples_per_step
from dftracer.load.chunk import MISSING
from dftracer.load.trace import Trace
from dftracer.view.part import Part

__all__ = ["find_steps", "step_part", "step_rows", "step_window"]


def find_steps(trace: Trace) -> Part:
    """Analyse a run and keep what the page shows."""
    return step_part(analyze(trace, run="all"))


def step_part(analysis: Analysis) -> Part:
    """Columns `RANK.start` and so on; times are ns since the epoch."""
    ranks = []
    columns: dict[str, Any] = {}
    for rank in analysis.job.ranks:
        steps = rank.main.steps
        n = rank.number
        seen = visible_stages(rank)
        ranks.append(
            {
                "rank": n,
                "steps": len(steps),
                "workers": len(rank.workers),
                "unseen": [] if seen is None else [s for s in STAGES if s not in seen],
                "source": steps.source,
                "median_us": steps.usual_us,
            }
        )
        columns[f"{n}.start"] = steps.start * 1000
        columns[f"{n}.end"] = steps.end * 1000
        columns[f"{n}.wall"] = steps.wall
        columns[f"{n}.step"] = steps.step
        columns[f"{n}.epoch"] = steps.epoch
        columns[f"{n}.stages"] = rank.main.account
    samples = [samples_per_step(rank) for rank in analysis.job.ranks]
    info = {
        "source": "steps",
        "ranks": ranks,
        "head": list(analysis.head),
        "run_s": analysis.run_s,
        "samples_per_step": None if not samples or None in samples else sum(filter(None, samples)),
    }
    return Part(info, columns=columns)


def step_rows(steps: Part, base: int, rank: int, offset: int, limit: int) -> dict[str, Any]:
    """Some rows of a rank's steps, and the shape of all of them."""
    known = next((r for r in steps.info["ranks"] if r["rank"] == rank), None)
    if known is None:
        return {"rank": rank, "total": 0, "rows": [], "shape": None, "stages": list(STAGES)}
    c = {
        name: steps.columns[f"{rank}.{name}"] for name in ("start", "end", "wall", "step", "epoch", "stages")
    }
    total = int(c["start"].size)
    offset = max(0, min(offset, total - 1))
    rows = []
    for i in range(offset, min(offset + limit, total)):
        label, epoch = int(c["step"][i]), int(c["epoch"][i])
        rows.append(
            {
                "index": i,
                "step": None if label == MISSING else label,
                "epoch": None if epoch == MISSING else epoch,
                "start": int(c["start"][i]) - base,
                "end": int(c["end"][i]) - base,
                "wall_us": int(c["wall"][i]),
                "stages_us": c["stages"][i].tolist(),
            }
        )
    return {
        **known,
        "total": total,
        "rows": rows,
        "shape": _shape(c, known["median_us"]),
        "stages": list(STAGES),
    }


def _shape(c: dict[str, Any], median_us: float, most: int = 240) -> dict[str, Any] | None:
    """The wall time of the steps in a few groups, for the strip above the rows."""
    n = int(c["wall"].size)
    if n == 0:
        return None
    edges = np.linspace(0, n, min(n, most) + 1).astype(np.int64)
    return {
        "first": edges[:-1].tolist(),
        "max_us": np.maximum.reduceat(c["wall"], edges[:-1]).tolist(),
        "median_us": median_us,
    }


def step_window(steps: Part | None, base: int, number: int) -> dict[int, tuple[int, int]]:
    """For each rank, the time of its step with that label, or with that index if steps have no labels."""
    out: dict[int, tuple[int, int]] = {}
    for each in steps.info["ranks"] if steps is not None else ():
        assert steps is not None
        rank = each["rank"]
        label = steps.columns[f"{rank}.step"]
        at = np.flatnonzero(label == number)
        if at.size == 0 and (label == MISSING).all() and 0 <= number < label.size:
            at = np.array([number])
        if at.size:
            start, end = (int(steps.columns[f"{rank}.{c}"][at[0]]) - base for c in ("start", "end"))
            out[rank] = (start, end)
    return out
