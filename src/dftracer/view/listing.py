"""The events of a window as a list, for readers who cannot use the picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.load.chunk import Ints
from dftracer.view.details import brief
from dftracer.view.ledger_rows import LEDGER
from dftracer.view.run import Run, Window

__all__ = ["list_events"]

_MOST = 200


def list_events(run: Run, window: Window, rows: list[int], hidden: frozenset[str]) -> dict[str, Any]:
    """The longest events that overlap a window on some rows, in chronological order."""
    t0, t1 = (run.base + t for t in window)
    total = 0
    lengths: list[Ints] = []
    places: list[tuple[int, Ints]] = []
    for row in rows:
        p, local = run.place(row)
        part = run.parts[p]
        if part.info["source"] == LEDGER:
            continue
        low, high = part.row_span(local)
        first = low + int(np.searchsorted(part.end[low:high], t0, side="right"))
        last = low + int(np.searchsorted(part.start[low:high], t1, side="left"))
        spans = np.arange(first, last)
        if hidden:
            visible = np.array([cat not in hidden for cat, _, _ in part.pairs], bool)
            spans = spans[visible[part.pair[first:last]]]
        total += int(spans.size)
        length = part.end[spans] - part.start[spans]
        if spans.size > _MOST:
            best = np.argpartition(-length, _MOST)[:_MOST]
            spans, length = spans[best], length[best]
        lengths.append(length)
        places.append((p, spans))
    if not places:
        return {"total": 0, "events": []}
    order = np.argsort(-np.concatenate(lengths), kind="stable")[:_MOST]
    parts = np.concatenate([np.full(s.size, p) for p, s in places])
    spans = np.concatenate([s for _, s in places])
    events = [brief(run, int(parts[i]), int(spans[i])) for i in order.tolist()]
    return {"total": total, "events": sorted(events, key=lambda e: (e["start"], -e["length"]))}
