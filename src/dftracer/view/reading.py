"""From trace files and profiler files to parts, with the ledger and the lineage of batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.device.profiler_rows import HOST, KERNEL, LAUNCH, MEMCPY, MEMSET, MODULE, TorchProcess
from dftracer.analyze.intervals import Intervals, difference, union
from dftracer.analyze.machine import CounterRow, join_counters, read_counters
from dftracer.analyze.map.digest import Pairs, by_process
from dftracer.analyze.map.threads import AWAITED, MADE, Lane, overlay, read_lineage
from dftracer.analyze.stages import CLASSES, NONE, RULES, STAGE_INDEX, STAGES, class_of
from dftracer.format.records import COUNTER, stream_lane
from dftracer.load._scan import Scanner, bytes_of_calls, timeline
from dftracer.load.chunk import MISSING, Chunk, Ints, int64s, uint8s
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, scan_file
from dftracer.view.drawn import (
    BLOCK,
    KIND_INDEX,
    PROFILER_KINDS,
    Codes,
    DrawnProcess,
    Spans,
    kind_of,
    lay_out,
)

_TYPE = re.compile(rb'"type":"([a-z_0-9]+)"')
_CORRELATION = re.compile(rb'"correlation":(\d+)')
_LENGTH = re.compile(rb'"dur_ns":(\d+)')
_TYPES = ["", *PROFILER_KINDS]
_ON_DEVICE = [_TYPES.index(t) for t in ("kernel", "gpu_memcpy", "gpu_memset")]
_PROFILER = "PP"
_TORCH_TYPES = {
    HOST: "cpu_op",
    LAUNCH: "cuda_runtime",
    KERNEL: "kernel",
    MEMCPY: "gpu_memcpy",
    MEMSET: "gpu_memset",
    MODULE: "python_function",
}


def describe(process: ProcessInfo, source: str = "trace") -> dict[str, Any]:
    """The identity of a process, used to name its lanes."""
    lanes = {k[5:]: v for k, v in process.user_metadata if k.startswith("lane.") and k[5:].isdigit()}
    return {
        "file": str(process.file),
        "pid": process.pid,
        "ppid": process.ppid,
        "host": process.host,
        "rank": process.rank,
        "command": process.command,
        "threads": {str(t): name for t, name in process.threads.items()},
        "lanes": lanes,
        "devices": [],  # the tids that are streams
        "source": source,
        "ended": process.end is not None,
    }


class _Reader:
    """Gathers the spans of one process."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, str, int]] = []
        self._pair_number: dict[tuple[str, str, str], int] = {}
        self.fhash: list[str] = []
        self._file_number: dict[str, int] = {}
        self._columns: list[tuple[Any, ...]] = []
        self.rows = 0
        self.not_drawn = 0  # events that are no spans, or the recorder's own: a report counts them, too
        self.devices: set[int] = set()
        self.auto = False  # its steps were recorded automatically
        self.lineage: dict[str, list[Ints]] = {"wait": [], "collate": []}
        self.counters: list[CounterRow] = []

    def pair(self, cat: str, name: str, profiler_type: str) -> int:
        number = self._pair_number.setdefault((cat, name, profiler_type), len(self.pairs))
        if number == len(self.pairs):
            self.pairs.append((cat, name, kind_of(cat, name, profiler_type)))
        return number

    def take(self, scanner: Scanner, chunk: Chunk, pairs: Pairs) -> None:
        local = pairs.of(scanner, chunk)
        keys = pairs.keys
        kept = np.array([cat != "dftracer" for cat, _ in keys], dtype=bool)
        ph = chunk.ph()
        samples = np.flatnonzero((ph == ord("C")) & np.array([cat == COUNTER for cat, _ in keys])[local])
        if samples.size:
            self.counters += read_counters(chunk, samples, [keys[i][1] for i in local[samples].tolist()])
        rows = np.flatnonzero((ph == ord("X")) & kept[local])
        self.not_drawn += chunk.rows - samples.size - rows.size
        if rows.size == 0:
            return
        local = local[rows]
        tid = (chunk.ints("tid") if chunk.has("tid") else chunk.ints("pid"))[rows]
        start = chunk.ints("ts")[rows] * 1000
        length = np.maximum(chunk.ints("dur")[rows], 0) * 1000
        types = np.zeros(rows.size, np.int64)
        correlation = np.full(rows.size, -1, np.int64)
        profiler = np.flatnonzero(np.array([cat == _PROFILER for cat, _ in keys])[local])
        if profiler.size:
            _profiler_facts(chunk, rows, profiler, types, correlation, length)
            self.devices |= set(tid[np.isin(types, _ON_DEVICE)].tolist())
        phases = np.flatnonzero(np.array([cat == "device_time" for cat, _ in keys])[local])
        self.devices |= set(tid[phases].tolist())
        self._columns.append(
            (
                tid,
                start,
                start + length,
                self._numbers(local, types, keys),
                self._files(scanner, chunk.codes("fhash")[rows]),
                _moved(chunk, rows, local, pairs),
                correlation,
            )
        )
        self._read_lineage(chunk, rows, local, keys)
        self.rows += rows.size

    def _numbers(self, local: Codes, types: Ints, keys: list[tuple[str, str]]) -> Codes:
        key = local.astype(np.int64) * len(_TYPES) + types
        present, inverse = np.unique(key, return_inverse=True)
        numbers = []
        for k in present.tolist():
            cat, name = keys[k // len(_TYPES)]
            numbers.append(self.pair(cat, name, _TYPES[k % len(_TYPES)]))
        result: Codes = np.array(numbers, np.int32)[inverse.reshape(-1)]
        return result

    def _files(self, scanner: Scanner, codes: Codes) -> Codes:
        if not (codes >= 0).any():
            return codes.copy()
        table = []
        for text in scanner.dictionary("fhash"):
            number = self._file_number.setdefault(text, len(self.fhash))
            if number == len(self.fhash):
                self.fhash.append(text)
            table.append(number)
        result: Codes = np.array([*table, -1], np.int32)[codes]
        return result

    def _read_lineage(self, chunk: Chunk, rows: Ints, local: Codes, keys: list[tuple[str, str]]) -> None:
        """Waits and collations that name their batch, each with its position among the spans."""
        body = ("dataloader", "fetch.block")
        if not self.auto and body in keys:
            at = np.flatnonzero(local == keys.index(body))
            self.auto = bool(at.size) and '"auto":1' in chunk.args_text(int(rows[at[0]]))
        for kind, key in (("wait", ("dataloader", "fetch.iter")), ("collate", ("data", "collate"))):
            if key not in keys:
                continue
            at = np.flatnonzero(local == keys.index(key))
            position = at + self.rows  # in both tables the first row is what was given first
            table = read_lineage(kind, chunk, rows[at], (position, position, position))
            if table.shape[1]:
                self.lineage[kind].append(table)

    def spans(self) -> Spans:
        if not self._columns:
            nothing, codes = np.empty(0, np.int64), np.empty(0, np.int32)
            return Spans(nothing, nothing, nothing, codes, codes, nothing, nothing)
        spans = Spans(*(np.concatenate(c) for c in zip(*self._columns, strict=True)))
        self._columns = []
        return spans


def _profiler_facts(chunk: Chunk, rows: Ints, at: Ints, types: Ints, correlation: Ints, length: Ints) -> None:
    """The profiler events' own facts, written into the columns of all rows."""
    ends, text = chunk.args_of(rows[at])
    blob = text.tobytes()
    for match in _TYPE.finditer(blob):
        word = match.group(1).decode()
        if word in PROFILER_KINDS:
            types[at[np.searchsorted(ends, match.start(), side="right")]] = _TYPES.index(word)
    for pattern, column in ((_CORRELATION, correlation), (_LENGTH, length)):
        found = [(m.start(), int(m.group(1))) for m in pattern.finditer(blob)]
        if found:
            position, value = np.array(found, np.int64).T
            column[at[np.searchsorted(ends, position, side="right")]] = value


def _moved(chunk: Chunk, rows: Ints, local: Codes, pairs: Pairs) -> Ints:
    columns = (chunk.raw(name) for name in ("ret", "size", "count"))
    known = pairs.io_kinds, pairs.returns_items
    return int64s(bytes_of_calls(np.ascontiguousarray(local), *known, rows, chunk.rows, *columns))


def read_files(
    files: list[ProcessInfo],
    threads: int,
    chunk_text: int,
    progress: Callable[[int], None] | None = None,
) -> list[DrawnProcess]:
    """The parts of one trace: one process, or several if the file was merged."""
    whole = files[0]
    readers: dict[int, _Reader] = {}
    before = 0
    for file in files:
        pairs = Pairs([])
        for scanner, chunk in scan_file(file, Filter(), threads, chunk_text):
            if file is not whole:
                whole.take(chunk.meta)
            for pid, rows in by_process(chunk):
                readers.setdefault(pid, _Reader()).take(scanner, rows, pairs)
            if progress is not None:
                progress(before + scanner.position())
        before += file.counts["file_bytes"]
    whole.ranks()
    out = []
    for pid, reader in readers.items():
        process = whole if pid == whole.pid else whole.others.get(pid, ProcessInfo(whole.file, pid=pid))
        process.host = process.host or whole.host
        if whole.end is not None and process is not whole and process.end is None:
            process.end = {}
        paths = [_path(whole, process, h) for h in reader.fhash]
        out += _finished(describe(process), reader, paths)
    return out


def _path(whole: ProcessInfo, process: ProcessInfo, fhash: str) -> str:
    return process.paths.get(fhash) or whole.path_of(fhash)


def _finished(
    info: dict[str, Any], reader: _Reader, paths: list[str], spans: Spans | None = None
) -> list[DrawnProcess]:
    info["devices"] = sorted(reader.devices)
    info["not_drawn"] = int(reader.not_drawn)
    info["counters"] = {
        name: {"ts": series.ts.tolist(), **{key: column.tolist() for key, column in series.values.items()}}
        for name, series in join_counters(reader.counters).items()
    }
    drawn, position = lay_out(info, reader.pairs, paths, spans or reader.spans())
    add_lineage(drawn, reader.lineage, position)
    ledger = ledger_part(drawn, reader.auto)
    return [drawn] if ledger is None else [drawn, ledger]


def read_torch(process: TorchProcess) -> list[DrawnProcess]:
    """A process as the profiler's own file shows it."""
    rows = process.rows
    reader = _Reader()
    key = rows.name * 8 + rows.kind
    present, inverse = np.unique(key, return_inverse=True)
    numbers = [reader.pair("kineto", rows.names[k // 8], _TORCH_TYPES[k % 8]) for k in present.tolist()]
    device_tid: npt.NDArray[np.int64] = stream_lane(rows.device, np.maximum(rows.stream, 0))
    count = len(rows)
    spans = Spans(
        np.where(rows.on_device, device_tid, rows.tid),
        rows.start,
        np.maximum(rows.end, rows.start),
        np.array(numbers, np.int32)[inverse.reshape(-1)],
        np.full(count, -1, np.int32),
        np.zeros(count, np.int64),
        np.where(rows.correlation == MISSING, -1, rows.correlation),
    )
    info = describe(process.info, "profiler")
    reader.devices = set(device_tid[rows.on_device].tolist())
    for device, stream in {(int(d), int(s)) for d, s in zip(rows.device, rows.stream, strict=True) if s >= 0}:
        info["lanes"][str(stream_lane(device, stream))] = f"GPU {device} stream {stream}"
    return _finished(info, reader, [], spans)


# --- Where each moment of a training thread went: its exclusive timeline, as a part with a single row


LEDGER = "ledger"
_KIND = {"fetch_wait": "fetch wait", "comm": "communication", "own_code": "own code"}
_STEPS = [CLASSES.index(c) for c in ("block", "fetch_wait")]
_COMPUTE = [CLASSES.index(c) for c in ("forward", "backward", "optimizer", "update", "any_compute")]
_SKIP = CLASSES.index("skip")


def ledger_part(drawn: DrawnProcess, auto: bool = False) -> DrawnProcess | None:
    """The timeline of the training thread; None if there is none. Pairs are numbered as in STAGES.

    `auto`: its steps were recorded automatically, so what no stage covers in them is the program's own code.
    """
    cls_of_pair = np.array([class_of(cat, name) for cat, name, _ in drawn.pairs], np.uint8)
    main = _training_tid(drawn, cls_of_pair)
    if main is None:
        return None
    lanes = [_lane(drawn, tid, cls_of_pair, RULES[auto]) for tid in np.unique(drawn.row_tid).tolist()]
    mine = next(lane for lane in lanes if lane.tid == main)
    start, end, stage = overlay(mine, [lane for lane in lanes if lane.tid != main], auto)
    known = stage != NONE
    start, end, stage = start[known], end[known], stage[known]
    if auto:
        own = _uncovered(drawn, main, cls_of_pair, union(start, end))
        start, end = (np.concatenate(pair) for pair in ((start, own[0]), (end, own[1])))
        stage = np.concatenate((stage, np.full(own[0].size, STAGE_INDEX["own_code"], stage.dtype)))
        order = np.argsort(start, kind="stable")
        start, end, stage = start[order], end[order], stage[order]
    pairs = [
        (LEDGER, s.replace("_", " "), KIND_INDEX.get(_KIND.get(s, s), KIND_INDEX["other"])) for s in STAGES
    ]
    n = start.size
    spans = Spans(
        np.full(n, main, np.int64),
        start,
        end,
        stage.astype(np.int32),
        np.full(n, -1, np.int32),
        np.zeros(n, np.int64),
        np.full(n, -1, np.int64),
    )
    return lay_out({**drawn.info, "source": LEDGER, "tid": main}, pairs, [], spans)[0]


def _uncovered(
    drawn: DrawnProcess, tid: int, cls_of_pair: npt.NDArray[np.uint8], covered: Intervals
) -> Intervals:
    """What nothing covers in the steps of a thread, evaluation inside them left out."""
    rows = [drawn.row_span(r) for r in np.flatnonzero(drawn.row_tid == tid).tolist()]
    at = np.concatenate([np.arange(low, high) for low, high in rows])
    cls = cls_of_pair[drawn.pair[at]]
    body, around = at[cls == CLASSES.index("block")], at[cls == CLASSES.index("container")]
    evaluates = np.array([name.startswith(("evaluate", "test")) for _, name, _ in drawn.pairs], bool)
    around = around[evaluates[drawn.pair[around]]]
    steps = union(drawn.start[body], drawn.end[body])
    return difference(difference(steps, covered), union(drawn.start[around], drawn.end[around]))


def _training_tid(drawn: DrawnProcess, cls_of_pair: npt.NDArray[np.uint8]) -> int | None:
    """The thread with the most steps; without any, the one with the most compute."""
    for wanted in (_STEPS, _COMPUTE):
        of_pair = np.isin(cls_of_pair, wanted)
        if not of_pair.any():
            continue
        counts: dict[int, int] = {}
        for row in range(drawn.rows):
            low, high = drawn.row_span(row)
            tid = int(drawn.row_tid[row])
            counts[tid] = counts.get(tid, 0) + int(of_pair[drawn.pair[low:high]].sum())
        best = max(counts, key=lambda t: counts[t])
        if counts[best]:
            return best
    return None


def _lane(
    drawn: DrawnProcess, tid: int, cls_of_pair: npt.NDArray[np.uint8], rules: npt.NDArray[np.uint8]
) -> Lane:
    rows = [drawn.row_span(r) for r in np.flatnonzero(drawn.row_tid == tid).tolist()]
    at = np.concatenate([np.arange(low, high) for low, high in rows])
    # Among equal intervals, the later one encloses: here deeper rows come last.
    at = at[::-1]
    cls = cls_of_pair[drawn.pair[at]]
    at, cls = at[cls != _SKIP], cls[cls != _SKIP]
    start = drawn.start[at]
    pieces = timeline(start, drawn.end[at] - start, np.ascontiguousarray(cls), rules, len(STAGES), NONE)
    return Lane(tid, int64s(pieces[0]), int64s(pieces[1]), uint8s(pieces[2]), int(at.size))


def ledger_between(drawn: DrawnProcess, t0: int, t1: int) -> Ints:
    """The time of each stage between two moments; it adds up to the length of the range."""
    out = np.zeros(len(STAGES), np.int64)
    if len(drawn):
        out += _until(drawn, t1) - _until(drawn, t0)
    out[NONE] = (t1 - t0) - out[:NONE].sum()
    return out


def _until(drawn: DrawnProcess, t: int) -> Any:
    out = np.zeros(len(STAGES), np.int64)
    upto = int(np.searchsorted(drawn.start, t, side="left"))
    block = upto // BLOCK
    # Each stage has its own kind, so classes are stages.
    of_pair = drawn.class_of_pair().tolist()
    for k, c in enumerate(drawn.classes.tolist()):
        out[of_pair.index(c)] = int(drawn.sums[block * drawn.classes.size + k])
    for i in range(block * BLOCK, upto):
        out[drawn.pair[i]] += int(drawn.end[i]) - int(drawn.start[i])
    if upto and drawn.end[upto - 1] > t:
        out[drawn.pair[upto - 1]] -= int(drawn.end[upto - 1]) - t
    return out


# --- Which items went into which batch, and which step waited for it: as far as one process knows


def add_lineage(drawn: DrawnProcess, found: dict[str, list[Ints]], position: Ints) -> None:
    """Add the columns of waits, batches and items; `position` says where each span that was read is now."""
    nothing = np.empty(0, np.int64)
    for name in ("wait_span", "wait_batch", "wait_pid", "wait_worker"):
        drawn.columns[name] = nothing
    for name in ("made_span", "made_batch", "item_span", "item_of"):
        drawn.columns[name] = nothing
    if found["wait"]:
        table = np.concatenate(found["wait"], axis=1)
        pid = table[AWAITED.index("pid")]
        drawn.columns["wait_span"] = position[table[0]]
        drawn.columns["wait_batch"] = table[AWAITED.index("batch")]
        drawn.columns["wait_pid"] = np.where(pid == MISSING, drawn.info["pid"], pid)
        drawn.columns["wait_worker"] = np.where(
            table[AWAITED.index("worker")] == MISSING, -1, table[AWAITED.index("worker")]
        )
    if found["collate"]:
        table = np.concatenate(found["collate"], axis=1)
        span = position[table[0]]
        order = np.argsort(drawn.start[span], kind="stable")
        drawn.columns["made_span"] = span[order]
        drawn.columns["made_batch"] = table[MADE.index("batch")][order]
        _add_items(drawn)


def _add_items(drawn: DrawnProcess) -> None:
    """The items of a batch are those that its thread began since the batch before."""
    item_pairs = [i for i, (cat, name, _) in enumerate(drawn.pairs) if (cat, name) == ("data", "item")]
    items = np.flatnonzero(np.isin(drawn.pair, item_pairs))
    if items.size == 0:
        return
    tid_of = drawn.row_tid[np.searchsorted(drawn.row_at, items, side="right") - 1]
    made = drawn.made_span
    made_tid = drawn.row_tid[np.searchsorted(drawn.row_at, made, side="right") - 1]
    spans, owners = [], []
    for tid in np.unique(made_tid).tolist():
        batches = np.flatnonzero(made_tid == tid)
        mine = items[tid_of == tid]
        # An item belongs to the first batch that ends after it began.
        which = np.searchsorted(drawn.end[made[batches]], drawn.start[mine], side="right")
        inside = which < batches.size
        spans.append(mine[inside])
        owners.append(batches[which[inside]])
    drawn.columns["item_span"] = np.concatenate(spans)
    drawn.columns["item_of"] = np.concatenate(owners)
