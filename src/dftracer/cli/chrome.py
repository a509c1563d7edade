"""Events as Chrome/Perfetto JSON: times from the first event, lanes without overlap, small ids.

A span that crosses another one of its thread (as asynchronous tasks do) goes to an extra lane of that thread.
Times begin at the first event, because viewers drop what is before time 0.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.format.torch_files import EXPORTED
from dftracer.load.chunk import MISSING, Chunk
from dftracer.load.perfetto import Row, TrackIds, arrow_phase, assign_lanes, process_names, thread_name
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Trace, scan_file

_COLUMNS = ("level", "p_idx", "epoch", "step", "count", "size", "offset", "ret", "errno", "image_idx")


def write_chrome(trace: Trace, path: Path, *, packed: bool) -> int:
    """Write all events, compressed if requested; returns how many."""
    wanted = [p for p in trace.processes if trace.filter.wants(p)]
    base = min((low for low in (_first(trace, p) for p in wanted) if low is not None), default=0)
    tracks = _Tracks(trace.processes)
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
            feeding = np.array([*(cat in _FEEDING for cat in scanner.dictionary("cat")), False])
            pids = chunk.ints("pid")
            for pid in np.unique(pids).tolist():
                found.setdefault(pid, _Spans()).add(chunk, np.flatnonzero(pids == pid), feeding)
    return found


def _placed(
    trace: Trace, wanted: list[ProcessInfo], base: int, tracks: _Tracks
) -> Iterator[tuple[dict[str, Any], bool]]:
    """All rows as they are written (events, and the names of their tracks), whether the trace of a
    process is in one file, in parts, or in a merged file.
    """
    files: dict[tuple[str, int], list[ProcessInfo]] = {}
    for process in wanted:
        files.setdefault(process.key, []).append(process)
    for parts in files.values():
        spans = _survey(trace, parts)
        begun: dict[int, tuple[_ProcessTracks, Iterator[int]]] = {}
        for process in parts:
            for row in _rows_of(trace, process, base):
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


def _rows_of(trace: Trace, process: ProcessInfo, base: int) -> Iterator[dict[str, Any]]:
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


# --- Tracks: ids that viewers can tell apart, familiar names, arrows

# A child process with events of these categories reads samples: it is a data loader worker.
_FEEDING = {"data", "dataloader", "POSIX", "STDIO"}
_LANE = "lane."


class _Tracks:
    """The ids of all processes, and the arrows between them."""

    def __init__(self, processes: Iterable[ProcessInfo]) -> None:
        self._known = {p.key for p in processes}
        self._pids = TrackIds()
        self._tids = TrackIds()
        self._workers: dict[Any, int] = {}
        self._collectives: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
        self._arrows = 0

    def begin(self, holder: ProcessInfo, original_pid: int, feeds: bool) -> _ProcessTracks:
        """The tracks of one process; `feeds`: it has events typical of a data loader."""
        process = holder if holder.pid == original_pid else holder.others.get(original_pid)
        key = process.key if process is not None else (holder.host, original_pid)
        rank = holder.ranks().get(original_pid) if holder.others else holder.rank
        self._known |= {p.key for p in holder.others.values()}
        out = _ProcessTracks(self, process, key, self._pids.get(key, original_pid), rank)
        out.heads = process_names(out.pid, self._who(process, original_pid, rank, feeds), rank)
        return out

    def tid(self, key: Any, original: int, lane: int) -> int:
        return self._tids.get((key, original, lane), None if lane else original)

    def meetings(self) -> Iterator[Row]:
        """Arrows between the ranks' parts of one collective, in order of arrival."""
        for parts in self._collectives.values():
            ranks = {rank for rank, _ in parts}
            if 1 < len(ranks) == len(parts):
                yield from self.arrow("collective", sorted((r for _, r in parts), key=lambda r: r["ts"]))

    def keep_collective(self, row: Row, rank: int | None) -> None:
        args = row["args"]
        if row["cat"] == "comm" and rank is not None and "seq" in args and "group" in args:
            where = (args["group"], row["name"], args["seq"])
            if row["name"] not in ("send", "receive"):  # each rank counts these separately
                self._collectives.setdefault(where, []).append((rank, _end(row)))

    def arrow(self, name: str, ends: list[Row]) -> Iterator[Row]:
        self._arrows += 1
        for i, row in enumerate(ends):
            ph = arrow_phase(i, len(ends))
            arrow = {"ph": ph, "id": self._arrows, "name": name, "cat": name}
            more = {} if ph == "s" else {"bp": "e"}
            yield {**arrow, "pid": row["pid"], "tid": row["tid"], "ts": row["ts"], **more}

    def _who(self, process: ProcessInfo | None, pid: int, rank: int | None, feeds: bool) -> str:
        parts = [f"rank {rank}"] if rank is not None else []
        parent = (process.host, process.ppid) if process is not None and process.ppid is not None else None
        if parent in self._known and feeds:
            number = self._workers[parent] = self._workers.get(parent, -1) + 1
            parts.append(f"loader worker {number}")
        return " ".join([*parts, f"pid {pid}"])


class _ProcessTracks:
    """The tracks of one process, named as its rows are written."""

    def __init__(
        self, tracks: _Tracks, process: ProcessInfo | None, key: Any, pid: int, rank: int | None
    ) -> None:
        self.heads: list[Row] = []
        self.pid = pid
        self._tracks = tracks
        self._process = process
        self._key = key
        self._rank = rank
        self._named: set[int] = set()
        self._devices = {t for t, text in _device_lanes(process).items() if "stream" in text}
        self._launches: dict[int, Row] = {}
        self._kernels: list[tuple[int, Row]] = []

    def place(self, row: Row, lane: int) -> Iterator[Row]:
        """Give the row its ids; yields the name of its track if it is the first one on it."""
        original = row["tid"]
        row["pid"] = self.pid
        row["tid"] = self._tracks.tid(self._key, original, lane)
        if row["ph"] != "X":
            return
        if row["tid"] not in self._named:
            self._named.add(row["tid"])
            text = _thread(self._process, original) + (f" ({lane + 1})" if lane else "")
            yield thread_name(self.pid, row["tid"], text)
        number = row["args"].get("correlation")
        if isinstance(number, int) and row["cat"] == "PP":
            if original in self._devices:
                self._kernels.append((number, _end(row)))
            else:
                self._launches[number] = _end(row)
        self._tracks.keep_collective(row, self._rank)

    def arrows(self) -> Iterator[Row]:
        """Arrows from launches to what they launched."""
        for number, kernel in self._kernels:
            if number in self._launches:
                yield from self._tracks.arrow("launch", [self._launches[number], kernel])


def _end(row: Row) -> Row:
    """What an arrow needs to know about a row."""
    return {k: row[k] for k in ("pid", "tid", "ts")}


def _device_lanes(process: ProcessInfo | None) -> dict[int, str]:
    """Lanes of device work: `GPU 0 stream 7`."""
    found = {}
    for key, text in process.user_metadata if process is not None else ():
        if key.startswith(_LANE) and key[len(_LANE) :].isdigit():
            found[int(key[len(_LANE) :])] = text
    return found


def _thread(process: ProcessInfo | None, tid: int) -> str:
    if process is not None:
        name = _device_lanes(process).get(tid) or process.threads.get(tid, "")
        if name and not name.isdigit():
            return name
        if tid == process.pid:
            return f"main thread {tid}"
    return f"thread {tid}"
