"""The map step: turns one process's trace files into a small partial result (and lanes, which stay in place).

Nothing here looks at another process, so files can be analysed anywhere and in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dftracer.analyze.device.busy_time import DeviceParts, DeviceSides
from dftracer.analyze.device.profiler_rows import DeviceRows, TorchProcess
from dftracer.analyze.intervals import (
    EMPTY,
    Intervals,
    account,
    difference,
    intersection,
    measure,
    total,
    union,
    union_of,
    union_of_keys,
)
from dftracer.analyze.machine import CounterRow, Counters, join_counters
from dftracer.analyze.map.account import Backlog, Spent, backlog_of_calls, spent
from dftracer.analyze.map.digest import (
    IO_READ,
    UNUSED,
    Digest,
    Digester,
    Source,
    SpanDigest,
    Summed,
    by_process,
    digest_of,
)
from dftracer.analyze.map.memory import FileSums, NameSums, Rows
from dftracer.analyze.map.own_code import HostWork, Samples, WorkRows
from dftracer.analyze.map.steps import (
    Checkpoint,
    Marks,
    MarkTables,
    Phases,
    StepTable,
    evaluations_that_use_batches,
    find_phases,
    find_steps,
    phase_marks,
)
from dftracer.analyze.map.threads import AWAITED, Batches, Lane, Lanes, by_stage, overlay, profile, strip
from dftracer.analyze.peers import MeetingRows, Meetings, find_meetings, find_nccl_meetings
from dftracer.analyze.stages import (
    AI_CATEGORIES,
    CLASSES,
    COMPUTE_STAGES,
    INPUT_STAGES,
    NONE,
    RULES,
    SHOWS,
    STAGE_INDEX,
    STAGES,
    class_of,
)
from dftracer.format.trace_names import part_of
from dftracer.format.writer import MADE_BY, SLICE
from dftracer.load._scan import SelfTime, keep_events, nest, timeline
from dftracer.load.chunk import Ints, int32s, int64s, uint8s
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, scan_file

_SKIP = CLASSES.index("skip")
_IO_CLASSES = [CLASSES.index(c) for c in ("item", "read", "io_read", "io_write")]
_COMPUTE_CLASSES = [CLASSES.index(c) for c in (*COMPUTE_STAGES, "update", "any_compute")]
_UPDATE, _ANY_COMPUTE = CLASSES.index("update"), CLASSES.index("any_compute")
_IO_WRITE = CLASSES.index("io_write")
_INPUT = [STAGE_INDEX[s] for s in INPUT_STAGES]
_FETCH_WAIT, _OWN_CODE = STAGE_INDEX["fetch_wait"], STAGE_INDEX["own_code"]
_OWN = (_OWN_CODE, STAGE_INDEX["other"], NONE)


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
    before: Ints = field(default_factory=lambda: np.zeros(len(STAGES), np.int64))  # the first step
    waits: Intervals = EMPTY
    compute: Intervals = EMPTY
    comm: Intervals = EMPTY
    lanes: list[dict[str, Any]] = field(default_factory=list)
    items: Ints = field(default_factory=lambda: EMPTY[0])  # durations of `data.item`
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    covered_us: int = 0
    phases: Phases = field(default_factory=Phases)
    batches: int = 0  # loop bodies, including those of evaluations
    samples_made: int = 0  # in its steps, where only their rows are left
    device_busy: float | None = None  # the share of its steps, where only their rows are left
    auto: bool = False  # its steps were marked by automatic tracing
    from_rows: bool = False  # only its step rows are left: nothing is known of workers and devices
    unnamed_compute: bool = False  # compute is annotated, but none of its parts: it counts as forward
    seen: frozenset[str] = frozenset()  # the stages that some event made visible
    devices: DeviceSides | None = None  # what its devices did
    awaited: Ints = field(default_factory=lambda: np.empty((len(AWAITED), 0), np.int64))  # waits, by batch
    left: dict[int, int] = field(default_factory=dict)  # children that were waited for: pid to wait status
    counters: Counters = field(default_factory=dict)  # samples of the process and its machine, by name
    spent: Spent = field(default_factory=Spent)  # for the account of its time
    samples: Samples = field(default_factory=Samples)  # of the program's own code
    meetings: Meetings = field(default_factory=Meetings)  # with other ranks
    in_stream: Meetings = field(default_factory=Meetings)  # the same by NCCL
    blocked: bool = False  # some call of the device's runtime blocked the host
    checkpoints: list[Checkpoint] = field(default_factory=list)
    input: Intervals = EMPTY  # the thread with the steps waits for data or loads it
    updated_us: int | None = None  # a last step was updated then, whose end was never reached

    @property
    def finished_steps(self) -> int:
        """The steps whose updates were made."""
        return len(self.steps) + int(self.updated_us is not None)


def analyze_files(
    parts: list[ProcessInfo],
    where: Filter,
    threads: int,
    chunk_text: int,
    progress: Callable[[int], None] | None = None,
    files: dict[int, DeviceRows] | None = None,
) -> list[tuple[Partial, Lanes]]:
    """Read the files of one trace (its parts, in order) and analyse the process, or processes, in them.

    `progress` receives the number of bytes read; `files`: rows of profiler files, by pid.
    """
    whole = parts[0]
    unit = _Unit(whole)
    before = 0
    for part in parts:
        digester = Digester()
        for scanner, chunk in scan_file(part, where, threads, chunk_text, without=UNUSED):
            if part is not whole:
                whole.take(chunk.meta)
            for pid, rows in by_process(chunk):
                analyzer = unit.of(pid)
                analyzer.absorb(digester.digest(scanner, rows, analyzer.work.shortest))
            if progress is not None:
                progress(before + scanner.position())
        before += part.counts["file_bytes"]
        if part is not whole:
            _add_counts(whole.counts, part.counts)
    return unit.finish(where, files)


def join_spans(
    whole: ProcessInfo, spans: list[SpanDigest], where: Filter, files: dict[int, DeviceRows] | None = None
) -> list[tuple[Partial, Lanes]]:
    """The same from the digests of all sections of its files, in order."""
    unit = _Unit(whole)
    whole.counts = {}
    for span in spans:
        whole.take(span.meta)
        for pid, digest in span.digests:
            unit.of(pid).absorb(digest)
        _add_counts(whole.counts, span.counts)
    return unit.finish(where, files)


def analyze_torch(process: TorchProcess) -> tuple[Partial, Lanes]:
    """The same for a process that only the profiler recorded."""
    analyzer = _Analyzer(process.info)
    analyzer.absorb(digest_of(process))
    return analyzer.finish()


def _add_counts(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        into[key] = value if isinstance(value, bool) else into.get(key, 0) + value


class _Unit:
    """The analyzers of one trace: of its process, or of all processes in a merged file."""

    def __init__(self, whole: ProcessInfo) -> None:
        self.whole = whole
        self.analyzers = {whole.pid: _Analyzer(whole)}

    def of(self, pid: int) -> _Analyzer:
        if pid not in self.analyzers:
            process = self.whole.others.setdefault(pid, ProcessInfo(self.whole.file, pid))
            self.analyzers[pid] = _Analyzer(process)
        return self.analyzers[pid]

    def finish(self, where: Filter, files: dict[int, DeviceRows] | None) -> list[tuple[Partial, Lanes]]:
        self.whole.ranks()
        for a in self.analyzers.values():
            a.devices.add_files((files or {}).get(a.process.pid))
        for other in self.whole.others.values():
            other.paths = {**self.whole.paths, **other.paths}
            other.host = other.host or self.whole.host
        wanted = [a for a in self.analyzers.values() if where.takes(a.process)] or [*self.analyzers.values()]
        wanted[0].process.counts = self.whole.counts  # for the whole file, so they are reported once
        for a in wanted:
            a.whole = where.time is None and where.steps is None and where.epochs is None
        return [a.finish() for a in wanted]


class _Analyzer:
    """Combines the digests of one process, in the order of its files."""

    def __init__(self, process: ProcessInfo) -> None:
        self.process = process
        self.whole = True  # all of the process, not the events of some steps or seconds
        self.self_time = SelfTime()
        self.rows = 0
        self.keys: list[tuple[str, str]] = []
        self.classes: list[int] = []
        self.key_number: dict[tuple[str, str], int] = {}
        self.fhash: list[str] = []
        self.file_number: dict[str, int] = {}
        self.source: Source | None = None
        self.pair_map, self.file_map = _Renumbering(), _Renumbering()
        self.names = NameSums()
        self.calls = FileSums()
        self.kept = Rows("tid", "ts", "dur", "cls", "code")  # code: the pair, and whether it opens to write
        self.names_aside = NameSums()  # of events that are not kept
        self.io_rows = Rows("f", "ts", "dur")
        self.marks = MarkTables()
        self.ai: list[bool] = []
        self.ai_span: tuple[int, int] | None = None
        self.auto = False
        self.lineage: dict[str, list[Ints]] = {}
        self.by_time = Rows("tid", "ts", "dur", "pair")
        self.devices = DeviceParts()
        self.work = WorkRows()
        self.counters: list[CounterRow] = []
        self.samples = Samples()
        self.meetings = MeetingRows()
        self.first: int | None = None
        self.last: int | None = None
        self.summed_span: tuple[int, int] | None = None
        self.left: dict[int, int] = {}
        self.has_ids = False
        self.training_facts: dict[str, int] = {}
        self.checkpoints: list[Checkpoint] = []

    def absorb(self, d: Digest) -> None:
        self.rows += d.rows - len(d.counters)
        self.counters += d.counters
        if d.summed is not None:
            self._renumber(d.source)
            self._add_sums(d.summed)
        if d.ts.size == 0:
            return
        self._renumber(d.source)
        pair, ts, dur = self.pair_map.of(d.pair), d.ts, d.dur
        classes, ai = np.array(self.classes, dtype=np.uint8), np.array(self.ai, dtype=np.uint8)
        span, ai_span, kept, others = keep_events(
            pair, d.tid, ts, dur, d.to_write, classes, ai, _SKIP, _IO_WRITE
        )
        self.first, self.last = _wider(None if self.first is None else (self.first, self.last or 0), span)
        if ai_span[0] <= span[1]:
            self.ai_span = _wider(self.ai_span, ai_span)
        if d.ids is not None:
            self.names.add(pair, dur, int64s(self.self_time.update(*d.ids, dur)))
            self.has_ids = True
            aside, lengths = int32s(others[0]), int64s(others[1])
            self.names_aside.add(aside, lengths, lengths)
        else:
            self.by_time.add(d.tid, ts, dur, pair)
        *times, code, cls = kept
        self.kept.add(*map(int64s, times), uint8s(cls), int32s(code))
        if d.calls is not None and d.io_rows is not None:
            self.calls.add(d.calls, self.file_map.of)
            file, start, length = d.io_rows
            self.io_rows.add(self.file_map.of(file), start, length)
        self.left |= d.left
        self.training_facts |= d.training_facts
        self.marks.add(d.marks)
        self.auto = self.auto or d.auto
        self.devices.add(d.devices)
        if d.work is not None:
            d.work[3] = self.pair_map.of(d.work[3])
            d.work[4] = self.file_map.of(d.work[4])
            self.work.add(d.work)
        self.samples.add(d.samples)
        self.checkpoints += d.checkpoints
        self.meetings.add(d.meetings)
        for kind, rows in d.lineage.items():
            self.lineage.setdefault(kind, []).append(rows)

    def _add_sums(self, summed: Summed) -> None:
        """Calls without a place in time finer than their interval: they count, but are in no lane."""
        pair, dur, n, own = (summed.names[name].to_numpy() for name in ("pair", "dur", "n", "self"))
        for names in (self.names, self.names_aside):
            names.add(self.pair_map.of(pair), dur, own, n)
        if summed.calls is not None:
            self.calls.add(summed.calls, self.file_map.of)
        low, high = self.summed_span or summed.span
        self.summed_span = min(low, summed.span[0]), max(high, summed.span[1])

    def _renumber(self, source: Source) -> None:
        """Maps the numbers of this source to those of the whole process; for the first they are the same."""
        if source is not self.source:
            self.source, self.pair_map, self.file_map = source, _Renumbering(), _Renumbering()
        for key in source.keys[len(self.pair_map.numbers) :]:
            number = self.key_number.setdefault(key, len(self.keys))
            self.pair_map.add(number)
            if number == len(self.keys):
                self.keys.append(key)
                self.classes.append(class_of(*key))
                self.ai.append(key[0].lower() in AI_CATEGORIES)
        for text in source.files[len(self.file_map.numbers) :]:
            number = self.file_number.setdefault(text, len(self.fhash))
            self.file_map.add(number)
            if number == len(self.fhash):
                self.fhash.append(text)

    def finish(self) -> tuple[Partial, Lanes]:  # noqa: PLR0915 - one list of results, in order
        if self.first is None and self.summed_span is not None:
            self.first, self.last = self.summed_span
        steps, loops = find_steps(self.marks, self.auto)
        by_time = self.auto and self.has_ids
        (tid, ts, dur, cls, *code), counts = self.kept.take(*([] if by_time else ["code"]))
        if by_time:
            self._name_by_time(tid, ts, dur, code.pop(), counts)
        cls = cls.astype(np.uint8, copy=False)  # of no rows it is of another type
        if not self.auto and self.marks.step_is_whole(steps):
            cls[cls == _UPDATE] = _ANY_COMPUTE
        lanes = _lanes(tid, ts, dur, cls, counts, RULES[self.auto])
        end = np.add(ts, dur, out=dur)
        del tid, dur, counts  # memory use peaks here, so nothing is kept longer than needed
        out = Partial(
            self.process,
            self.rows,
            self.first,
            self.last,
            steps=steps,
            counters=join_counters(self.counters),
        )
        whole = self.ai_span or (self.first or 0, self.last or 0)
        if len(steps) and self._continues:
            whole = (int(steps.start[0]), whole[1])
        cut = self.process.end is None or bool(self.process.end.get("recovered"))
        marks = phase_marks(self.marks, steps.tid, whole, cut)
        self._set_lifetime(marks)
        if self.process.rank is None:  # a process that was given its rank after its start
            self.process.rank = self.training_facts.get("rank")
            self.process.world_size = self.training_facts.get("world_size", self.process.world_size)
        if self.auto:  # evaluations are marked; a forward without a backward is one that failed
            marks.forward = EMPTY
            marks.evaluate = evaluations_that_use_batches(steps, marks.evaluate, marks)
        out.phases = find_phases(steps, marks, loops)
        out.auto = self.auto
        out.left = self.left
        out.batches = self.marks.of("body", steps.tid).shape[1]
        out.names = self._names_frame()
        paths = [self.process.path_of(h) for h in self.fhash]
        out.files, out.io_time = self.calls.frames(paths)
        items = self.marks.of("item")
        out.items = np.sort(items[2])
        epochs = self.marks.of("epoch")
        out.epochs = [
            (int(t), int(t + d), int(e)) for t, d, e in zip(epochs[1], epochs[2], epochs[4], strict=True)
        ]
        present = [c for c in range(len(CLASSES)) if (cls == c).any()]
        _note_visible_stages(out, present)
        out.blocked = any(self.marks.of(kind).shape[1] for kind in ("blocked", "copied"))
        out.compute, out.comm, io_time = (
            union_of_keys(ts, end, cls, _is_one_of(classes)) if {*classes} & {*present} else EMPTY
            for classes in (_COMPUTE_CLASSES, [CLASSES.index("comm")], _IO_CLASSES)
        )
        del ts, end, cls
        (io_file, io_ts, io_dur), io_n = self.io_rows.take()
        heavy = Lanes(lanes, io_file.astype(np.int32, copy=False), io_ts, io_dur, io_time, paths, io_n=io_n)
        heavy.read = _are_read(paths, out.files)
        if "collate" in self.lineage:
            heavy.batches = Batches(np.concatenate(self.lineage["collate"], axis=1), *items[[0, 1, 2, 5]])
        if "wait" in self.lineage:
            out.awaited = np.concatenate(self.lineage["wait"], axis=1)
        out.covered_us = total(_covered(lanes))
        for lane in lanes:
            name = self.process.threads.get(lane.tid, "")
            made = items[2][items[0] == lane.tid]
            made = out.items if made.size == out.items.size else np.sort(made)
            out.lanes.append(_lane_row(lane, name, made))
        work = HostWork.of(self.work, self.keys, paths) if self.devices.rows else HostWork()
        out.devices = self.devices.sides(self.process, lanes, steps, work)
        out.samples = self.samples.joined()
        out.checkpoints = self.marks.count_done(steps, self.checkpoints)
        if self.auto and len(steps):
            updates = self.marks.spans("compute_step", steps.tid)[1]
            out.updated_us = int(updates.max()) if (updates > steps.end[-1]).any() else None
        if len(steps):
            self._ledger(out, lanes)
        return out, heavy

    @property
    def _continues(self) -> bool:
        """Whether what came before is gone: the first file is not the first part of its trace."""
        return part_of(self.process.file)[1] > 1

    def _set_lifetime(self, marks: Marks) -> None:
        """When the process began and ended, unless only a part of it is looked at."""
        process = self.process
        marks.part = process.facts.get(MADE_BY) == SLICE
        if not self.whole or marks.part:
            return
        if not self._continues:
            marks.born_us = process.start_us if process.born_us is None else process.born_us
        marks.over_us = process.end_us if process.end_us is not None else self.last
        marks.imported_us = self.training_facts.get("imported_us")
        marks.importing_us = self.training_facts.get("importing_us", 0)
        marks.failed = "exception" in process.facts or bool((process.end or {}).get("exit_code"))

    def _ledger(self, out: Partial, lanes: list[Lane]) -> None:
        """The exclusive timeline of the main thread's steps, refined by the process's other lanes."""
        steps = out.steps
        main = next(lane for lane in lanes if lane.tid == steps.tid)
        others = [lane for lane in lanes if lane.tid != steps.tid]
        start, end, stage = overlay(main, others, self.auto)
        aside = out.phases.aside
        named = ~np.isin(stage, _OWN)
        out.samples = out.samples.less(union_of(union(start[named], end[named]), out.phases.evaluation))
        out.account = account(start, end, stage, len(STAGES), steps.start, steps.end)
        inside = intersection((steps.start, steps.end), aside)
        if inside[0].size:
            step = np.searchsorted(steps.start, inside[0], side="right") - 1
            np.subtract.at(out.account, step, account(start, end, stage, len(STAGES), *inside))
        out.account[:, NONE] = 0
        out.account[:, NONE] = steps.wall - out.account.sum(axis=1)
        rest = NONE
        if (self.auto and steps.source in {"fetch", "block"}) or steps.source == "graph":
            rest = _OWN_CODE
            # Also where nobody saw the model: the program's own code may well be the forward pass then.
            out.account[:, _OWN_CODE] += out.account[:, NONE]
            out.account[:, NONE] = 0
        loading = np.isin(stage, _INPUT)
        out.input = union(start[loading], end[loading])
        wait = stage == _FETCH_WAIT
        in_steps = (start < steps.end[-1]) & (end > steps.start[0]) & wait
        out.waits = difference((start[in_steps], end[in_steps]), aside)
        before = np.array([out.phases.start]), steps.start[:1]
        before = difference(before, aside)
        if before[0].size:
            out.before = account(start, end, stage, len(STAGES), *before).sum(axis=0)
        gaps = out.phases.gaps
        if gaps[0].size:
            per_gap = account(start, end, stage, len(STAGES), gaps[0], gaps[1])
            out.outside = per_gap.sum(axis=0)
            out.outside[NONE] = 0
            out.outside[rest] += total(gaps) - out.outside.sum()
        meetings, synchronised = self.meetings.joined(), self.marks.of("blocked", steps.tid)
        out.meetings = find_meetings(meetings, steps.tid, (start, end, stage), aside, rest)
        out.in_stream = find_nccl_meetings(meetings, synchronised, (start, end, stage), aside, rest)
        out.spent = spent((start, end, stage), steps, aside, self._backlog(out), rest)
        window = steps.start[out.spent.first :][:1], steps.end[-1:]
        out.spent.evaluation_us = int(measure(out.phases.evaluation, *window)[0])
        out.spent.size = self._batch_sizes(steps)
        if out.devices is not None:
            out.devices.backlog = Backlog()  # as large as the trace, and no longer needed

    def _batch_sizes(self, steps: StepTable) -> Ints:
        """Bytes moved to the device in each step, otherwise the items that its thread made for it."""
        for kind in ("transfer", "item"):
            table = self.marks.of(kind, steps.tid)
            at = np.searchsorted(steps.start, table[1], side="right") - 1
            inside = (at >= 0) & (table[1] < steps.end[np.maximum(at, 0)])
            much = np.maximum(table[-1], 0) if kind == "transfer" else np.ones(at.size, np.int64)
            out = np.bincount(at[inside], weights=much[inside], minlength=len(steps)).astype(np.int64)
            if out.any():
                return out
        return np.zeros(len(steps), np.int64)

    def _backlog(self, out: Partial) -> Backlog:
        """When the device was behind; without figures of the device, as far as calls that blocked tell."""
        if out.devices is not None and out.devices.backlog.observed_in(out.steps):
            return out.devices.backlog
        copies, launches = (self.marks.of(kind, out.steps.tid) for kind in ("copied", "graph"))
        return backlog_of_calls(copies, launches, out.steps)

    def _name_by_time(self, tid: Ints, ts: Ints, dur: Ints, code: Ints, counts: Ints | None) -> None:
        """Automatic events, written when they are over, name no parent: nesting follows from the times."""
        self.names = self.names_aside
        if ts.size:
            _, raw = nest(*(np.ascontiguousarray(c.astype(np.int64)) for c in (tid, ts, dur)))
            self.names.add((code >> 1).astype(np.int32), dur, int64s(raw), counts)

    def _names_frame(self) -> pl.DataFrame:
        (tid, ts, dur, pair), counts = self.by_time.take()
        if ts.size:  # no parent ids in this dialect: nesting follows from the times
            _, raw = nest(*(np.ascontiguousarray(c.astype(np.int64)) for c in (tid, ts, dur)))
            self.names.add(pair, dur, int64s(raw), counts)
        keys = pl.DataFrame(
            {
                "pair": np.arange(len(self.keys), dtype=np.int32),
                "cat": pl.Series([k[0] for k in self.keys], dtype=pl.String),
                "name": pl.Series([k[1] for k in self.keys], dtype=pl.String),
            }
        )
        merged = self.names.frame()
        named: pl.DataFrame = merged.join(keys, on="pair").select("cat", "name", "dur", "n", "self")
        return named


def _note_visible_stages(out: Partial, present: list[int]) -> None:
    """Which stages the events show, and whether the parts of compute are named; `present`: classes."""
    named = {CLASSES.index(c) for c in ("forward", "backward", "update", "optimizer", "model_op")}
    out.unnamed_compute = _ANY_COMPUTE in present and not named & set(present)
    out.seen = frozenset(stage for c in present if (stage := SHOWS[c]) is not None)


def _covered(lanes: list[Lane]) -> Intervals:
    """The time in which any thread does anything; a single one's timeline is without overlaps."""
    if len(lanes) == 1:
        return lanes[0].start, lanes[0].end
    return union_of(*(union(lane.start, lane.end) for lane in lanes))


def _lane_row(lane: Lane, name: str, item_us: Ints) -> dict[str, Any]:
    """What a report says about one thread; `item_us` are the times of the samples it made, in order."""
    busy = lane.busy()
    return {
        "tid": lane.tid,
        "name": name,
        "events": lane.events,
        "first_us": int(lane.start[0]) if lane.start.size else None,
        "last_us": int(lane.end[-1]) if lane.end.size else None,
        "busy_us": total(busy),
        "stages": by_stage(lane),
        "profile": profile(busy),
        "strip": strip(lane),
        "items": int(item_us.size),
        "item_us": item_us,
    }


def _are_read(paths: list[str], files: pl.DataFrame | None) -> npt.NDArray[np.bool_]:
    """Which of the paths something was read from."""
    if files is None:
        return np.zeros(len(paths), dtype=bool)
    read = set(files.filter(pl.col("kind") == IO_READ)["path"].to_list())
    return np.array([path in read for path in paths], dtype=bool)


def _lanes(
    tid: Ints,
    ts: Ints,
    dur: Ints,
    cls: npt.NDArray[np.uint8],
    counts: Ints | None,
    rules: npt.NDArray[np.uint8],
) -> list[Lane]:
    lanes: list[Lane] = []
    tids = tid[:1] if (tid == tid[:1]).all() else np.unique(tid)
    for each in tids.tolist():
        mine: Any = slice(None) if tids.size == 1 else np.flatnonzero(tid == each)
        at, length, of = (np.ascontiguousarray(c[mine]) for c in (ts, dur, cls))
        parts = timeline(at, length, of, rules, len(STAGES), NONE)
        start, end = (int64s(p) for p in parts[:2])
        events = int(cls[mine].size if counts is None else counts[mine].sum())
        lanes.append(Lane(each, start, end, uint8s(parts[2]), events))
    return lanes


def _is_one_of(classes: list[int]) -> npt.NDArray[np.bool_]:
    """A table by class."""
    table = np.zeros(len(CLASSES), dtype=bool)
    table[classes] = True
    return table


def _wider(known: tuple[int, int] | None, span: tuple[int, int]) -> tuple[int, int]:
    return span if known is None else (min(known[0], span[0]), max(known[1], span[1]))


class _Renumbering:
    """From the numbers of a source to those of a process."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._same = True

    def add(self, number: int) -> None:
        self._same = self._same and number == len(self.numbers)
        self.numbers.append(number)

    def of(self, codes: Any) -> Any:
        """The new numbers of some codes; -1 stays -1."""
        return codes if self._same else np.array([*self.numbers, -1], dtype=np.int32)[codes]
