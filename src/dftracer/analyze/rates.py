"""How well the accelerator is fed, by the definitions of DLIO and MLPerf Storage, and samples per second.

Accelerator utilisation is the time in compute over the time from the start of the second step to the end of
the last, in percent; per epoch, then the mean over epochs, then the mean over ranks.
"""

from __future__ import annotations

import numpy as np

from dftracer.analyze.device_bound import device_shares, used_unseen
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.stages import COMPUTE
from dftracer.load.chunk import MISSING

__all__ = ["accelerator_utilisation", "samples_per_second", "samples_per_step"]


def _epochs(rank: Rank) -> list[np.ndarray]:
    """The steps of each epoch except the first."""
    steps = rank.main.steps
    label = np.where(steps.epoch == MISSING, steps.loop, steps.epoch)
    groups = [np.flatnonzero(label == e) for e in np.unique(label).tolist()]
    return [g[1:] for g in groups if g.size > 1]


def _span_us(rank: Rank, rows: np.ndarray) -> int:
    steps = rank.main.steps
    return int(steps.end[rows[-1]] - steps.start[rows[0]] - steps.evaluation[rows].sum())


def accelerator_utilisation(job: Job) -> float | None:
    """Percent; None if no batches or no compute are annotated, or if a GPU computes and the host launches."""
    shares = []
    for rank in job.ranks:
        compute = rank.main.account[:, [*COMPUTE]].sum(axis=1)
        if rank.main.steps.source != "fetch" or not compute.any():
            continue
        if device_shares(rank) is not None or used_unseen(rank):
            return None
        shares += [float(compute[g].sum()) / max(1, _span_us(rank, g)) for g in _epochs(rank)]
    return round(100 * float(np.mean(shares)), 3) if shares else None


def samples_per_step(rank: Rank) -> float | None:
    """None if items or batches are not annotated."""
    items = sum(int(p.items.size) for p in rank.members) or rank.main.samples_made
    return items / rank.main.batches if items and rank.main.batches else None


def samples_per_second(job: Job) -> float | None:
    """For all ranks together; None if items or batches are not annotated."""
    rate = 0.0
    for rank in job.ranks:
        samples, groups = samples_per_step(rank), _epochs(rank)
        if samples is None or not groups:
            return None
        steps = sum(g.size for g in groups)
        seconds = sum(_span_us(rank, g) for g in groups) / 1e6
        if seconds * 1e6 <= steps:  # but for the rounding of times, all of it is evaluation
            return None
        rate += samples * steps / seconds
    return round(rate, 3) if rate else None
