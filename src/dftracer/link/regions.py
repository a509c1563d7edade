"""What our own trace says about a rank: `ai.*` regions, I/O, and the step, epoch and phase of a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link.columns import Codes, Flags, Interner, Ints, distinct
from dftracer.link.graph import nesting
from dftracer.load.chunk import MISSING, Chunk
from dftracer.load.trace import Trace, scan_file

AI_CATEGORIES = (
    "ai_root",
    "compute",
    "data",
    "dataloader",
    "comm",
    "device",
    "checkpoint",
    "pipeline",
    "other",
)
_IO_CATEGORIES = ("POSIX", "STDIO")
NOTHING = np.iinfo(np.int64).min


@dataclass
class Spans:
    """Events of our trace in the window, in order of their start; times in ns since the epoch."""

    pid: Ints
    tid: Ints
    start: Ints
    dur: Ints
    name: Codes
    cat: Codes
    step: Ints  # NOTHING where an event has none
    epoch: Ints
    bytes: Ints
    path: Codes
    texts: list[str]  # names, categories and paths
    is_io: Flags

    def __len__(self) -> int:
        return int(self.start.size)


@dataclass
class Labels:
    """For each requested moment: step and epoch (or NOTHING), and the phase as a code (or -1)."""

    step: Ints
    epoch: Ints
    phase: Codes
    phases: list[str]
    code: Codes  # the same for the same three
    rows: list[int]  # a row of each code


_COLUMNS = ("pid", "tid", "start", "dur", "name", "cat", "step", "epoch", "bytes", "path")


def read_spans(files: Sequence[Path], window: tuple[int, int]) -> Spans:
    """Regions that overlap the window (ns), and the I/O that began in it."""
    texts = Interner()
    parts: dict[str, list[Any]] = {c: [] for c in _COLUMNS}
    low, high = window[0] // 1000, -(-window[1] // 1000)
    both = tuple(c for name in AI_CATEGORIES for c in (name, name.upper()))
    if files:
        _collect(Trace(files, cats=both, threads=1), texts, parts, low, high)
        _collect(Trace(files, cats=_IO_CATEGORIES, time=(low, high), threads=1), texts, parts, low, high)
    columns = {c: np.concatenate(p) if p else np.zeros(0, dtype=np.int64) for c, p in parts.items()}
    order = np.lexsort((-columns["dur"], columns["start"]))
    columns = {c: v[order] for c, v in columns.items()}
    listed = list(texts)
    io = np.array([t in _IO_CATEGORIES for t in listed] or [False], dtype=bool)
    typed: dict[str, Any] = {
        c: v.astype(np.int32) if c in ("name", "cat", "path") else v for c, v in columns.items()
    }
    return Spans(
        **typed,
        texts=listed,
        is_io=io[columns["cat"].astype(np.int64)] if order.size else np.zeros(0, dtype=bool),
    )


def _collect(trace: Trace, texts: Interner, parts: dict[str, list[Any]], low: int, high: int) -> None:
    for process in trace.processes:
        if not trace.filter.wants(process):
            continue
        for scanner, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
            if not chunk.rows:
                continue
            ts, dur = chunk.ints("ts"), np.maximum(chunk.ints("dur"), 0)
            keep = (chunk.ph() == ord("X")) & (ts <= high) & (ts + dur >= low) & (chunk.codes("cat") >= 0)
            if not keep.any():
                continue
            keep[_below_python(chunk, scanner.dictionary("cat"), keep)] = False
            tid = chunk.ints("tid")
            columns = {
                "pid": chunk.ints("pid"),
                "tid": np.where(tid == MISSING, chunk.ints("pid"), tid),
                "start": ts * 1000,
                "dur": dur * 1000,
                "name": _codes(texts, scanner.dictionary("name"), chunk.codes("name")),
                "cat": _codes(texts, scanner.dictionary("cat"), chunk.codes("cat")),
                "step": _known(chunk.ints("step")),
                "epoch": _known(chunk.ints("epoch")),
                "bytes": _known(chunk.ints("ret")),
                "path": _codes(
                    texts, [process.path_of(h) for h in scanner.dictionary("fhash")], chunk.codes("fhash")
                ),
            }
            for name, values in columns.items():
                parts[name].append(values[keep])


def _below_python(chunk: Chunk, categories: list[str], keep: Flags) -> list[int]:
    """Rows that say what a library did inside a call: no regions of the program, which have steps."""
    communication = [code for code, name in enumerate(categories) if name.lower() == "comm"]
    rows = np.flatnonzero(keep & np.isin(chunk.codes("cat"), communication))
    return [row for row in rows.tolist() if '"below_python":1' in chunk.args_text(row)]


def _known(values: Ints) -> Ints:
    known: Ints = np.where(values == MISSING, NOTHING, values)
    return known


def _codes(texts: Interner, dictionary: list[str], codes: Codes) -> Ints:
    table = np.array([*texts.codes(dictionary), -1], dtype=np.int64)
    out: Ints = table[codes]
    return out


def label(
    spans: Spans, pid: int | None, tid: Ints, start: Ints, profiler_steps: tuple[Ints, Ints, Ints]
) -> Labels:
    """Which regions each moment of the threads `tid` is in: those of its thread, or of the main thread.

    `profiler_steps` (start, end, number) provide the step if no region does.
    """
    n = start.size
    row = np.full(n, -1, dtype=np.int64)
    own = ~spans.is_io
    if pid is not None:
        own &= spans.pid == pid
    regions = np.flatnonzero(own)
    step, epoch = spans.step.copy(), spans.epoch.copy()
    if regions.size:
        parent, _ = nesting(spans.tid[regions], spans.start[regions], spans.dur[regions])
        _inherit(step, epoch, regions, parent)
        for thread in distinct(spans.tid[regions]).tolist():
            mine = np.flatnonzero(spans.tid[regions] == thread)
            where = np.flatnonzero(tid == thread)
            row[where] = _innermost(spans, regions, parent, mine, start[where])
        main = np.flatnonzero(spans.tid[regions] == (pid if pid is not None else spans.tid[regions][0]))
        if main.size:
            where = np.flatnonzero(row < 0)
            row[where] = _innermost(spans, regions, parent, main, start[where])
    phases = Interner()
    phase = np.array([phases[_phase(spans, r)] for r in range(len(spans))] or [0], dtype=np.int32)
    at = np.maximum(row, 0)
    found = row >= 0
    steps = np.where(found, step[at] if len(spans) else NOTHING, NOTHING)
    epochs = np.where(found, epoch[at] if len(spans) else NOTHING, NOTHING)
    coded = np.where(found, phase[at] if len(spans) else -1, -1).astype(np.int32)
    begin, end, number = profiler_steps
    step_of = np.zeros(n, dtype=np.int64)
    if begin.size:
        open_rows = np.flatnonzero(steps == NOTHING)
        at = np.searchsorted(begin, start[open_rows], side="right") - 1
        inside = (at >= 0) & (start[open_rows] < end[np.maximum(at, 0)])
        steps[open_rows[inside]] = number[at[inside]]
        step_of[open_rows[inside]] = at[inside] + 1
    code, rows = _codes_of((row + 1) * (begin.size + 1) + step_of)
    return Labels(steps, epochs, coded, list(phases), code, rows)


def _codes_of(keys: Ints) -> tuple[Codes, list[int]]:
    """Numbers without gaps for keys, and a row of each."""
    if not keys.size:
        return np.zeros(0, dtype=np.int32), []
    if int(keys.max()) > 4 * keys.size + 1024:
        _, rows, code = np.unique(keys, return_index=True, return_inverse=True)
        return code.astype(np.int32), rows.tolist()
    last = np.full(int(keys.max()) + 1, -1, dtype=np.int64)
    last[keys] = np.arange(keys.size)
    there = np.flatnonzero(last >= 0)
    number = np.zeros(last.size, dtype=np.int32)
    number[there] = np.arange(there.size)
    return number[keys], last[there].tolist()


def _phase(spans: Spans, row: int) -> str:
    name, cat = spans.texts[spans.name[row]], spans.texts[spans.cat[row]].lower()
    return name if name == cat or name.startswith(cat + ".") else f"{cat}.{name}"


def _inherit(step: Ints, epoch: Ints, regions: Ints, parent: Ints) -> None:
    """A region without a step of its own is in the step of the region around it."""
    for values in (step, epoch):
        while True:
            missing = np.flatnonzero((values[regions] == NOTHING) & (parent >= 0))
            above = values[regions[parent[missing]]]
            filled = above != NOTHING
            if not filled.any():
                break
            values[regions[missing[filled]]] = above[filled]


def _innermost(spans: Spans, regions: Ints, parent: Ints, mine: Ints, moments: Ints) -> Ints:
    """The row of the innermost of the regions `mine` (all of one thread) at each moment."""
    begin = spans.start[regions[mine]]
    end = begin + spans.dur[regions[mine]]
    # At an end the outer region continues; ends come before starts, and the outermost of several is last.
    times = np.concatenate([begin, end])
    then = np.concatenate(
        [regions[mine], np.where(parent[mine] < 0, -1, regions[np.maximum(parent[mine], 0)])]
    )
    is_start = np.concatenate([np.ones(mine.size, dtype=np.int8), np.zeros(mine.size, dtype=np.int8)])
    outer_last = np.concatenate([np.arange(mine.size), -np.arange(mine.size)])
    order = np.lexsort((outer_last, is_start, times))
    at = np.searchsorted(times[order], moments, side="right") - 1
    return np.where(at >= 0, then[order][np.maximum(at, 0)], -1)
