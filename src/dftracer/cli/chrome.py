"""Events as Chrome/Perfetto JSON: times from the first event, lanes on which nothing overlaps, small numbers.

Viewers draw spans of one lane by nesting and silently hide what crosses: a span that crosses another of its
thread (asynchronous tasks do) goes to a further lane of that thread. They cut the numbers of processes and
threads to 32 bits and drop events before time 0.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.cli.chrome_tracks import Tracks
from dftracer.load.chunk import MISSING
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Trace, scan_file

__all__ = ["assign_lanes", "write_chrome"]

_COLUMNS = ("level", "p_idx", "epoch", "step", "count", "size", "offset", "ret", "errno", "image_idx")


def assign_lanes(tid: Any, ts: Any, dur: Any) -> list[int]:
    """For each span the lane of its thread (0 is the first) on which it nests cleanly."""
    order = np.lexsort((-dur, ts, tid))
    lanes = [0] * len(order)
    open_ends: list[list[int]] = []
    last_tid: int | None = None
    for i in order.tolist():
        t, start, end = int(tid[i]), int(ts[i]), int(ts[i] + dur[i])
        if t != last_tid:
            open_ends, last_tid = [], t
        for number in range(len(open_ends) + 1):
            if number == len(open_ends):
                open_ends.append([])
            stack = open_ends[number]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                lanes[i] = number
                break
    return lanes


def write_chrome(trace: Trace, path: Path, *, packed: bool) -> int:
    """Write all events, with gzip if they are to be packed; returns how many."""
    wanted = [p for p in trace.processes if trace.filter.wants(p)]
    base = min((low for low in (_first(trace, p) for p in wanted) if low is not None), default=0)
    tracks = Tracks(trace.processes)
    opener: Any = gzip.open if packed else open
    written = 0
    with opener(path, "wt", encoding="utf-8", errors="replace") as out:
        out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        between = ""
        for holder, rows in _by_process(trace, wanted, base):
            written += len(rows)
            for row in (*tracks.place(holder, rows, _lanes(rows)), *rows):
                out.write(between + json.dumps(row, separators=(",", ":"), ensure_ascii=False))
                between = ",\n"
        for row in tracks.meetings():
            out.write(between + json.dumps(row, separators=(",", ":")))
        out.write(f'],"otherData":{{"base_time_us":{base}}}}}\n')
    return written


def _first(trace: Trace, process: ProcessInfo) -> int | None:
    """When the first event of a file begins; events may be older than their process's `start`."""
    first: int | None = None
    for _, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
        if chunk.rows:
            low = int(chunk.ints("ts").min())
            first = low if first is None else min(first, low)
    return first


def _by_process(
    trace: Trace, wanted: list[ProcessInfo], base: int
) -> Iterator[tuple[ProcessInfo, list[dict[str, Any]]]]:
    """The rows of one process after the other, be its trace in one file, in parts, or in a merged one."""
    files: dict[tuple[str, int], list[ProcessInfo]] = {}
    for process in wanted:
        files.setdefault(process.key, []).append(process)
    for parts in files.values():
        by_pid: dict[int, list[dict[str, Any]]] = {}
        for process in parts:
            for row in _rows(trace, process, base):
                by_pid.setdefault(row["pid"], []).append(row)
        for rows in by_pid.values():
            yield parts[-1], rows


def _rows(trace: Trace, process: ProcessInfo, base: int) -> Iterator[dict[str, Any]]:
    for scanner, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
        if chunk.rows == 0:
            continue
        names, cats, files = (scanner.dictionary(c) for c in ("name", "cat", "fhash"))
        numbers = {c: chunk.ints(c).tolist() for c in _COLUMNS if chunk.has(c)}
        columns = zip(
            chunk.codes("name").tolist(),
            chunk.codes("cat").tolist(),
            chunk.codes("fhash").tolist(),
            chunk.ph().tolist(),
            chunk.ints("pid").tolist(),
            chunk.ints("tid").tolist(),
            chunk.ints("ts").tolist(),
            chunk.ints("dur").tolist(),
            strict=True,
        )
        for i, (name, cat, file, ph, pid, tid, ts, dur) in enumerate(columns):
            args = {c: v[i] for c, v in numbers.items() if v[i] != MISSING}
            if file >= 0:
                args["path"] = process.path_of(files[file])
            rest = chunk.args_text(i)
            if rest:
                args.update(_object(rest))
            row: dict[str, Any] = {
                "name": names[name],
                "cat": cats[cat] if cat >= 0 else "",
                "ph": chr(ph),
                "pid": pid,
                "tid": pid if tid == MISSING else tid,
                "ts": ts - base,
            }
            if row["ph"] == "X":
                row["dur"] = max(dur, 0)
            else:
                # Viewers draw the numbers of a counter and refuse the rest.
                args = {k: v for k, v in args.items() if isinstance(v, (int, float))}
            row["args"] = args
            yield row


def _lanes(rows: Iterable[dict[str, Any]]) -> list[int]:
    """A lane for each row; counters are not on one."""
    listed = list(rows)
    spans = [i for i, r in enumerate(listed) if r["ph"] == "X"]
    columns = [np.array([listed[i][c] for i in spans], dtype=np.int64) for c in ("tid", "ts", "dur")]
    lanes = [0] * len(listed)
    if spans:
        for i, lane in zip(spans, assign_lanes(*columns), strict=True):
            lanes[i] = lane
    return lanes


def _object(text: str) -> dict[str, Any]:
    """The arguments that no column holds; as text where a foreign writer's are not JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"args": text}
    return value if isinstance(value, dict) else {"args": text}
