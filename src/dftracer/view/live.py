"""The last moments of a run in a few numbers: the strip above a page that follows a job."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dftracer.analyze.intervals import total, union
from dftracer.analyze.stages import STAGE_INDEX
from dftracer.load.chunk import Ints
from dftracer.view.kinds import KIND_INDEX
from dftracer.view.ledger_rows import LEDGER, ledger_between
from dftracer.view.part import Part
from dftracer.view.run import Run

__all__ = ["live_numbers"]

_WINDOW_NS = 10_000_000_000
_BODY = ("dataloader", "fetch.block")
_WAIT = STAGE_INDEX["fetch_wait"]
_READ, _WRITE = KIND_INDEX["read"], KIND_INDEX["write"]


def live_numbers(run: Run, window: int = _WINDOW_NS) -> dict[str, Any]:
    """Rates, waiting and the hottest file in the last seconds of the trace."""
    end = run.base + run.length
    begin = max(run.base, end - window)
    length = max(end - begin, 1)
    steps, waits, devices = [], [], []
    moved: Counter[int] = Counter()
    files: Counter[str] = Counter()
    events = 0
    for part in run.parts:
        if part.info["source"] == LEDGER:
            waits.append(float(ledger_between(part, begin, end)[_WAIT]) / length)
            continue
        spans = _spans_since(part, begin)
        events += int(spans.size)
        pair = part.pair[spans]
        bodies = [i for i, key in enumerate(part.pairs) if key[:2] == _BODY]
        count = int(np.isin(pair, bodies).sum()) if bodies else 0
        steps += [count] if count else []
        kind = np.array([k for _, _, k in part.pairs] or [0])[pair]
        for each in (_READ, _WRITE):
            moved[each] += int(part.moved[spans[kind == each]].sum())
        _add_files(files, part, spans)
        if part.info["devices"]:
            devices.append(_device_busy(part, spans, begin) / length)
    seconds = length / 1e9
    hottest = files.most_common(1)
    return {
        "window_s": seconds,
        "ranks": len(steps),
        "steps_per_s": max(steps) / seconds if steps else None,
        "fetch_wait": sum(waits) / len(waits) if waits else None,
        "device_busy": sum(devices) / len(devices) if devices else None,
        "read_per_s": moved[_READ] / seconds,
        "written_per_s": moved[_WRITE] / seconds,
        "hottest": None if not hottest else {"path": hottest[0][0], "ns": hottest[0][1]},
        "events_per_s": events / seconds,
        "end_us": end // 1000,
    }


def _spans_since(part: Part, begin: int) -> Ints:
    found = []
    for row in range(part.rows):
        low, high = part.row_span(row)
        found.append(np.arange(low + int(np.searchsorted(part.end[low:high], begin, side="right")), high))
    return np.concatenate([np.empty(0, np.int64), *found])


def _add_files(files: Counter[str], part: Part, spans: Ints) -> None:
    known = spans[part.path[spans] >= 0]
    if known.size:
        time = np.bincount(part.path[known], part.end[known] - part.start[known])
        for file in np.argsort(-time, kind="stable")[:20].tolist():
            files[part.paths[file]] += int(time[file])


def _device_busy(part: Part, spans: Ints, begin: int) -> int:
    """Time with work on any stream."""
    row = np.searchsorted(part.row_at, spans, side="right") - 1
    mine = spans[np.isin(part.row_tid[row], part.info["devices"])]
    return total(union(np.maximum(part.start[mine], begin), part.end[mine]))
