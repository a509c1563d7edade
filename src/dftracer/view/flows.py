"""What leads to what: a launch to its kernel, items to their batch, a batch to the waiting step."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from dftracer.load.chunk import Ints
from dftracer.view.part import Part
from dftracer.view.run import Run

__all__ = ["batch_of", "flows_between", "flows_of"]

_MOST = 64
_End = tuple[int, int]  # part and span


def _batches(run: Run) -> list[tuple[_End, _End]]:
    """Each batch that some wait names, as (the collation that made it, the wait)."""
    makers: dict[tuple[str, int, int], list[tuple[int, _End]]] = {}
    for i, part in enumerate(run.parts):
        if _traced(part):
            ends = zip(part.start[part.made_span].tolist(), part.made_span.tolist(), strict=True)
            for batch, (start, span) in zip(part.made_batch.tolist(), ends, strict=True):
                key = (part.info["host"], part.info["pid"], batch)
                makers.setdefault(key, []).append((start, (i, span)))
    out: list[tuple[_End, _End]] = []
    for i, part in enumerate(run.parts):
        if not _traced(part):
            continue
        waits = zip(part.wait_span.tolist(), part.wait_batch.tolist(), part.wait_pid.tolist(), strict=True)
        for span, batch, pid in waits:
            made = makers.get((part.info["host"], pid, batch), [])
            # Numbers start over with each pass: it is the latest with that number before the wait ended.
            at = bisect_right(made, int(part.end[span]), key=lambda m: m[0]) - 1
            if at >= 0:
                out.append((made[at][1], (i, span)))
    return out


def _traced(part: Part) -> bool:
    return "wait_span" in part.columns


def _batch_tables(run: Run) -> tuple[dict[_End, list[_End]], dict[_End, list[_End]]]:
    """Collation to waits, and wait to collations; made once for a run."""
    if "batches" in run.memo:
        return run.memo["batches"]  # type: ignore[no-any-return]
    to: dict[_End, list[_End]] = {}
    back: dict[_End, list[_End]] = {}
    for made, wait in _batches(run):
        to.setdefault(made, []).append(wait)
        back.setdefault(wait, []).append(made)
    run.memo["batches"] = to, back
    return to, back


def _edges(run: Run, part: int, span: int) -> list[tuple[str, _End, _End]]:
    p = run.parts[part]
    here = (part, span)
    if not _traced(p):
        return []
    out: list[tuple[str, _End, _End]] = []
    first, last = np.searchsorted(p.launch_from, (span, span + 1))
    out += [("launch", here, (part, int(t))) for t in p.launch_to[first:last].tolist()]
    out += [("launch", (part, int(s)), here) for s in p.launch_from[p.launch_to == span].tolist()]
    made = np.flatnonzero(p.made_span == span)
    if made.size:
        out += [("item", (part, int(s)), here) for s in p.item_span[p.item_of == made[0]].tolist()]
    mine = np.flatnonzero(p.item_span == span)
    out += [("item", here, (part, int(p.made_span[p.item_of[i]]))) for i in mine.tolist()]
    to, back = _batch_tables(run)
    out += [("batch", here, wait) for wait in to.get(here, [])]
    out += [("batch", m, here) for m in back.get(here, [])]
    return out


def flows_of(run: Run, part: int, span: int) -> list[dict[str, Any]]:
    """The arrows at one event, and one step further: an item leads to its batch, and that to a step."""
    near = _edges(run, part, span)
    seen = {(part, span)}
    edges = dict.fromkeys(near)
    for kind, source, target in near:
        for end in (source, target):
            if end not in seen and kind in ("item", "batch"):
                seen.add(end)
                edges.update(dict.fromkeys(_edges(run, *end)))
    return [_arrow(run, *edge) for edge in list(edges)[: 4 * _MOST]]


def _arrow(run: Run, kind: str, source: _End, target: _End) -> dict[str, Any]:
    return {"kind": kind, "from": _end(run, source), "to": _end(run, target)}


def _end(run: Run, end: _End) -> dict[str, Any]:
    part, span = end
    p = run.parts[part]
    row = p.row_of(span)
    return {
        "part": part,
        "span": span,
        "row": int(run.row_at[part]) + row,
        "name": p.pairs[int(p.pair[span])][1],
        "start": int(p.start[span]) - run.base,
        "end": int(p.end[span]) - run.base,
    }


def batch_of(run: Run, part: int, span: int) -> dict[str, Any] | None:
    """The batch that an item, a collation or a wait belongs to."""
    p = run.parts[part]
    if not _traced(p):
        return None
    to, back = _batch_tables(run)
    made: _End | None = None
    item = np.flatnonzero(p.item_span == span)
    if (p.made_span == span).any():
        made = (part, span)
    elif item.size:
        made = (part, int(p.made_span[p.item_of[item[0]]]))
    elif (part, span) in back:
        made = back[part, span][0]
    if made is None:
        return None
    maker = run.parts[made[0]]
    number = int(np.flatnonzero(maker.made_span == made[1])[0])
    lane = run.lane_of(made[0], maker.row_of(made[1]))
    return {
        "number": int(maker.made_batch[number]),
        "maker": "" if lane is None else lane.label,
        "items": int((maker.item_of == number).sum()),
        "made": _end(run, made),
        "waits": [_end(run, w) for w in to.get(made, [])],
    }


def flows_between(run: Run, window: tuple[int, int], rows: list[int], most: int) -> dict[str, Any]:
    """The arrows that begin in a window on some rows; only their number if there are too many."""
    t0, t1 = (run.base + t for t in window)
    found: list[tuple[str, _End, _End]] = []
    total = 0
    shown = set(rows)
    for row in rows:
        p, local = run.place(row)
        part = run.parts[p]
        if not _traced(part):
            continue
        low, high = part.row_span(local)
        a, b = np.searchsorted(part.start[low:high], (t0, t1))
        first, last = np.searchsorted(part.launch_from, (low + int(a), low + int(b)))
        total += int(last - first)
        pairs = zip(part.launch_from[first:last][:most], part.launch_to[first:last][:most], strict=True)
        found += [("launch", (p, int(s)), (p, int(t))) for s, t in pairs]
        inside = _within(part.item_span, low + int(a), low + int(b))
        total += inside.size
        found += [
            ("item", (p, int(part.item_span[i])), (p, int(part.made_span[part.item_of[i]])))
            for i in inside[:most].tolist()
        ]
    edges = ((m, w) for m, waits in _batch_tables(run)[0].items() for w in waits)
    for made, wait in edges:
        end = run.parts[made[0]].end[made[1]]
        if t0 <= end < t1 and _row(run, made) in shown and _row(run, wait) in shown:
            total += 1
            found.append(("batch", made, wait))
    if total > most:
        return {"total": total, "arrows": []}
    arrows = [_arrow(run, *edge) for edge in found]
    return {"total": total, "arrows": [a for a in arrows if a["to"]["row"] in shown]}


def _within(values: Ints, low: int, high: int) -> Ints:
    result: Ints = np.flatnonzero((values >= low) & (values < high))
    return result


def _row(run: Run, end: _End) -> int:
    return int(run.row_at[end[0]]) + run.parts[end[0]].row_of(end[1])
