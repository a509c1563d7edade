"""Wording shared by findings and the head of a report."""

from __future__ import annotations

from dftracer.analyze.job import Rank
from dftracer.analyze.thresholds import MAJORITY

__all__ = ["STAGE_WORDS", "input_advice", "input_words", "ordinal", "short", "stage_words"]

STAGE_WORDS = {
    "fetch_wait": "waiting for data",
    "read": "storage reads",
    "preprocess": "preprocessing",
    "collate": "collating",
    "transfer": "transfer to the device",
    "comm": "communication",
    "checkpoint": "checkpointing",
    "compute": "compute",
    "optimizer": "the optimizer",
    "other": "other annotated work",
    "unexplained": "no annotated stage",
    "idle": "idle workers",
    "unseen": "work that is not visible",
}

_HELPS = {
    "read": "storage is the slow part: fewer and larger reads, a faster or local copy of the data, or more"
    " loader workers",
    "preprocess": "preprocessing is the slow part: make it cheaper, do it once and store the result, or use"
    " more loader workers",
    "collate": "collating is the slow part: collate in loader workers, avoid copies, use larger contiguous"
    " samples",
    "idle": "the workers are idle while the loop waits: raise prefetch_factor, use persistent_workers, look"
    " at the transfer between processes (large tensors, pickling)",
}
_SEE_IT = "annotate the dataset (ai.data.item, ai.data.preprocess) to see what the loader does"


def stage_words(stage: str) -> str:
    """A stage in plain words."""
    return STAGE_WORDS.get(stage, stage.replace("_", " "))


def short(seconds: float) -> str:
    """A duration with a sensible number of digits: never `0.00 s`."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    if seconds >= 0.01:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-5 else "under 0.01 ms"


def ordinal(n: int) -> str:
    """`1st`, `2nd`, `20th`."""
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def input_words(stages: dict[str, float]) -> str:
    """What the wait for data consisted of: `mostly` needs a majority, otherwise the two largest are named."""
    whole = sum(stages.values())
    if whole <= 0:
        return ""
    order = sorted(stages, key=lambda s: (-round(stages[s], 4), s))
    first = order[0]
    if first in {"unseen", "fetch_wait"} and stages[first] > MAJORITY * whole:
        return "; what the loader did is not visible"
    if stages[first] > MAJORITY * whole:
        return f" (mostly {stage_words(first)})"
    shares = [f"{stage_words(s)} {100 * stages[s] / whole:.0f} %" for s in order[:2]]
    return f" ({' and '.join(shares)} of it)"


def input_advice(rank: Rank, stages: dict[str, float]) -> str:
    """What helps against waiting for data; says nothing about workers if there are none."""
    worst = max(stages, key=lambda s: (stages[s], s)) if stages else "unseen"
    helps = _HELPS.get(worst, _SEE_IT)
    return helps if rank.workers else helps.replace("more loader workers", "loader workers")
