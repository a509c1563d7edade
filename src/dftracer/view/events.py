"""Events on request: one with everything around it, those in a window, those that match a search."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.load._scan import Scanner
from dftracer.load.chunk import INT_COLUMNS, MISSING, Chunk, Ints, uint8s
from dftracer.view.drawn import KIND_INDEX, KINDS, DrawnProcess
from dftracer.view.reading import LEDGER
from dftracer.view.run import Run, Window

# --- One event: what the trace says about it, its parents, its children, and what it is linked with


_SLACK_NS = 1000
_MAX_CHILDREN = 100
_DEEPER = 4
_MAX_LOOKED_AT = 2000
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


def parents_of(drawn: DrawnProcess, span: int) -> list[int]:
    """The spans around a span, the innermost first."""
    row = drawn.row_of(span)
    start, end = int(drawn.start[span]), int(drawn.end[span])
    tid = drawn.row_tid[row]
    out = []
    for above in range(row - 1, -1, -1):
        if drawn.row_tid[above] != tid:
            break
        low, high = drawn.row_span(above)
        at = low + int(np.searchsorted(drawn.start[low:high], start, side="right")) - 1
        if at >= low and int(drawn.end[at]) + _SLACK_NS >= end and int(drawn.end[at]) > start:
            out.append(at)
    return out


def children_of(drawn: DrawnProcess, span: int) -> Ints:
    """The spans directly inside a span.

    They are on the next row, except those that a crossing span has pushed further down.
    """
    row = drawn.row_of(span)
    found: list[int] = []
    for below in range(row + 1, min(row + 1 + _DEEPER, drawn.rows)):
        if drawn.row_tid[below] != drawn.row_tid[row]:
            break
        low, high = drawn.row_span(below)
        a, b = np.searchsorted(drawn.start[low:high], (int(drawn.start[span]), int(drawn.end[span])))
        if b - a > _MAX_LOOKED_AT and below > row + 1:
            break
        inside = range(low + int(a), low + int(b))
        found += (
            inside if b - a > _MAX_LOOKED_AT else (s for s in inside if parents_of(drawn, s)[:1] == [span])
        )
    result: Ints = np.array(found, np.int64)
    return result


def event_at(run: Run, row: int, t: int, reach: int) -> dict[str, Any] | None:
    """The event on a row at a moment, or the nearest one within reach."""
    p, local = run.part_and_row(row)
    drawn = run.parts[p]
    low, high = drawn.row_span(local)
    if low == high:
        return None
    moment = run.base + t
    after = low + int(np.searchsorted(drawn.start[low:high], moment, side="right"))
    near = [i for i in (after - 1, after) if low <= i < high]
    best = min(near, key=lambda i: max(int(drawn.start[i]) - moment, moment - int(drawn.end[i]), 0))
    away = max(int(drawn.start[best]) - moment, moment - int(drawn.end[best]), 0)
    return brief(run, p, best) if away <= reach else None


def event_details(run: Run, part: int, span: int) -> dict[str, Any]:
    """Everything known about an event."""
    p = run.parts[part]
    if not 0 <= span < len(p):
        raise KeyError(f"no event {span}")
    out = brief(run, part, span)
    inside = children_of(p, span)
    longest = inside[np.argsort(-(p.end[inside] - p.start[inside]), kind="stable")][:_MAX_CHILDREN]
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
    run: Run, part: int, span: int, event: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The operator behind a kernel or launch, or the kernels launched by an operator, launch or phase."""
    p = run.parts[part]
    operator = KIND_INDEX["operator"]
    of_kind = [k for _, _, k in p.pairs]
    calls = p.launch_from[p.launch_to == span].tolist() if p.launch_to.size else []
    around = [s for call in calls for s in parents_of(p, call)] or parents_of(p, span)
    found = next((s for s in around if of_kind[int(p.pair[s])] == operator), None)
    kernels: list[int] = []
    if not calls and p.launch_from.size and event["row"] >= 0:
        row = p.row_of(span)
        same = np.flatnonzero(p.row_tid == p.row_tid[row])
        for each in same[same >= row].tolist():
            low, high = p.row_span(each)
            a, b = np.searchsorted(p.start[low:high], (int(p.start[span]), int(p.end[span]) + 1))
            first, last = np.searchsorted(p.launch_from, (low + int(a), low + int(b)))
            kernels += p.launch_to[first:last].tolist()
    return (
        None if found is None else brief(run, part, found),
        [brief(run, part, k) for k in sorted(kernels, key=lambda k: int(p.start[k]))[:_MAX_CHILDREN]],
    )


def _args(run: Run, drawn: DrawnProcess, span: int) -> dict[str, Any]:
    """The arguments as the trace file has them."""
    file = Path(drawn.info["file"])
    if drawn.info["source"] != "trace" or not file.is_file():
        return {}
    cat, name, _ = drawn.pairs[int(drawn.pair[span])]
    ts = int(drawn.start[span]) // 1000
    tid = int(drawn.row_tid[drawn.row_of(span)])
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
                away = abs(int(chunk.ints("dur")[i]) * 1000 - int(drawn.end[span] - drawn.start[span]))
                if off is None or away < off:
                    off, best = away, _row_args(chunk, i)
    return best


def _files_of(file: Path) -> list[Path]:
    """A trace and its other parts."""
    from dftracer.format.trace_names import find_files, part_of  # noqa: PLC0415 - needed only on a click

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


# --- What leads to what: a launch to its kernel, items to their batch, a batch to the waiting step


_MAX_ARROWS = 64
_End = tuple[int, int]  # part and span


def _batches(run: Run) -> list[tuple[_End, _End]]:
    """Each batch that some wait names, as (the collation that made it, the wait)."""
    makers: dict[tuple[str, int, int], list[tuple[int, _End]]] = {}
    for i, drawn in enumerate(run.parts):
        if _traced(drawn):
            ends = zip(drawn.start[drawn.made_span].tolist(), drawn.made_span.tolist(), strict=True)
            for batch, (start, span) in zip(drawn.made_batch.tolist(), ends, strict=True):
                key = (drawn.info["host"], drawn.info["pid"], batch)
                makers.setdefault(key, []).append((start, (i, span)))
    out: list[tuple[_End, _End]] = []
    for i, drawn in enumerate(run.parts):
        if not _traced(drawn):
            continue
        waits = zip(drawn.wait_span.tolist(), drawn.wait_batch.tolist(), drawn.wait_pid.tolist(), strict=True)
        for span, batch, pid in waits:
            made = makers.get((drawn.info["host"], pid, batch), [])
            # Numbers start over with each pass: it is the latest with that number before the wait ended.
            at = bisect_right(made, int(drawn.end[span]), key=lambda m: m[0]) - 1
            if at >= 0:
                out.append((made[at][1], (i, span)))
    return out


def _traced(drawn: DrawnProcess) -> bool:
    return "wait_span" in drawn.columns


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
    return [_arrow(run, *edge) for edge in list(edges)[: 4 * _MAX_ARROWS]]


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
        p, local = run.part_and_row(row)
        drawn = run.parts[p]
        if not _traced(drawn):
            continue
        low, high = drawn.row_span(local)
        a, b = np.searchsorted(drawn.start[low:high], (t0, t1))
        first, last = np.searchsorted(drawn.launch_from, (low + int(a), low + int(b)))
        total += int(last - first)
        pairs = zip(drawn.launch_from[first:last][:most], drawn.launch_to[first:last][:most], strict=True)
        found += [("launch", (p, int(s)), (p, int(t))) for s, t in pairs]
        inside = _within(drawn.item_span, low + int(a), low + int(b))
        total += inside.size
        found += [
            ("item", (p, int(drawn.item_span[i])), (p, int(drawn.made_span[drawn.item_of[i]])))
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


# --- The events of a window as a list, for readers who cannot use the picture


_MAX_LISTED = 200


def list_events(run: Run, window: Window, rows: list[int], hidden: frozenset[str]) -> dict[str, Any]:
    """The longest events that overlap a window on some rows, in chronological order."""
    t0, t1 = (run.base + t for t in window)
    total = 0
    lengths: list[Ints] = []
    found: list[tuple[int, Ints]] = []
    for row in rows:
        p, local = run.part_and_row(row)
        drawn = run.parts[p]
        if drawn.info["source"] == LEDGER:
            continue
        low, high = drawn.row_span(local)
        first = low + int(np.searchsorted(drawn.end[low:high], t0, side="right"))
        last = low + int(np.searchsorted(drawn.start[low:high], t1, side="left"))
        spans = np.arange(first, last)
        if hidden:
            visible = np.array([cat not in hidden for cat, _, _ in drawn.pairs], bool)
            spans = spans[visible[drawn.pair[first:last]]]
        total += int(spans.size)
        length = drawn.end[spans] - drawn.start[spans]
        if spans.size > _MAX_LISTED:
            best = np.argpartition(-length, _MAX_LISTED)[:_MAX_LISTED]
            spans, length = spans[best], length[best]
        lengths.append(length)
        found.append((p, spans))
    if not found:
        return {"total": 0, "events": []}
    order = np.argsort(-np.concatenate(lengths), kind="stable")[:_MAX_LISTED]
    parts = np.concatenate([np.full(s.size, p) for p, s in found])
    spans = np.concatenate([s for _, s in found])
    events = [brief(run, int(parts[i]), int(spans[i])) for i in order.tolist()]
    return {"total": total, "events": sorted(events, key=lambda e: (e["start"], -e["length"]))}


# --- Search by name, path or arguments


_NUMBER = re.compile(r"^\s*([a-z_]+)\s*[=:]\s*(-?\d+)\s*$")
_MAX_HITS = 500


def search(run: Run, text: str, most: int = _MAX_HITS) -> dict[str, Any]:
    """Events whose name, category or path contains the text, in chronological order."""
    wanted = text.casefold()
    hits: list[tuple[int, int, int]] = []
    total = 0
    for i, drawn in enumerate(run.parts):
        if drawn.info["source"] == LEDGER or not len(drawn) or not wanted:
            continue
        names = [wanted in n.casefold() or wanted in c.casefold() for c, n, _ in drawn.pairs]
        paths = [wanted in p.casefold() for p in drawn.paths]
        if not any(names) and not any(paths):
            continue
        found = np.array(names, bool)[drawn.pair] if any(names) else np.zeros(len(drawn), bool)
        if any(paths):
            found |= np.array([*paths, False], bool)[drawn.path]
        at = np.flatnonzero(found)
        total += int(at.size)
        hits += _first(drawn, i, at, most)
    hits.sort()
    return {"total": total, "hits": [brief(run, p, s) for _, p, s in hits[:most]]}


def _first(drawn: DrawnProcess, number: int, at: Ints, most: int) -> list[tuple[int, int, int]]:
    if at.size > most:
        at = at[np.argpartition(drawn.start[at], most)[:most]]
    return [(int(drawn.start[s]), number, int(s)) for s in at.tolist()]


def search_args(run: Run, text: str, threads: int, most: int = _MAX_HITS) -> dict[str, Any]:
    """Events whose arguments contain the text (or `key=number`): this reads the files once more."""
    hits: list[tuple[int, int, int]] = []
    total = 0
    by_file: dict[str, list[int]] = {}
    for i, drawn in enumerate(run.parts):
        if drawn.info["source"] == "trace" and len(drawn):
            by_file.setdefault(drawn.info["file"], []).append(i)
    for file, parts in by_file.items():
        if not Path(file).is_file():
            continue
        of_pid = {run.parts[i].info["pid"]: i for i in parts}
        scanner = Scanner(file, threads, 8 << 20)
        for raw in scanner:
            chunk = Chunk(raw)
            if chunk.rows == 0:
                continue
            rows = _rows_with(chunk, text)
            rows = rows[chunk.ph()[rows] == ord("X")]
            names, cats = scanner.dictionary("name"), scanner.dictionary("cat")
            total += int(rows.size)
            for row in rows[:most].tolist():
                number = of_pid.get(int(chunk.ints("pid")[row]))
                cat = cats[int(chunk.codes("cat")[row])] if chunk.codes("cat")[row] >= 0 else ""
                span = None
                if number is not None:
                    span = _find(run.parts[number], chunk, row, (cat, names[int(chunk.codes("name")[row])]))
                if number is None or span is None:
                    total -= 1
                else:
                    hits.append((int(run.parts[number].start[span]), number, span))
    hits.sort()
    return {"total": total, "hits": [brief(run, p, s) for _, p, s in hits[:most]]}


def _rows_with(chunk: Chunk, text: str) -> npt.NDArray[np.intp]:
    """The rows whose arguments contain the text."""
    match = _NUMBER.match(text)
    if match is not None and match.group(1) in INT_COLUMNS:
        result: npt.NDArray[np.intp] = np.flatnonzero(chunk.ints(match.group(1)) == int(match.group(2)))
        return result
    pattern = re.compile(_as_json(text), re.IGNORECASE)
    ends = np.frombuffer(chunk.raw("args_end"), np.int32)
    blob = uint8s(chunk.raw("args_text")).tobytes()
    found = [m.start() for m in pattern.finditer(blob)]
    return np.unique(np.searchsorted(ends, found, side="right")) if found else np.empty(0, np.intp)


def _as_json(text: str) -> bytes:
    """What to look for in the text of arguments: `key=value` as it is written there."""
    key, sign, value = text.partition("=")
    if sign and re.fullmatch(r"\w+", key.strip()):
        return rb'"%s": ?"?%s' % (re.escape(key.strip()).encode(), re.escape(value.strip()).encode())
    return re.escape(text).encode("utf-8", "replace")


def _find(drawn: DrawnProcess, chunk: Chunk, row: int, key: tuple[str, str]) -> int | None:
    """The span of a row of the file."""
    start = int(chunk.ints("ts")[row]) * 1000
    tid = int(chunk.ints("tid")[row]) if chunk.has("tid") else drawn.info["pid"]
    for each in np.flatnonzero(drawn.row_tid == tid).tolist():
        low, high = drawn.row_span(each)
        first, last = np.searchsorted(drawn.start[low:high], (start, start + 1))
        for span in range(low + int(first), low + int(last)):
            if drawn.pairs[int(drawn.pair[span])][:2] == key:
                return span
    return None
