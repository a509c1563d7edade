"""The last moments of a run in a few numbers: the strip above a page that follows a job."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.analyze.stages import STAGE_INDEX
from dftracer.view.kinds import KIND_INDEX
from dftracer.view.ledger_rows import LEDGER, ledger_between
from dftracer.view.run import Run

__all__ = ["live_numbers"]

_WINDOW_NS = 10_000_000_000
_BODY = ("dataloader", "fetch.block")
_WAIT = STAGE_INDEX["fetch_wait"]


def live_numbers(run: Run, window: int = _WINDOW_NS) -> dict[str, Any]:
    """Steps per second, waiting for the loader and I/O in the last seconds that the trace knows of."""
    end = run.base + run.length
    begin = max(run.base, end - window)
    length = max(end - begin, 1)
    steps, waits, read, written, events = [], [], 0, 0, 0
    for part in run.parts:
        if part.info["source"] == LEDGER:
            told = ledger_between(part, begin, end)
            waits.append(float(told[_WAIT]) / length)
            continue
        bodies = [i for i, pair in enumerate(part.pairs) if pair[:2] == _BODY]
        kinds = np.array([k for _, _, k in part.pairs] or [0])
        count = 0
        for row in range(part.rows):
            low, high = part.row_span(row)
            first = low + int(np.searchsorted(part.end[low:high], begin, side="right"))
            pair = part.pair[first:high]
            events += int(pair.size)
            count += int(np.isin(pair, bodies).sum()) if bodies else 0
            moved, kind = part.moved[first:high], kinds[pair]
            read += int(moved[kind == KIND_INDEX["read"]].sum())
            written += int(moved[kind == KIND_INDEX["write"]].sum())
        if count:
            steps.append(count)
    seconds = length / 1e9
    return {
        "window_s": seconds,
        "ranks": len(steps),
        "steps_per_s": max(steps) / seconds if steps else None,
        "fetch_wait": sum(waits) / len(waits) if waits else None,
        "read_per_s": read / seconds,
        "written_per_s": written / seconds,
        "events_per_s": events / seconds,
        "end_us": end // 1000,
    }
