"""One event: what the trace says about it, its parents, its children, and what it is linked with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.load._scan import Scanner
from dftracer.load.chunk import INT_COLUMNS, MISSING, Chunk, Ints
from dftracer.view.flows import batch_of, flows_of
from dftracer.view.kinds import KIND_INDEX, KINDS
from dftracer.view.part import Part
from dftracer.view.run import Run

__all__ = ["brief", "children_of", "event_at", "event_details", "parents_of"]

_SLACK_NS = 1000
_MOST = 100
_DEEPER = 4
_MOST_LOOKED_AT = 2000
_HIDDEN = {"id", "pid", "tid", "ts", "dur", "p_idx", "level"}


def brief(run: Run, part: int, span: int) -> dict[str, Any]:
    """What a list shows about an event, and where it is."""
    p = run.parts[part]
    cat, name, kind = p.pairs[int(p.pair[span])]
    row = p.row_of(span)
    lane = run.lane_of(part, row)
    return {
        "part": part,
        "span": span,
        "row": int(run.row_at[part]) + row,
        "lane": "" if lane is None else lane.label,
        "rank": None if lane is None else lane.rank,
        "name": name,
        "cat": cat,
        "kind": KINDS[kind],
        "start": int(p.start[span]) - run.base,
        "length": int(p.end[span]) - int(p.start[span]),
    }


def parents_of(part: Part, span: int) -> list[int]:
    """The spans around a span, the innermost first."""
    row = part.row_of(span)
    start, end = int(part.start[span]), int(part.end[span])
    tid = part.row_tid[row]
    out = []
    for above in range(row - 1, -1, -1):
        if part.row_tid[above] != tid:
            break
        low, high = part.row_span(above)
        at = low + int(np.searchsorted(part.start[low:high], start, side="right")) - 1
        if at >= low and int(part.end[at]) + _SLACK_NS >= end and int(part.end[at]) > start:
            out.append(at)
    return out


def children_of(part: Part, span: int) -> Ints:
    """The spans directly inside a span.

    They are on the next row, except those that a crossing span has pushed further down.
    """
    row = part.row_of(span)
    found: list[int] = []
    for below in range(row + 1, min(row + 1 + _DEEPER, part.rows)):
        if part.row_tid[below] != part.row_tid[row]:
            break
        low, high = part.row_span(below)
        a, b = np.searchsorted(part.start[low:high], (int(part.start[span]), int(part.end[span])))
        if b - a > _MOST_LOOKED_AT and below > row + 1:
            break
        inside = range(low + int(a), low + int(b))
        found += (
            inside if b - a > _MOST_LOOKED_AT else (s for s in inside if parents_of(part, s)[:1] == [span])
        )
    result: Ints = np.array(found, np.int64)
    return result


def event_at(run: Run, row: int, t: int, reach: int) -> dict[str, Any] | None:
    """The event on a row at a moment, or the nearest one within reach."""
    p, local = run.place(row)
    part = run.parts[p]
    low, high = part.row_span(local)
    if low == high:
        return None
    moment = run.base + t
    after = low + int(np.searchsorted(part.start[low:high], moment, side="right"))
    near = [i for i in (after - 1, after) if low <= i < high]
    best = min(near, key=lambda i: max(int(part.start[i]) - moment, moment - int(part.end[i]), 0))
    away = max(int(part.start[best]) - moment, moment - int(part.end[best]), 0)
    return brief(run, p, best) if away <= reach else None


def event_details(run: Run, part: int, span: int) -> dict[str, Any]:
    """Everything known about an event."""
    p = run.parts[part]
    if not 0 <= span < len(p):
        raise KeyError(f"no event {span}")
    out = brief(run, part, span)
    inside = children_of(p, span)
    longest = inside[np.argsort(-(p.end[inside] - p.start[inside]), kind="stable")][:_MOST]
    path = int(p.path[span])
    out.update(
        path=None if path < 0 else p.paths[path],
        bytes=int(p.moved[span]) or None,
        args=_args(run, p, span),
        parents=[brief(run, part, s) for s in parents_of(p, span)],
        children=[brief(run, part, int(s)) for s in sorted(longest.tolist())],
        children_total=int(inside.size),
        self=out["length"] - int((p.end[inside] - p.start[inside]).sum()),
        flows=flows_of(run, part, span),
        batch=batch_of(run, part, span),
        pid=p.info["pid"],
        tid=int(p.row_tid[p.row_of(span)]),
        host=p.info["host"],
        file=p.info["file"],
    )
    out["operator"], out["kernels"] = _device_side(run, part, span, out)
    return out


def _device_side(
    run: Run, part: int, span: int, told: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The operator behind a kernel or launch, or the kernels launched by an operator, launch or phase."""
    p = run.parts[part]
    operator = KIND_INDEX["operator"]
    of_kind = [k for _, _, k in p.pairs]
    calls = p.launch_from[p.launch_to == span].tolist() if p.launch_to.size else []
    around = [s for call in calls for s in parents_of(p, call)] or parents_of(p, span)
    found = next((s for s in around if of_kind[int(p.pair[s])] == operator), None)
    kernels: list[int] = []
    if not calls and p.launch_from.size and told["row"] >= 0:
        row = p.row_of(span)
        same = np.flatnonzero(p.row_tid == p.row_tid[row])
        for each in same[same >= row].tolist():
            low, high = p.row_span(each)
            a, b = np.searchsorted(p.start[low:high], (int(p.start[span]), int(p.end[span]) + 1))
            first, last = np.searchsorted(p.launch_from, (low + int(a), low + int(b)))
            kernels += p.launch_to[first:last].tolist()
    return (
        None if found is None else brief(run, part, found),
        [brief(run, part, k) for k in sorted(kernels, key=lambda k: int(p.start[k]))[:_MOST]],
    )


def _args(run: Run, part: Part, span: int) -> dict[str, Any]:
    """The arguments as the trace file has them."""
    file = Path(part.info["file"])
    if part.info["source"] != "trace" or not file.is_file():
        return {}
    cat, name, _ = part.pairs[int(part.pair[span])]
    ts = int(part.start[span]) // 1000
    tid = int(part.row_tid[part.row_of(span)])
    best: dict[str, Any] = {}
    off = None
    for candidate in _files_of(file):
        scanner = Scanner(candidate, 1, 1 << 20, ts=(ts, ts), names=(name,))
        for raw in scanner:
            chunk = Chunk(raw)
            for i in range(chunk.rows):
                if chunk.has("tid") and int(chunk.ints("tid")[i]) != tid:
                    continue
                if cat and scanner.dictionary("cat")[int(chunk.codes("cat")[i])] != cat:
                    continue
                away = abs(int(chunk.ints("dur")[i]) * 1000 - int(part.end[span] - part.start[span]))
                if off is None or away < off:
                    off, best = away, _row_args(chunk, i)
    return best


def _files_of(file: Path) -> list[Path]:
    """A trace and its other parts."""
    from dftracer.format.files import find_files, part_of  # noqa: PLC0415 - needed only on a click

    stem = part_of(file)[0]
    return [f for f in find_files([file.parent]) if f.parent == file.parent and part_of(f)[0] == stem]


def _row_args(chunk: Chunk, row: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for column in INT_COLUMNS:
        if column not in _HIDDEN and chunk.has(column):
            value = int(chunk.ints(column)[row])
            if value != MISSING:
                out[column] = value
    rest = chunk.args_text(row)
    if rest:
        try:
            more = json.loads(rest)
        except (ValueError, RecursionError):
            more = {"args": rest}
        out.update(more if isinstance(more, dict) else {"args": more})
    return {k: v for k, v in out.items() if k not in {"hhash", "fhash"}}
