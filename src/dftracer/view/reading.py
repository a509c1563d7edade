"""From trace files and profiler files to parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.device_rows import HOST, KERNEL, LAUNCH, MEMCPY, MEMSET, MODULE
from dftracer.analyze.digest import by_process, bytes_moved
from dftracer.analyze.lineage import read_lineage
from dftracer.analyze.machine import Row, join_counters, read_counters
from dftracer.analyze.pairs import IO_NOT, Pairs
from dftracer.analyze.torch_files import TorchProcess
from dftracer.format.lines import COUNTER
from dftracer.load._scan import Scanner
from dftracer.load.chunk import MISSING, Chunk, Ints
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, scan_file
from dftracer.view.kinds import PROFILER_KINDS, kind_of
from dftracer.view.ledger_rows import ledger_part
from dftracer.view.lineage_rows import add_lineage
from dftracer.view.part import Codes, Part, Spans, build_part

__all__ = ["describe", "read_files", "read_torch"]

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
        self.devices: set[int] = set()
        self.auto = False  # its steps were recorded automatically
        self.lineage: dict[str, list[Ints]] = {"wait": [], "collate": []}
        self.counters: list[Row] = []

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
        """Waits and collations that name their batch, each with its place among the spans."""
        body = ("dataloader", "fetch.block")
        if not self.auto and body in keys:
            at = np.flatnonzero(local == keys.index(body))
            self.auto = bool(at.size) and '"auto":1' in chunk.args_text(int(rows[at[0]]))
        for kind, key in (("wait", ("dataloader", "fetch.iter")), ("collate", ("data", "collate"))):
            if key not in keys:
                continue
            at = np.flatnonzero(local == keys.index(key))
            place = at + self.rows  # in both tables the first row is what was given first
            table = read_lineage(kind, chunk, rows[at], (place, place, place))
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
            place, value = np.array(found, np.int64).T
            column[at[np.searchsorted(ends, place, side="right")]] = value


def _moved(chunk: Chunk, rows: Ints, local: Codes, pairs: Pairs) -> Ints:
    moved = np.zeros(rows.size, np.int64)
    kind = pairs.io_kinds[local]
    at = np.flatnonzero(kind != IO_NOT)
    if at.size:
        moved[at] = bytes_moved(chunk, rows, at, kind[at], pairs.returns_items[local[at]])
    return moved


def read_files(
    files: list[ProcessInfo],
    threads: int,
    chunk_text: int,
    progress: Callable[[int], None] | None = None,
) -> list[Part]:
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
) -> list[Part]:
    info["devices"] = sorted(reader.devices)
    info["counters"] = {
        name: {"ts": series.ts.tolist(), **{key: column.tolist() for key, column in series.values.items()}}
        for name, series in join_counters(reader.counters).items()
    }
    part, place = build_part(info, reader.pairs, paths, spans or reader.spans())
    add_lineage(part, reader.lineage, place)
    ledger = ledger_part(part, reader.auto)
    return [part] if ledger is None else [part, ledger]


def read_torch(process: TorchProcess) -> list[Part]:
    """A process as the profiler's own file shows it."""
    rows = process.rows
    reader = _Reader()
    key = rows.name * 8 + rows.kind
    present, inverse = np.unique(key, return_inverse=True)
    numbers = [reader.pair("kineto", rows.names[k // 8], _TORCH_TYPES[k % 8]) for k in present.tolist()]
    device_tid: npt.NDArray[np.int64] = ((rows.device + 1) << 24) + np.maximum(rows.stream, 0)
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
        info["lanes"][str(((device + 1) << 24) + stream)] = f"GPU {device} stream {stream}"
    return _finished(info, reader, [], spans)
