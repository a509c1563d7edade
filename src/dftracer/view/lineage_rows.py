"""Which items went into which batch, and which step waited for it: as far as one process knows."""

from __future__ import annotations

import numpy as np

from dftracer.analyze.lineage import AWAITED, MADE
from dftracer.load.chunk import MISSING, Ints
from dftracer.view.part import Part

__all__ = ["add_lineage"]


def add_lineage(part: Part, found: dict[str, list[Ints]], place: Ints) -> None:
    """Add the columns of waits, batches and items; `place` says where each span that was read is now."""
    nothing = np.empty(0, np.int64)
    for name in ("wait_span", "wait_batch", "wait_pid", "wait_worker"):
        part.columns[name] = nothing
    for name in ("made_span", "made_batch", "item_span", "item_of"):
        part.columns[name] = nothing
    if found["wait"]:
        table = np.concatenate(found["wait"], axis=1)
        pid = table[AWAITED.index("pid")]
        part.columns["wait_span"] = place[table[0]]
        part.columns["wait_batch"] = table[AWAITED.index("batch")]
        part.columns["wait_pid"] = np.where(pid == MISSING, part.info["pid"], pid)
        part.columns["wait_worker"] = np.where(
            table[AWAITED.index("worker")] == MISSING, -1, table[AWAITED.index("worker")]
        )
    if found["collate"]:
        table = np.concatenate(found["collate"], axis=1)
        span = place[table[0]]
        order = np.argsort(part.start[span], kind="stable")
        part.columns["made_span"] = span[order]
        part.columns["made_batch"] = table[MADE.index("batch")][order]
        _add_items(part)


def _add_items(part: Part) -> None:
    """The items of a batch are those that its thread began since the batch before."""
    item_pairs = [i for i, (cat, name, _) in enumerate(part.pairs) if (cat, name) == ("data", "item")]
    items = np.flatnonzero(np.isin(part.pair, item_pairs))
    if items.size == 0:
        return
    tid_of = part.row_tid[np.searchsorted(part.row_at, items, side="right") - 1]
    made = part.made_span
    made_tid = part.row_tid[np.searchsorted(part.row_at, made, side="right") - 1]
    spans, owners = [], []
    for tid in np.unique(made_tid).tolist():
        batches = np.flatnonzero(made_tid == tid)
        mine = items[tid_of == tid]
        # An item belongs to the first batch that ends after it began.
        which = np.searchsorted(part.end[made[batches]], part.start[mine], side="right")
        inside = which < batches.size
        spans.append(mine[inside])
        owners.append(batches[which[inside]])
    part.columns["item_span"] = np.concatenate(spans)
    part.columns["item_of"] = np.concatenate(owners)
