"""The map step: one process's trace file to a small partial result (and the lanes that stay where they are).

Nothing here looks at another process, so files can be analysed anywhere and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dftracer.analyze.intervals import EMPTY, Intervals, account, difference, measure, total, union
from dftracer.analyze.pairs import IO_NOT, IO_READ, IO_WRITE, Pairs
from dftracer.analyze.stages import CLASSES, COMPUTE, NONE, RULES, STAGE_INDEX, STAGES
from dftracer.analyze.steps import StepTable, steps_from_loop, steps_from_profiler, steps_from_step_ends
from dftracer.load._scan import Scanner, SelfTime, nest, timeline
from dftracer.load.chunk import MISSING, Chunk, Ints, int64s, uint8s
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, scan_file

__all__ = ["BIN_US_SHIFT", "Lane", "Lanes", "Partial", "analyze_files"]

BIN_US_SHIFT = 17  # I/O over time is kept in bins of 2^17 us (0.131 s) and made coarser when drawn
_PROFILE = 4096
_STRIP = 1536
_DEVICE_WORDS = ("stream", "cuda", "gpu")
_SKIP = CLASSES.index("skip")
_IO_CLASSES = [CLASSES.index(c) for c in ("read", "io_read", "io_write")]
_FETCH_WAIT = STAGE_INDEX["fetch_wait"]


@dataclass
class Lane:
    """One thread (or device stream) of a process: its exclusive timeline."""

    tid: int
    start: Ints
    end: Ints
    stage: npt.NDArray[np.uint8]
    events: int

    def of(self, *stages: int) -> Intervals:
        mine = np.isin(self.stage, stages)
        return self.start[mine], self.end[mine]

    def busy(self) -> Intervals:
        mine = self.stage != NONE
        return union(self.start[mine], self.end[mine])


@dataclass
class Lanes:
    """What stays at the node that read the file: its size grows with the trace."""

    lanes: list[Lane] = field(default_factory=list)
    io_file: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    io_ts: Ints = field(default_factory=lambda: EMPTY[0])
    io_dur: Ints = field(default_factory=lambda: EMPTY[0])
    io: Intervals = EMPTY  # all I/O and item reading, as one set of time
    paths: list[str] = field(default_factory=list)


@dataclass
class Partial:
    """The small result of one file."""

    process: ProcessInfo
    events: int = 0
    first_us: int | None = None
    last_us: int | None = None
    names: Any = None  # frame: cat, name, dur, n, self
    files: Any = None  # frame: path, kind, bin, n, bytes, us, extent
    io_time: Any = None  # frame: bin, kind, n, bytes, us
    steps: StepTable = field(default_factory=StepTable.none)
    account: Ints = field(default_factory=lambda: np.empty((0, len(STAGES)), np.int64))
    outside: Ints = field(default_factory=lambda: np.zeros(len(STAGES), np.int64))
    waits: Intervals = EMPTY
    compute: Intervals = EMPTY
    comm: Intervals = EMPTY
    device: Intervals | None = None  # when a device worked; None where no device lane was recorded
    lanes: list[dict[str, Any]] = field(default_factory=list)
    items: Ints = field(default_factory=lambda: EMPTY[0])  # durations of `data.item`
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    covered_us: int = 0


class _Analyzer:
    def __init__(self, process: ProcessInfo) -> None:
        self.process = process
        self.pairs = Pairs()
        self.self_time = SelfTime()
        self.rows = 0
        self.names: list[pl.DataFrame] = []
        self.files: list[pl.DataFrame] = []
        self.io_time: list[pl.DataFrame] = []
        self.kept: dict[str, list[Any]] = {k: [] for k in ("tid", "ts", "dur", "cls")}
        self.io_rows: dict[str, list[Any]] = {k: [] for k in ("f", "ts", "dur")}
        self.marks: dict[str, list[Ints]] = {}
        self.fhash: list[str] = []
        self.file_number: dict[str, int] = {}
        self.file_map: list[int] = []
        self.scanner: Scanner | None = None
        self.by_time: list[tuple[Ints, Ints, Ints, npt.NDArray[np.int32]]] = []
        self.first: int | None = None
        self.last: int | None = None

    def chunk(self, scanner: Scanner, chunk: Chunk) -> None:
        if chunk.rows == 0:
            return
        pair = self.pairs.of(scanner, chunk)
        ts, dur, tid = chunk.ints("ts"), chunk.ints("dur"), chunk.ints("tid")
        if not chunk.has("tid"):
            tid = chunk.ints("pid")
        ph = chunk.ph()
        complete = ph == ord("X")
        rows: Any = slice(None) if complete.all() else np.flatnonzero(complete)
        self.rows += chunk.rows
        pair, ts, dur, tid = (
            pair[rows],
            np.ascontiguousarray(ts[rows]),
            np.ascontiguousarray(dur[rows]),
            tid[rows],
        )
        if ts.size == 0:
            return
        low, high = int(ts.min()), int((ts + dur).max())
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)

        if chunk.has("p_idx") and chunk.has("id"):
            raw = self.self_time.update(
                np.ascontiguousarray(chunk.ints("id")[rows]),
                np.ascontiguousarray(chunk.ints("p_idx")[rows]),
                dur,
            )
            own = int64s(raw)
            self.names.append(self._count(pair, dur, own))
        else:
            self.by_time.append((tid, ts, dur, pair))

        cls = self.pairs.classes[pair]
        keep: Any = cls != _SKIP
        if keep.all():
            keep = slice(None)
        for key, column in (("tid", tid), ("ts", ts), ("dur", dur), ("cls", cls)):
            self.kept[key].append(np.array(column[keep]))
        self._io(scanner, chunk, rows, pair, ts, dur)
        self._mark(chunk, rows, pair, tid, ts, dur)

    def _count(self, pair: npt.NDArray[np.int32], dur: Ints, own: Ints) -> pl.DataFrame:
        frame = pl.DataFrame({"pair": pair, "dur": dur, "self": own})
        counted: pl.DataFrame = frame.group_by("pair", "dur").agg(pl.len().alias("n"), pl.col("self").sum())
        return counted

    def _io(self, scanner: Scanner, chunk: Chunk, rows: Any, pair: Any, ts: Ints, dur: Ints) -> None:
        kind = self.pairs.io_kinds[pair]
        at = np.flatnonzero(kind != IO_NOT)
        if at.size == 0:
            return
        file = self._file_codes(scanner, chunk.codes("fhash")[rows][at])
        kind = kind[at]
        moved = _bytes_moved(chunk, rows, at, kind, self.pairs.returns_items[pair[at]])
        size_bin = np.zeros(at.size, dtype=np.uint8)
        some = moved > 0
        size_bin[some] = np.floor(np.log2(moved[some])).astype(np.uint8) + 1
        start = ts[at]
        extent = np.maximum(chunk.ints("offset")[rows][at], 0) + moved
        frame = pl.DataFrame(
            {
                "f": file,
                "kind": kind,
                "bin": size_bin,
                "bytes": moved,
                "us": dur[at],
                "extent": extent,
                "t": start >> BIN_US_SHIFT,
            }
        )
        sums = [pl.len().alias("n"), pl.col("bytes").sum(), pl.col("us").sum()]
        self.files.append(frame.group_by("f", "kind", "bin").agg(*sums, pl.col("extent").max()))
        self.io_time.append(frame.group_by("t", "kind").agg(*sums))
        data = (kind == IO_READ) | (kind == IO_WRITE)
        for key, column in (("f", file), ("ts", start), ("dur", dur[at])):
            self.io_rows[key].append(column[data])

    def _file_codes(self, scanner: Scanner, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Codes of this scanner to those of the whole trace; with one part they are the same."""
        if scanner is not self.scanner:
            self.scanner, self.file_map = scanner, []
        for text in scanner.dictionary("fhash", len(self.file_map)):
            self.file_map.append(self.file_number.setdefault(text, len(self.fhash)))
            if self.file_map[-1] == len(self.fhash):
                self.fhash.append(text)
        if len(self.file_map) == len(self.fhash):
            return codes
        table = np.array([*self.file_map, -1], dtype=np.int32)
        return table[codes]

    def _mark(self, chunk: Chunk, rows: Any, pair: Any, tid: Ints, ts: Ints, dur: Ints) -> None:
        """Keep the events that delimit steps, items and epochs."""
        keys = self.pairs.keys
        kinds: dict[str, list[int]] = {}
        for i, (cat, name) in enumerate(keys):
            kind = _mark_kind(cat, name)
            if kind:
                kinds.setdefault(kind, []).append(i)
        for kind, numbers in kinds.items():
            table = np.zeros(len(keys), dtype=bool)
            table[numbers] = True
            at = np.flatnonzero(table[pair])
            if at.size == 0:
                continue
            label = chunk.ints("step")[rows][at]
            if kind == "profiler":
                label = np.array([_trailing_number(keys[p][1]) for p in pair[at].tolist()], dtype=np.int64)
            columns = (tid[at], ts[at], dur[at], label, chunk.ints("epoch")[rows][at])
            self.marks.setdefault(kind, []).append(np.stack(columns))

    def _marked(self, kind: str, tid: int | None = None) -> Ints:
        parts = self.marks.get(kind)
        if not parts:
            return np.empty((5, 0), np.int64)
        table = np.concatenate(parts, axis=1)
        return table if tid is None else table[:, table[0] == tid]

    def finish(self) -> tuple[Partial, Lanes]:
        lanes = self._lanes()
        steps = self._steps()
        out = Partial(self.process, events=self.rows, first_us=self.first, last_us=self.last, steps=steps)
        out.names = self._names_frame()
        paths = [self.process.path_of(h) for h in self.fhash]
        out.files = self._files_frame(paths)
        out.io_time = self._merge(self.io_time, ["t", "kind"], ["n", "bytes", "us"])
        items = self._marked("item")
        out.items = np.sort(items[2])
        epochs = self._marked("epoch")
        out.epochs = [
            (int(t), int(t + d), int(e)) for t, d, e in zip(epochs[1], epochs[2], epochs[4], strict=True)
        ]
        kept = {k: np.concatenate(v) if v else np.empty(0, np.int64) for k, v in self.kept.items()}
        is_compute = np.isin(kept["cls"], [*COMPUTE])
        out.compute = union(kept["ts"][is_compute], (kept["ts"] + kept["dur"])[is_compute])
        is_comm = kept["cls"] == CLASSES.index("comm")
        out.comm = union(kept["ts"][is_comm], (kept["ts"] + kept["dur"])[is_comm])
        is_io = np.isin(kept["cls"], _IO_CLASSES)
        io_file, io_ts, io_dur = (
            np.concatenate(v) if v else np.empty(0, np.int64) for v in self.io_rows.values()
        )
        io_time = union(kept["ts"][is_io], (kept["ts"] + kept["dur"])[is_io])
        heavy = Lanes(lanes, io_file.astype(np.int32), io_ts, io_dur, io_time, paths)
        if kept["ts"].size:
            out.covered_us = total(union(kept["ts"], kept["ts"] + kept["dur"]))
        for lane in lanes:
            busy = lane.busy()
            mine = items[:, items[0] == lane.tid]
            out.lanes.append(
                {
                    "tid": lane.tid,
                    "name": self.process.threads.get(lane.tid, ""),
                    "events": lane.events,
                    "first_us": int(lane.start[0]) if lane.start.size else None,
                    "last_us": int(lane.end[-1]) if lane.end.size else None,
                    "busy_us": total(busy),
                    "stages": _by_stage(lane),
                    "profile": _profile(busy),
                    "strip": _strip(lane),
                    "items": int(mine.shape[1]),
                    "item_us": np.sort(mine[2]),
                }
            )
        out.device = self._device(kept)
        if len(steps):
            self._ledger(out, lanes)
        return out, heavy

    def _device(self, kept: dict[str, Any]) -> Intervals | None:
        named = self.process.threads.items()
        tids = [tid for tid, name in named if any(w in name.lower() for w in _DEVICE_WORDS)]
        mine = np.isin(kept["tid"], tids) if tids else np.zeros(0, dtype=bool)
        if not mine.any():
            return None
        return union(kept["ts"][mine], (kept["ts"] + kept["dur"])[mine])

    def _lanes(self) -> list[Lane]:
        if not self.kept["ts"]:
            return []
        joined = {k: np.concatenate(v) for k, v in self.kept.items()}
        self.kept = {k: [v] for k, v in joined.items()}
        lanes: list[Lane] = []
        tids = np.unique(joined["tid"])
        for tid in tids.tolist():
            mine: Any = slice(None) if tids.size == 1 else np.flatnonzero(joined["tid"] == tid)
            cls = np.ascontiguousarray(joined["cls"][mine])
            parts = timeline(
                np.ascontiguousarray(joined["ts"][mine]),
                np.ascontiguousarray(joined["dur"][mine]),
                cls,
                RULES,
                len(STAGES),
                NONE,
            )
            start, end = (int64s(p) for p in parts[:2])
            lanes.append(Lane(tid, start, end, uint8s(parts[2]), int(cls.size)))
        return lanes

    def _steps(self) -> StepTable:
        waits = self._marked("wait")
        best = StepTable.none()
        for tid in np.unique(waits[0]).tolist():
            w, b = self._marked("wait", tid), self._marked("body", tid)
            table = steps_from_loop(w[1], w[2], b[1], b[2], b[3], b[4])
            if len(table) > len(best):
                best, best.tid = table, tid
        if len(best):
            return best
        for kind in ("profiler", "compute_step"):
            marks = self._marked(kind)
            for tid in np.unique(marks[0]).tolist():
                m = self._marked(kind, tid)
                if kind == "profiler":
                    table = steps_from_profiler(m[1], m[2], m[3])
                else:
                    table = steps_from_step_ends(m[1], m[2], m[3], m[4])
                if len(table) > len(best):
                    best, best.tid = table, tid
            if len(best):
                return best
        return best

    def _ledger(self, out: Partial, lanes: list[Lane]) -> None:
        """The exclusive account of the main thread's steps, refined by the process's other lanes."""
        steps = out.steps
        main = next(lane for lane in lanes if lane.tid == steps.tid)
        others = [lane for lane in lanes if lane.tid != steps.tid]
        start, end, stage = overlay(main, others)
        out.account = account(start, end, stage, len(STAGES), steps.start, steps.end)
        explained = out.account[:, :NONE].sum(axis=1)
        out.account[:, NONE] = (steps.end - steps.start) - explained
        wait = stage == _FETCH_WAIT
        in_steps = (start < steps.end[-1]) & (end > steps.start[0]) & wait
        out.waits = (start[in_steps], end[in_steps])
        # Between the first and the last step, but in none: epoch ends, evaluation, checkpoints outside the
        # loop.
        gaps = difference((steps.start[:1], steps.end[-1:]), union(steps.start, steps.end))
        if gaps[0].size:
            per_gap = account(start, end, stage, len(STAGES), gaps[0], gaps[1])
            out.outside = per_gap.sum(axis=0)
            out.outside[NONE] = total(gaps) - out.outside[:NONE].sum()

    def _names_frame(self) -> pl.DataFrame:
        parts = self.names
        if self.by_time:  # no parent ids in this dialect: nesting follows from the times
            tid, ts, dur, pair = (np.concatenate([b[i] for b in self.by_time]) for i in range(4))
            _, raw = nest(*(np.ascontiguousarray(c.astype(np.int64)) for c in (tid, ts, dur)))
            parts = [*parts, self._count(pair, dur, int64s(raw))]
            self.by_time = []
        merged = self._merge(parts, ["pair", "dur"], ["n", "self"])
        if merged is None:
            return pl.DataFrame(
                schema={
                    "cat": pl.String,
                    "name": pl.String,
                    "dur": pl.Int64,
                    "n": pl.UInt32,
                    "self": pl.Int64,
                }
            )
        keys = pl.DataFrame(
            {
                "pair": np.arange(len(self.pairs.keys), dtype=np.int32),
                "cat": [k[0] for k in self.pairs.keys],
                "name": [k[1] for k in self.pairs.keys],
            }
        )
        named: pl.DataFrame = merged.join(keys, on="pair").select("cat", "name", "dur", "n", "self")
        return named

    def _files_frame(self, paths: list[str]) -> pl.DataFrame | None:
        merged = self._merge(self.files, ["f", "kind", "bin"], ["n", "bytes", "us"], ["extent"])
        if merged is None:
            return None
        keys = pl.DataFrame(
            {"f": np.arange(len(paths), dtype=np.int32), "path": paths},
            schema={"f": pl.Int32, "path": pl.String},
        )
        named: pl.DataFrame = merged.join(keys, on="f", how="left").select(
            pl.col("path").fill_null("(unknown)"), "kind", "bin", "n", "bytes", "us", "extent"
        )
        return named

    def _merge(
        self, parts: list[pl.DataFrame], keys: list[str], sums: list[str], most: list[str] | None = None
    ) -> pl.DataFrame | None:
        if not parts:
            return None
        if len(parts) == 1:
            return parts[0]
        merged: pl.DataFrame = (
            pl.concat(parts)
            .group_by(keys)
            .agg(*(pl.col(s).sum() for s in sums), *(pl.col(m).max() for m in most or []))
        )
        return merged


def overlay(main: Lane, others: list[Lane]) -> tuple[Ints, Ints, Ints]:
    """The main thread's timeline, where other lanes of the process speak for time it cannot explain itself.

    Compute elsewhere (a device, a helper thread) also counts when the main thread waits for its loader: that
    wait costs nothing. Communication and the like only fill what is unexplained.
    """
    start, end, stage = main.start, main.end, main.stage.astype(np.int64)
    if not others:
        return start, end, stage
    fills: list[tuple[int, Intervals, tuple[int, ...]]] = []
    order = [
        "forward",
        "backward",
        "optimizer",
        "comm",
        "transfer",
        "checkpoint",
        "collate",
        "preprocess",
        "read",
    ]
    for name in order:
        s = STAGE_INDEX[name]
        pieces = [lane.of(s) for lane in others]
        time = union(np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces]))
        if time[0].size:
            fills.append((s, time, (NONE, _FETCH_WAIT) if s in COMPUTE else (NONE,)))
    if not fills:
        return start, end, stage
    # Cut everything at every boundary, then decide each piece once.
    edges = np.unique(np.concatenate([start, end, *(e for _, t, _ in fills for e in t)]))
    left, right = edges[:-1], edges[1:]
    i = np.searchsorted(start, left, side="right") - 1
    inside = (i >= 0) & (left < end[np.maximum(i, 0)])
    piece = np.where(inside, stage[np.maximum(i, 0)], NONE)
    taken = np.zeros(piece.size, dtype=bool)
    for s, time, over in fills:
        hit = (measure(time, left, right) > 0) & np.isin(piece, over) & ~taken
        piece[hit] = s
        taken |= hit
    keep = inside | taken
    return left[keep], right[keep], piece[keep]


def _by_stage(lane: Lane) -> dict[str, int]:
    length = lane.end - lane.start
    sums = np.bincount(lane.stage, weights=length, minlength=len(STAGES)).astype(np.int64)
    return {STAGES[i]: int(v) for i, v in enumerate(sums) if v and i != NONE}


def _profile(busy: Intervals) -> tuple[Ints, Ints]:
    """Busy time up to each of at most a few thousand moments: enough to draw, whatever the lane's length."""
    if busy[0].size == 0:
        return EMPTY
    if busy[0].size <= _PROFILE // 2:
        times = np.stack(busy, axis=1).reshape(-1)
    else:
        times = np.linspace(busy[0][0], busy[1][-1], _PROFILE).astype(np.int64)
    return times, measure(busy, np.full(times.size, times[0]), times)


def _strip(lane: Lane) -> dict[str, Any] | None:
    """The lane in a fixed number of pieces, for drawing: the stage that fills most of each, and how full
    it is.
    """
    if lane.start.size == 0:
        return None
    first, last = int(lane.start[0]), int(lane.end[-1])
    edges = np.linspace(first, last, _STRIP + 1).astype(np.int64)
    table = account(lane.start, lane.end, lane.stage.astype(np.int64), len(STAGES), edges[:-1], edges[1:])
    table[:, NONE] = 0
    width = np.maximum(np.diff(edges), 1)
    fill = np.minimum(table.sum(axis=1) / width, 1.0)
    return {
        "first_us": first,
        "last_us": last,
        "stage": np.where(fill > 0, table.argmax(axis=1), NONE).astype(np.uint8),
        "fill": (fill * 9 + 0.5).astype(np.uint8),
    }


def _mark_kind(cat: str, name: str) -> str:
    if cat == "dataloader":
        return {"fetch.iter": "wait", "fetch.block": "body"}.get(name, "")
    if cat == "data" and name == "item":
        return "item"
    if cat == "pipeline" and name in {"epoch", "epoch.block"}:
        return "epoch"
    if cat == "compute" and name == "step":
        return "compute_step"
    return "profiler" if name.startswith("ProfilerStep") else ""


def _trailing_number(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdigit() else MISSING


def _bytes_moved(
    chunk: Chunk, rows: Any, at: Any, kind: npt.NDArray[np.uint8], items: npt.NDArray[np.bool_]
) -> Ints:
    """Bytes a call moved: what it returned, else what it was asked for."""
    ret = chunk.ints("ret")[rows][at]
    size, count = (chunk.ints(c)[rows][at] for c in ("size", "count"))
    asked = np.where(size == MISSING, count, size)
    moved = np.where(ret == MISSING, asked, ret)
    if items.any():
        moved = np.where(items & (ret > 0) & (size > 0) & (count > 0), ret * np.maximum(size, 1), moved)
    data = (kind == IO_READ) | (kind == IO_WRITE)
    result: Ints = np.where(data & (moved > 0), moved, 0)
    return result


def analyze_files(
    parts: list[ProcessInfo], where: Filter, threads: int, chunk_text: int
) -> list[tuple[Partial, Lanes]]:
    """Read the files of one trace (its parts, in order) and analyse the process, or processes, in them."""
    analyzers: dict[int, _Analyzer] = {}

    def analyzer(pid: int, first: ProcessInfo) -> _Analyzer:
        if pid not in analyzers:
            analyzers[pid] = _Analyzer(
                first if pid == first.pid else first.others.setdefault(pid, ProcessInfo(first.file, pid))
            )
        return analyzers[pid]

    whole = parts[0]
    analyzer(whole.pid, whole)
    for part in parts:
        for scanner, chunk in scan_file(part, where, threads, chunk_text):
            if part is not whole:
                whole.take(chunk.meta)
            if chunk.rows == 0:
                continue
            pids = chunk.ints("pid")
            if (pids[0] == pids).all():
                analyzer(int(pids[0]), whole).chunk(scanner, chunk)
                continue
            for pid in np.unique(pids).tolist():
                analyzer(pid, whole).chunk(scanner, chunk.select(np.flatnonzero(pids == pid)))
        if part is not whole:
            _add_counts(whole.counts, part.counts)
    for other in whole.others.values():
        other.paths = {**whole.paths, **other.paths}
        other.host = other.host or whole.host
    return [a.finish() for a in analyzers.values()]


def _add_counts(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        into[key] = value if isinstance(value, bool) else into.get(key, 0) + value
