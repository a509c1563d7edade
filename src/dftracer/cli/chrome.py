"""Events as Chrome/Perfetto JSON: times from the first event, lanes without overlap, small ids.

Viewers draw the spans of a lane nested and silently hide those that cross: a span that crosses another one of
its thread (as asynchronous tasks do) goes to an extra lane of that thread. Viewers also truncate process and
thread ids to 32 bits and drop events before time 0.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._torch_files import EXPORTED
from dftracer.cli.chrome_tracks import FEEDING, ProcessTracks, Tracks
from dftracer.load.chunk import MISSING, Chunk
from dftracer.load.lanes import assign_lanes
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Trace, scan_file

__all__ = ["write_chrome"]

_COLUMNS = ("level", "p_idx", "epoch", "step", "count", "size", "offset", "ret", "errno", "image_idx")


def write_chrome(trace: Trace, path: Path, *, packed: bool) -> int:
    """Write all events, compressed if requested; returns how many."""
    wanted = [p for p in trace.processes if trace.filter.wants(p)]
    base = min((low for low in (_first(trace, p) for p in wanted) if low is not None), default=0)
    tracks = Tracks(trace.processes)
    opener: Any = gzip.open if packed else open
    written = 0
    with opener(path, "wt", encoding="utf-8", errors="replace") as out:
        facts = f'{{{EXPORTED},"base_time_us":{base}}}'
        out.write(f'{{"displayTimeUnit":"ms","otherData":{facts},"traceEvents":[\n')
        between = ""
        for row, is_event in _placed(trace, wanted, base, tracks):
            written += is_event
            out.write(between + json.dumps(row, separators=(",", ":"), ensure_ascii=False))
            between = ",\n"
        out.write("]}\n")
    return written


def _first(trace: Trace, process: ProcessInfo) -> int | None:
    """The time of a file's first event; events may be older than their process's `start`."""
    first: int | None = None
    for _, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
        if chunk.rows:
            low = int(chunk.ints("ts").min())
            first = low if first is None else min(first, low)
    return first


class _Spans:
    """What must be known about a process before its first row is written: 20 bytes for each of its spans."""

    def __init__(self) -> None:
        self.feeds = False
        self._columns: list[tuple[Any, Any, Any]] = []

    def add(self, chunk: Chunk, mine: Any, feeding: Any) -> None:
        self.feeds = self.feeds or bool(feeding[chunk.codes("cat")[mine]].any())
        spans = mine[chunk.ph()[mine] == ord("X")]
        pid, tid = chunk.ints("pid")[spans], chunk.ints("tid")[spans]
        tid = np.where(tid == MISSING, pid, tid)
        self._columns.append((tid, chunk.ints("ts")[spans], np.maximum(chunk.ints("dur")[spans], 0)))

    def lanes(self) -> Iterator[int]:
        """The lane of each span, in file order."""
        columns = [np.concatenate([c[i] for c in self._columns]) for i in range(3)]
        self._columns = []
        return map(int, assign_lanes(*columns))


def _survey(trace: Trace, parts: list[ProcessInfo]) -> dict[int, _Spans]:
    found: dict[int, _Spans] = {}
    for process in parts:
        for scanner, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
            if chunk.rows == 0:
                continue
            feeding = np.array([*(cat in FEEDING for cat in scanner.dictionary("cat")), False])
            pids = chunk.ints("pid")
            for pid in np.unique(pids).tolist():
                found.setdefault(pid, _Spans()).add(chunk, np.flatnonzero(pids == pid), feeding)
    return found


def _placed(
    trace: Trace, wanted: list[ProcessInfo], base: int, tracks: Tracks
) -> Iterator[tuple[dict[str, Any], bool]]:
    """All rows as they are written (events, and the names of their tracks), whether the trace of a
    process is in one file, in parts, or in a merged file.
    """
    files: dict[tuple[str, int], list[ProcessInfo]] = {}
    for process in wanted:
        files.setdefault(process.key, []).append(process)
    for parts in files.values():
        spans = _survey(trace, parts)
        begun: dict[int, tuple[ProcessTracks, Iterator[int]]] = {}
        for process in parts:
            for row in _rows(trace, process, base):
                pid = row["pid"]
                if pid not in begun:
                    begun[pid] = tracks.begin(parts[-1], pid, spans[pid].feeds), spans[pid].lanes()
                    yield from ((head, False) for head in begun[pid][0].heads)
                placing, lanes = begun[pid]
                for name in placing.place(row, next(lanes) if row["ph"] == "X" else 0):
                    yield name, False
                yield row, True
        for placing, _ in begun.values():
            yield from ((arrow, False) for arrow in placing.arrows())
    yield from ((arrow, False) for arrow in tracks.meetings())


def _rows(trace: Trace, process: ProcessInfo, base: int) -> Iterator[dict[str, Any]]:
    sums: dict[tuple[str, str, int, int], dict[str, int]] = {}
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
            elif row["ph"] == "A":
                _add_up(sums, row, args)
                continue
            else:
                # Viewers draw a counter's numbers and reject everything else.
                args = {k: v for k, v in args.items() if isinstance(v, (int, float))}
            row["args"] = args
            yield row

    for (name, cat, pid, ts), figures in sums.items():
        yield {"name": name, "cat": cat, "ph": "C", "pid": pid, "tid": pid, "ts": ts, "args": figures}


def _add_up(
    sums: dict[tuple[str, str, int, int], dict[str, int]], row: dict[str, Any], args: dict[str, Any]
) -> None:
    """Aggregated calls are counters of their file; several records of an interval are one of its samples."""
    path = str(args.get("path", ""))
    name = f"{row['name']} {path}" if path else row["name"]
    figures = sums.setdefault((name, row["cat"], row["pid"], row["ts"]), {})
    for shown, key in (("calls", "dft_cnt"), ("us", "dur_sum"), ("bytes", "bytes")):
        value = args.get(key)
        if isinstance(value, int):
            figures[shown] = figures.get(shown, 0) + value


def _object(text: str) -> dict[str, Any]:
    """The arguments that are in no column; as text if another writer's are not JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"args": text}
    return value if isinstance(value, dict) else {"args": text}
