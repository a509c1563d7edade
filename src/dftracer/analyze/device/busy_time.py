"""The busy and idle time of a process's devices, from events at phase boundaries or from a profiler.

Events are always available, but coarse. One says when the device reached a boundary. While the host waits for
data it launches nothing, so the device is idle. In the phases that launch work, the device is busy at most
from the first boundary to the last; gaps between kernels are not visible, so busy time is an upper bound. If
the device reaches both ends of a phase as soon as the host does, the host sets the pace and it is not known
how busy the device was. Nor is it known in a checkpoint: the device copies its tensors to the host, briefly
or for most of it.

Inside its windows, a profiler is exact: busy time by kind of kernel, idle time by what the device waited for.
A gap ends with some kernel or copy. Until the host made the call that launched it, nothing was queued: the
device waited for the host, and what the host did meanwhile says why. Once queued, it needs about the time of
a launch to start; what is longer waits for another stream or an event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dftracer.analyze.device.profiler_rows import (
    FUNCTION,
    HOST,
    KERNEL,
    KERNEL_KINDS,
    LAUNCH,
    MEMCPY,
    MODULE,
    DeviceRows,
    joined,
    kernel_kind,
    rows_of_chunk,
)
from dftracer.analyze.intervals import (
    EMPTY,
    Bools,
    Floats,
    Intervals,
    clip,
    difference,
    innermost,
    intersection,
    key_at,
    measure,
    total,
    union,
    union_of,
)
from dftracer.analyze.map.account import NO_LAG_US, Backlog, backlog_of_boundaries
from dftracer.analyze.map.own_code import HostWork
from dftracer.analyze.map.steps import StepTable
from dftracer.analyze.map.threads import Lane
from dftracer.analyze.stages import INPUT_STAGES, NONE, STAGE_INDEX, STAGES
from dftracer.load.chunk import MISSING, Chunk, Ints
from dftracer.load.process import ProcessInfo

IDLE_CLASSES: Final = ("input", "host", "dependency", "launch", "comm", "checkpoint", "unknown")

PHASES: Final = ("fetch", "step", "transfer", "forward", "backward", "optimizer", "checkpoint")
_FETCH, _STEP, _CHECKPOINT = (PHASES.index(p) for p in ("fetch", "step", "checkpoint"))

_FETCH_WAIT = STAGE_INDEX["fetch_wait"]
_NO_LAG_SHARE = 0.1  # of a stretch: a lag up to this counts as none, as does NO_LAG_US
_PHASE_NUMBERS = {
    "lag": re.compile(rb'"lag_us":(-?[0-9.eE+-]+)'),
    "end_lag": re.compile(rb'"end_lag_us":(-?[0-9.eE+-]+)'),
    "error": re.compile(rb'"error_us":([0-9.eE+-]+)'),
    "memory": re.compile(rb'"memory":(\d+)'),
    "memory_peak": re.compile(rb'"memory_peak":(\d+)'),
}

# The time from a launch call to the kernel's start, if the trace does not say: ns.
_LAUNCH_NS = 10_000
_LAUNCH_MIN, _LAUNCH_MAX = 2_000, 20_000
_BRIDGE_NS = 500_000_000  # without profiler steps, a window ends when nothing is recorded for this long
_TOP_KERNELS = 30
_TOP_PLACES = 8  # functions, and files, that the host was in
_SLOTS = 240  # of a plot


@dataclass
class DeviceAccount:
    """What a device did, in seconds, by either source; `steps` and `top` are rows of the report."""

    source: str = "profiler"
    observed_s: float = 0.0
    busy_s: float = 0.0
    idle: dict[str, float] = field(default_factory=lambda: dict.fromkeys(IDLE_CLASSES, 0.0))
    kernels: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KERNEL_KINDS, 0.0))
    exposed_comm_s: float = 0.0
    copy_s: float = 0.0
    overlap_share: float | None = None
    launches: int = 0
    launch_delay_us: float | None = None
    graph_replays: int = 0
    windows: list[tuple[int, int]] = field(default_factory=list)
    streams: list[dict[str, Any]] = field(default_factory=list)
    host_phases: dict[str, float] = field(default_factory=dict)  # where the host was while the device idled
    host_functions: dict[str, float] = field(default_factory=dict)
    host_io: dict[str, float] = field(default_factory=dict)  # the same, by call and file
    steps: list[dict[str, Any]] = field(default_factory=list)
    top: list[dict[str, Any]] = field(default_factory=list)
    over_time: list[dict[str, Any]] = field(default_factory=list)
    # With events only: time in phases that the host paces, where busy and idle cannot be told apart; time in
    # checkpoints, where copies may run; how wrong the device's clock may be; each phase's own figures; and
    # the account of the steady steps.
    host_paced_s: float = 0.0
    in_checkpoints_s: float = 0.0
    error_us: float | None = None
    phases: list[dict[str, Any]] = field(default_factory=list)
    memory_peak: int | None = None
    steady: DeviceAccount | None = None

    @property
    def idle_s(self) -> float:
        return max(self.observed_s - self.busy_s, 0.0)

    @property
    def busy_share(self) -> float:
        return self.busy_s / self.observed_s if self.observed_s else 0.0


def device_parts(chunk: Chunk, rows: Any, pair: Any, keys: list[tuple[str, str]]) -> DeviceParts | None:
    """The rows of a chunk that concern devices; `rows` are its complete events, `pair` their pairs."""
    profiler = [i for i, (cat, _) in enumerate(keys) if cat == "PP"]
    phases = [i for i, (cat, _) in enumerate(keys) if cat == "device_time"]
    if not profiler and not phases:
        return None
    place = np.arange(chunk.rows)[rows]
    out = DeviceParts()
    for numbers, is_phase in ((profiler, False), (phases, True)):
        wanted = np.zeros(len(keys), dtype=bool)
        wanted[numbers] = True
        at = np.flatnonzero(wanted[pair])
        if at.size == 0:
            continue
        if is_phase:
            out.phases.append(_phases_of_chunk(chunk, place[at], [keys[p][1] for p in pair[at].tolist()]))
        else:
            used = np.flatnonzero(wanted & (np.bincount(pair[at], minlength=len(keys)) > 0))
            number = np.full(len(keys), -1, np.int64)
            number[used] = np.arange(used.size)
            found = rows_of_chunk(chunk, place[at], number[pair[at]], [keys[p][1] for p in used.tolist()])
            if found is not None:
                out.rows.append(found)
    return out


@dataclass
class DeviceParts:
    """The rows of one chunk, or of all so far."""

    rows: list[DeviceRows] = field(default_factory=list)
    phases: list[_PhaseRows] = field(default_factory=list)

    def add(self, more: DeviceParts | None) -> None:
        if more is not None:
            self.rows += more.rows
            self.phases += more.phases

    def add_files(self, rows: DeviceRows | None) -> None:
        """Rows of profiler files of the same process; unused if the trace itself has the same events."""
        if rows is not None and not any(r.on_device.any() for r in self.rows):
            self.rows = [rows]

    def sides(
        self, process: ProcessInfo, lanes: list[Lane], steps: StepTable, work: HostWork
    ) -> DeviceSides | None:
        """The accounts of the process; None if no device was found."""
        names = {
            key.split(".")[1]: value
            for key, value in process.user_metadata
            if key.startswith("device.") and key.endswith(".name")
        }
        out = DeviceSides(names)
        if self.rows:
            parts, self.rows = self.rows, []
            rows = joined(parts)
            out.profiler = _account_of_rows(rows, _host_side(rows, lanes, steps), work)
            if out.profiler is not None:
                out.backlog = _backlog_of_rows(rows, out.profiler.windows, steps)
        if self.phases:
            phases = _joined_phases(self.phases)
            out.events = _account_of_phases(phases, steps, steps.steady)
            if not out.backlog.source:
                out.backlog = _backlog_of_phases(phases, steps)
        return out if out.names or out.profiler or out.events else None


@dataclass
class DeviceSides:
    """The accounts of one process's devices."""

    names: dict[str, str] = field(default_factory=dict)  # of the devices, by number
    profiler: DeviceAccount | None = None
    events: DeviceAccount | None = None
    backlog: Backlog = field(default_factory=Backlog)

    @property
    def best(self) -> DeviceAccount | None:
        """The exact one if there is one."""
        return self.profiler or self.events


def _host_side(rows: DeviceRows, lanes: list[Lane], steps: StepTable) -> _HostSide:
    """The main thread: that of the steps, otherwise the one with the most profiler events."""
    values, counts = np.unique(rows.tid[rows.kind == HOST], return_counts=True)
    tids = {*values.tolist(), steps.tid}
    tid = steps.tid if len(steps) or not values.size else int(values[counts.argmax()])
    threads = {
        lane.tid: (lane.start * 1000, lane.end * 1000, lane.stage.astype(np.int64))
        for lane in lanes
        if lane.tid in tids
    }
    main = threads.pop(tid, None)
    if main is None:
        return _HostSide(steps=steps, threads=threads)
    return _HostSide(*main, steps, bool((main[2] == _FETCH_WAIT).any()), threads)


@dataclass
class _HostSide:
    """What the main thread did: an exclusive timeline in ns, and its steps.

    `whole`: the thread was observed all the time, so time in no stage is Python; otherwise it is unknown.
    """

    start: Ints = field(default_factory=lambda: EMPTY[0])
    end: Ints = field(default_factory=lambda: EMPTY[0])
    stage: Ints = field(default_factory=lambda: EMPTY[0])
    steps: StepTable = field(default_factory=StepTable.none)
    whole: bool = False
    threads: dict[int, tuple[Ints, Ints, Ints]] = field(default_factory=dict)  # the others, by tid

    def stage_at(self, times: Ints) -> Ints:
        """The main thread's stage at each time, NONE outside."""
        return key_at(self.start, self.end, self.stage, times, NONE)

    def stage_of_calls(self, times: Ints, tids: Ints) -> Ints:
        """The stage in which each call was made: the main thread's, otherwise that of the calling thread."""
        out = self.stage_at(times)
        for tid in np.unique(tids).tolist():
            if tid in self.threads:
                mine = np.flatnonzero((tids == tid) & (out == NONE))
                out[mine] = key_at(*self.threads[tid], times[mine], NONE)
        return out


def _none() -> Floats:
    return np.empty(0)


@dataclass
class _PhaseRows:
    """Phases on the device's side; times are in us."""

    phase: Floats = field(default_factory=_none)
    start: Floats = field(default_factory=_none)
    end: Floats = field(default_factory=_none)
    lag: Floats = field(default_factory=_none)
    end_lag: Floats = field(default_factory=_none)
    error: Floats = field(default_factory=_none)
    memory: Floats = field(default_factory=_none)
    memory_peak: Floats = field(default_factory=_none)


def _phases_of_chunk(chunk: Chunk, rows: npt.NDArray[np.intp], names: list[str]) -> _PhaseRows:
    """The rows of category `device_time` of a trace."""
    ends, text = chunk.args_of(rows)
    blob = text.tobytes()
    columns = {c: np.full(rows.size, np.nan) for c in _PHASE_NUMBERS}
    for column, pattern in _PHASE_NUMBERS.items():
        for match in pattern.finditer(blob):
            columns[column][np.searchsorted(ends, match.start(), side="right")] = float(match.group(1))
    number = {name: i for i, name in enumerate(PHASES)}
    start = chunk.ints("ts")[rows].astype(np.float64)
    return _PhaseRows(
        np.array([number.get(n, -1) for n in names], np.float64),
        start,
        start + chunk.ints("dur")[rows],
        **columns,
    )


def _joined_phases(parts: list[_PhaseRows]) -> _PhaseRows:
    """All parts as one."""
    return _PhaseRows(
        *(np.concatenate([getattr(p, c) for p in parts]) for c in _PhaseRows.__dataclass_fields__)
    )


def _account_of_phases(rows: _PhaseRows, steps: StepTable, steady: Bools) -> DeviceAccount | None:
    """The account of the whole run, with that of its steady steps; None with fewer than two boundaries."""
    rows = _with_lags(rows)
    if rows.start.size < 2:
        return None
    stretches = _stretches(rows)
    at = np.searchsorted(steps.start, stretches.host, side="right") - 1
    inside = (
        (at >= 0) & (stretches.host < steps.end[np.maximum(at, 0)]) if len(steps) else np.zeros(at.size, bool)
    )
    out = _account_of_stretches(stretches, stretches.seen)
    if steady.any():
        out.steady = _account_of_stretches(stretches, stretches.seen & inside & steady[np.maximum(at, 0)])
    out.error_us = float(np.nanmedian(rows.error)) if np.isfinite(rows.error).any() else None
    peaks = rows.memory_peak[np.isfinite(rows.memory_peak)]
    out.memory_peak = int(peaks.max()) if peaks.size else None
    out.phases = _phase_figures(rows)
    out.steps = _steps_by_events(rows, steps)
    return out


@dataclass
class _Stretches:
    """Time between one boundary and the next, on the device."""

    host: Floats  # the midpoint, on the host's side
    length: Floats
    label: Ints  # place in PHASES, -1 between phases
    paced: Bools  # the device was waiting for the host at both ends
    seen: Bools  # not of a step whose boundaries were left out


def _with_lags(rows: _PhaseRows) -> _PhaseRows:
    known = np.isfinite(rows.lag) & np.isfinite(rows.end_lag) & (rows.phase >= 0)
    return _PhaseRows(*(getattr(rows, c)[known] for c in _PhaseRows.__dataclass_fields__))


def _stretches(rows: _PhaseRows) -> _Stretches:
    host, device = _boundaries(rows)
    middle = (host[:-1] + host[1:]) / 2
    inner = np.flatnonzero(rows.phase != _STEP)
    begin, end = (rows.start - rows.lag)[inner], (rows.end - rows.end_lag)[inner]
    order = np.lexsort((-end, begin))
    inner, begin, end = inner[order], begin[order], end[order]
    at = innermost(begin, end, middle) if inner.size else np.full(middle.size, -1, np.int64)
    label = np.where(at >= 0, rows.phase[inner[np.maximum(at, 0)]] if inner.size else -1, -1).astype(np.int64)
    lag = device - host
    slack = np.maximum(NO_LAG_US, _NO_LAG_SHARE * np.diff(host))
    paced = (lag[:-1] <= slack) & (lag[1:] <= slack)
    return _Stretches(middle, np.diff(device), label, paced, _in_recorded_phases(rows, middle))


def _boundaries(rows: _PhaseRows) -> tuple[Floats, Floats]:
    """When the host and when the device reached each boundary, in order."""
    host = np.concatenate([rows.start - rows.lag, rows.end - rows.end_lag])
    device = np.concatenate([rows.start, rows.end])
    # A boundary is the end of one phase and the start of the next; times are rounded to us.
    order = np.lexsort((device, host))
    host, device = host[order], device[order]
    new = np.concatenate(([True], np.diff(host) > 1.0))
    return host[new], np.maximum.accumulate(device[new])


def _in_recorded_phases(rows: _PhaseRows, at: Floats) -> Bools:
    """Whether these host times are in something recorded; without steps, nothing was left out."""
    if not (rows.phase == _STEP).any():
        return np.ones(at.size, dtype=bool)
    begin, end = rows.start - rows.lag, rows.end - rows.end_lag
    order = np.argsort(begin)
    begin, end = begin[order], np.maximum.accumulate(end[order])
    before = np.searchsorted(begin, at, side="right") - 1
    return np.asarray((before >= 0) & (at <= end[np.maximum(before, 0)]))


def _account_of_stretches(s: _Stretches, which: Bools) -> DeviceAccount:
    out = DeviceAccount(source="events")
    out.kernels = {}
    out.observed_s = float(s.length[which].sum()) / 1e6
    out.idle["input"] = float(s.length[which & (s.label == _FETCH)].sum()) / 1e6
    out.in_checkpoints_s = float(s.length[which & (s.label == _CHECKPOINT)].sum()) / 1e6
    working = which & ~np.isin(s.label, [_FETCH, _CHECKPOINT])
    out.busy_s = float(s.length[working].sum()) / 1e6 + out.in_checkpoints_s
    out.host_paced_s = float(s.length[working & s.paced].sum()) / 1e6
    for number, name in enumerate(PHASES):
        mine = working & s.paced & (s.label == number)
        if mine.any():
            out.host_phases[name] = float(s.length[mine].sum()) / 1e6
    return out


def _phase_figures(rows: _PhaseRows) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for number, name in enumerate(PHASES):
        mine = rows.phase == number
        if not mine.any():
            continue
        memory = rows.memory[mine & np.isfinite(rows.memory)]
        out.append(
            {
                "phase": name,
                "count": int(mine.sum()),
                "device_s": round(float((rows.end - rows.start)[mine].sum()) / 1e6, 6),
                "median_us": round(float(np.median((rows.end - rows.start)[mine])), 1),
                "lag_us": round(float(np.median(rows.lag[mine])), 1),
                "end_lag_us": round(float(np.median(rows.end_lag[mine])), 1),
                "memory_bytes": int(memory.max()) if memory.size else None,
            }
        )
    return out


def _steps_by_events(rows: _PhaseRows, steps: StepTable) -> list[dict[str, Any]]:
    """Per step: an upper bound on how long the device worked for it, and how far behind it was at the end."""
    mine = np.flatnonzero(rows.phase == _STEP)
    if len(steps) == 0 or mine.size == 0:
        return []
    middle = (rows.start - rows.lag + rows.end - rows.end_lag)[mine] / 2
    at = np.searchsorted(steps.start, middle, side="right") - 1
    out: list[dict[str, Any]] = []
    for row, step in zip(mine.tolist(), at.tolist(), strict=True):
        if step < 0:
            continue
        label = int(steps.step[step])
        out.append(
            {
                "step": step if label == MISSING else label,
                "busy_s": round(float(rows.end[row] - rows.start[row]) / 1e6, 6),
                "lag_us": round(float(rows.end_lag[row]), 1),
            }
        )
    return out


def _backlog_of_phases(rows: _PhaseRows, steps: StepTable) -> Backlog:
    """When the device was behind the host."""
    rows = _with_lags(rows)
    if rows.start.size < 2 or not len(steps):
        return Backlog()
    host, device = _boundaries(rows)
    error = float(np.nanmedian(rows.error)) if np.isfinite(rows.error).any() else 0.0
    out = backlog_of_boundaries(host, device - host, steps, error)
    out.source = "events"
    return out


def _account_of_rows(rows: DeviceRows, host: _HostSide, work: HostWork) -> DeviceAccount | None:
    """The whole account; None if nothing ran on a device."""
    device = rows.take(np.flatnonzero(rows.on_device))
    if len(device) == 0:
        return None
    out = DeviceAccount(windows=_find_windows(rows))
    first, last = (np.array(c, np.int64) for c in zip(*out.windows, strict=True))
    windows: Intervals = (first, last)
    launched, callers = _launch_calls(rows, device)
    at_work = _host_at_work(rows)
    kinds = np.array([KERNEL_KINDS.index(kernel_kind(n)) for n in device.names] or [0], np.int64)[device.name]
    kinds[device.kind == MEMCPY] = KERNEL_KINDS.index("copy")
    idle: dict[str, list[Intervals]] = {c: [] for c in IDLE_CLASSES}
    busy: list[Intervals] = []
    hidden = 0.0
    for number in np.unique(device.device).tolist():
        mine = device.device == number
        ran = intersection(union(device.start[mine], device.end[mine]), windows)
        busy.append(ran)
        out.observed_s += total(windows) / 1e9
        out.busy_s += total(ran) / 1e9
        hidden += _overlaps(out, device, kinds, mine)
        gaps = difference(windows, ran)
        for name, time in _idle_by_class(gaps, device.start[mine], launched[mine], host, at_work).items():
            idle[name].append(time)
            out.idle[name] += total(time) / 1e9
        for stream in np.unique(device.stream[mine]).tolist():
            on = mine & (device.stream == stream)
            used = total(union(device.start[on], device.end[on])) / 1e9
            out.streams.append(
                {"device": number, "stream": stream, "busy_s": used, "idle_s": total(windows) / 1e9 - used}
            )
    moved = out.copy_s + out.kernels["communication"]
    out.overlap_share = hidden / moved if moved else None
    _launches(out, rows, device, launched)
    waiting = [idle[c] for c in ("host", "launch")]
    _where_the_host_was(out, rows, host, [t for times in waiting for t in times], work)
    out.steps = _steps_by_profiler(device, launched, host.steps, windows)
    when = np.where(launched == MISSING, device.start, launched)
    out.top = _top_kernels(device, kinds, when, host.stage_of_calls(when, callers), rows)
    out.over_time = _over_time(windows, busy, idle)
    return out


def _find_windows(rows: DeviceRows) -> list[tuple[int, int]]:
    """When the profiler recorded: from its steps, otherwise from the time its events cover."""
    if rows.windows:
        first = np.array([w[0] for w in rows.windows], np.int64)
        last = np.array([w[1] for w in rows.windows], np.int64)
        start, end = union(first, last)
        return list(zip(start.tolist(), end.tolist(), strict=True))
    if len(rows) == 0:
        return []
    names = rows.names
    steps = [
        i for i, n in enumerate(names) if n.startswith("ProfilerStep#") and n.rpartition("#")[2].isdigit()
    ]
    found = np.flatnonzero((rows.kind == HOST) & np.isin(rows.name, steps))
    numbered = [(int(names[rows.name[i]].rpartition("#")[2]), i) for i in found.tolist()]
    if numbered:
        numbered.sort(key=lambda n: int(rows.start[n[1]]))
        windows: list[list[int]] = []
        before = None
        for number, i in numbered:
            if before is None or number != before + 1:
                windows.append([int(rows.start[i]), int(rows.end[i])])
            windows[-1][1] = max(windows[-1][1], int(rows.end[i]))
            before = number
    else:
        start, end = union(rows.start, rows.end + _BRIDGE_NS)
        windows = [[a, b - _BRIDGE_NS] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    # Work the device still does belongs to the window that launched it.
    on = rows.on_device
    begins = np.array([w[0] for w in windows], np.int64)
    where = np.maximum(np.searchsorted(begins, rows.start[on], side="right") - 1, 0)
    first, last = (np.array(c, np.int64) for c in zip(*windows, strict=True))
    np.minimum.at(first, where, rows.start[on])
    np.maximum.at(last, where, rows.end[on])
    merged = union(first, last)
    return list(zip(merged[0].tolist(), merged[1].tolist(), strict=True))


def _launch_calls(rows: DeviceRows, device: DeviceRows) -> tuple[Ints, Ints]:
    """When, and in which thread, the host launched each piece of device work; MISSING if not known."""
    calls = np.flatnonzero((rows.kind == LAUNCH) & (rows.correlation >= 0))
    out = np.full(len(device), MISSING, np.int64)
    thread = out.copy()
    if calls.size == 0:
        return out, thread
    order = calls[np.argsort(rows.correlation[calls], kind="stable")]
    keys = rows.correlation[order]
    at = np.minimum(np.searchsorted(keys, device.correlation), keys.size - 1)
    hit = (keys[at] == device.correlation) & (device.correlation >= 0)
    out[hit] = rows.start[order[at[hit]]]
    thread[hit] = rows.tid[order[at[hit]]]
    return out, thread


def _overlaps(out: DeviceAccount, device: DeviceRows, kinds: Ints, mine: Bools) -> float:
    """Time by kind; returns how long copies and collectives overlapped with computation."""
    sets: dict[str, Intervals] = {}
    for i, kind in enumerate(KERNEL_KINDS):
        on = mine & (kinds == i)
        sets[kind] = union(device.start[on], device.end[on])
        out.kernels[kind] += total(sets[kind]) / 1e9
    on = (
        mine
        & (device.kind == KERNEL)
        & ~np.isin(kinds, [KERNEL_KINDS.index(k) for k in ("communication", "copy")])
    )
    compute = union(device.start[on], device.end[on])
    out.exposed_comm_s += total(difference(sets["communication"], compute)) / 1e9
    out.copy_s += total(sets["copy"]) / 1e9
    moved = [sets["communication"], sets["copy"]]
    return sum(total(intersection(m, compute)) for m in moved) / 1e9


def _idle_by_class(
    gaps: Intervals, starts: Ints, launched: Ints, host: _HostSide, at_work: Intervals
) -> dict[str, Intervals]:
    """The gaps of one device by class."""
    order = np.lexsort((launched, starts))
    starts, launched = starts[order], launched[order]
    begin, end = gaps
    at = np.searchsorted(starts, end, side="left")
    followed = (at < starts.size) & (starts[np.minimum(at, starts.size - 1)] == end)
    call = np.where(followed, launched[np.minimum(at, starts.size - 1)], MISSING)
    called = call != MISSING
    length = end - begin
    # How long a launch takes here: from the call to the start, if the device was already idle.
    fresh = called & (call >= begin)
    usual = int(np.median((end - call)[fresh])) if fresh.sum() >= 8 else _LAUNCH_NS
    usual = min(max(usual, _LAUNCH_MIN), _LAUNCH_MAX)
    short = followed & (length <= usual)
    cut = np.where(called, np.clip(call, begin, end), end)
    queued = np.minimum(end, np.maximum(cut, call + usual))
    unknown = followed & ~called & ~short
    out: dict[str, Intervals] = {
        "launch": union_of((begin[short], end[short]), (cut[called & ~short], queued[called & ~short])),
        "dependency": _some(queued, end, called & ~short),
        "unknown": _some(begin, end, unknown),
    }
    nothing_queued = _some(begin, cut, ~short & ~unknown)
    for name, time in _by_host(nothing_queued, host, at_work).items():
        out[name] = union_of(out[name], time) if name in out else time
    return out


def _some(start: Ints, end: Ints, which: Bools) -> Intervals:
    return union(start[which], end[which])


def _by_host(time: Intervals, host: _HostSide, at_work: Intervals) -> dict[str, Intervals]:
    """Time in which nothing was queued, by what the host did.

    If the main thread's loader was not found, only time covered by operators of some thread is the host's.
    """
    classes: dict[str, list[Intervals]] = {}
    for number, stage in enumerate(STAGES):
        if number == NONE:
            continue
        mine = host.stage == number
        if mine.any():
            during = union(host.start[mine], host.end[mine])
            classes.setdefault(_idle_class_of_stage(stage), []).append(intersection(time, during))
    out = {name: union_of(*parts) for name, parts in classes.items()}
    rest = difference(time, union_of(*out.values()))
    if not host.whole:
        out["unknown"] = difference(rest, at_work)
        rest = intersection(rest, at_work)
    out["host"] = union_of(out.get("host", EMPTY), rest)
    return out


def _idle_class_of_stage(stage: str) -> str:
    """What the device waits for while the host is in `stage`."""
    if stage in INPUT_STAGES:
        return "input"
    return stage if stage in ("comm", "checkpoint") else "host"


def _host_at_work(rows: DeviceRows) -> Intervals:
    """When operators or calls of any thread were running."""
    steps = [i for i, n in enumerate(rows.names) if n.startswith("ProfilerStep")]
    on = ((rows.kind == HOST) | (rows.kind == LAUNCH)) & ~np.isin(rows.name, steps)
    return union(rows.start[on], rows.end[on])


def _launches(out: DeviceAccount, rows: DeviceRows, device: DeviceRows, launched: Ints) -> None:
    known = launched != MISSING
    correlations = np.sort(device.correlation[known])
    out.launches = int(np.count_nonzero(np.diff(correlations))) + bool(correlations.size)
    if known.any():
        out.launch_delay_us = float(np.median((device.start - launched)[known])) / 1e3
    calls = rows.kind == LAUNCH
    graph = {i for i, n in enumerate(rows.names) if "graphlaunch" in n.lower()}
    if graph:
        out.graph_replays = int(np.isin(rows.name[calls], list(graph)).sum())


def _where_the_host_was(
    out: DeviceAccount, rows: DeviceRows, host: _HostSide, idle: list[Intervals], work: HostWork
) -> None:
    """Phases, functions and I/O of the host during the idle time it caused."""
    if not idle:
        return
    time = union_of(*idle)
    for number, stage in enumerate(STAGES):
        mine = host.stage == number
        if number != NONE and mine.any():
            ns = total(intersection(time, union(host.start[mine], host.end[mine])))
            if ns:
                out.host_phases[stage] = ns / 1e9
    seen = sum(out.host_phases.values())
    if total(time) / 1e9 - seen > 1e-6:
        out.host_phases["between phases"] = total(time) / 1e9 - seen
    out.host_functions = _functions_during(time, rows, work, host.steps.tid)
    out.host_io = _io_during(time, work, host.steps.tid)


def _functions_during(time: Intervals, rows: DeviceRows, work: HostWork, tid: int) -> dict[str, float]:
    """Seconds of `time` by the innermost operator, call or function around it; those with the most.

    `tid`: the thread that launches; 0 for all.
    """
    of_host = np.isin(rows.kind, (HOST, LAUNCH, MODULE, FUNCTION))
    steps = [i for i, n in enumerate(rows.names) if n.startswith("ProfilerStep")]
    on = np.flatnonzero(of_host & ~np.isin(rows.name, steps))
    mine = np.flatnonzero(work.io == 0)
    if tid:
        on = on[rows.tid[on] == tid]
        mine = mine[work.tid[mine] == tid]
    start = np.concatenate((rows.start[on], work.start[mine]))
    end = np.concatenate((rows.end[on], work.end[mine]))
    name = np.concatenate((rows.name[on], work.name[mine] + len(rows.names)))
    return _seconds_by_name(time, start, end, name, [*rows.names, *work.names])


def _io_during(time: Intervals, work: HostWork, tid: int) -> dict[str, float]:
    """The same by the call that does I/O, with its file."""
    mine = np.flatnonzero((work.io == 1) & ((work.tid == tid) | (tid == 0)))
    return _seconds_by_name(time, work.start[mine], work.end[mine], work.name[mine], work.names)


def _seconds_by_name(
    time: Intervals, start: Ints, end: Ints, name: Ints, names: list[str]
) -> dict[str, float]:
    if time[0].size == 0 or start.size == 0:
        return {}
    # Only spans that overlap the time matter, and between two of its edges nothing changes.
    at = np.searchsorted(time[0], end, side="left")
    inside = (at > 0) & (start < time[1][np.maximum(at, 1) - 1])
    start, end, name = start[inside], end[inside], name[inside]
    if start.size == 0:
        return {}
    order = np.lexsort((-end, start))
    start, end, name = start[order], end[order], name[order]
    edges = np.sort(np.concatenate((start, end, *time)))
    edges = edges[np.concatenate(([True], np.diff(edges) > 0))]
    middle = (edges[:-1] + edges[1:]) // 2
    gap = np.searchsorted(time[0], middle, side="right") - 1
    idle = (gap >= 0) & (middle < time[1][np.maximum(gap, 0)])
    inner = innermost(start, end, middle)
    known = idle & (inner >= 0)
    sums = np.bincount(name[inner[known]], weights=np.diff(edges)[known], minlength=len(names))
    most = sorted(np.flatnonzero(sums).tolist(), key=lambda n: (-sums[n], names[n]))[:_TOP_PLACES]
    return {names[n]: float(sums[n]) / 1e9 for n in most}


def _steps_by_profiler(
    device: DeviceRows, launched: Ints, steps: StepTable, windows: Intervals
) -> list[dict[str, Any]]:
    """Per step: the device's time for what was launched in it, and how far behind it was at the end."""
    if len(steps) == 0:
        return []
    start, end = steps.start * 1000, steps.end * 1000
    when = np.where(launched == MISSING, device.start, launched)
    at = np.searchsorted(start, when, side="right") - 1
    inside = (at >= 0) & (when < end[np.maximum(at, 0)])
    covered = measure(windows, start, end)
    rows: list[dict[str, Any]] = []
    for i in np.unique(at[inside]).tolist():
        if covered[i] < 0.5 * (end[i] - start[i]):
            continue  # began before the window or ended after it
        mine = inside & (at == i)
        busy = total(union(device.start[mine], device.end[mine]))
        label = int(steps.step[i])
        rows.append(
            {
                "step": i if label == MISSING else label,
                "busy_s": round(busy / 1e9, 9),
                "lag_us": round(max(int(device.end[mine].max()) - int(end[i]), 0) / 1e3, 3),
            }
        )
    return rows


def _top_kernels(
    device: DeviceRows, kinds: Ints, when: Ints, stage: Ints, rows: DeviceRows
) -> list[dict[str, Any]]:
    """The kernels that took longest in total, each with where most of it came from."""
    mine = np.flatnonzero(device.kind == KERNEL)
    if mine.size == 0:
        return []
    length = (device.end - device.start)[mine]
    sums = np.bincount(device.name[mine], weights=length, minlength=len(device.names))
    counts = np.bincount(device.name[mine], minlength=len(device.names))
    whole = max(float(sums.sum()), 1.0)
    modules = np.flatnonzero(rows.kind == MODULE)
    out: list[dict[str, Any]] = []
    for name in np.argsort(-sums, kind="stable")[:_TOP_KERNELS].tolist():
        if not counts[name]:
            break
        at = mine[device.name[mine] == name]
        took = (device.end - device.start)[at]
        module = None
        if modules.size:
            inner = innermost(rows.start[modules], rows.end[modules], when[at])
            places = np.where(inner >= 0, rows.name[modules[np.maximum(inner, 0)]], -1)
            module = _name_of(_heaviest(places, took), rows.names)
        phase = _heaviest(stage[at], took)
        out.append(
            {
                "name": device.names[name],
                "kind": KERNEL_KINDS[int(kinds[at[0]])],
                "seconds": round(float(sums[name]) / 1e9, 9),
                "share": round(float(sums[name]) / whole, 6),
                "count": int(counts[name]),
                "mean_us": round(float(sums[name]) / int(counts[name]) / 1e3, 3),
                "phase": None if phase in (-1, NONE) else STAGES[phase],
                "module": module,
                "operator": _name_of(_heaviest(device.op[at], took), device.names),
            }
        )
    return out


def _heaviest(keys: Ints, weight: Ints) -> int:
    values, place = np.unique(keys, return_inverse=True)
    return int(values[np.argmax(np.bincount(place, weights=weight))])


def _name_of(number: int, names: list[str]) -> str | None:
    return names[number] if number >= 0 else None


def _over_time(
    windows: Intervals, busy: list[Intervals], idle: dict[str, list[Intervals]]
) -> list[dict[str, Any]]:
    """Each window in slots: the share of busy time and of each class of idle time, for plotting."""
    out: list[dict[str, Any]] = []
    number = windows[0].size
    devices = max(len(busy), 1)
    for first, last in zip(windows[0].tolist(), windows[1].tolist(), strict=True):
        slots = max(_SLOTS // number, 8)
        edges = np.linspace(first, last, slots + 1).astype(np.int64)
        width = np.maximum(np.diff(edges), 1) * devices
        shares: dict[str, list[float]] = {}
        for name, times in (("busy", busy), *idle.items()):
            filled = sum(
                (measure(clip(t, first, last), edges[:-1], edges[1:]) for t in times), np.zeros(slots)
            )
            if name == "busy" or filled.any():
                shares[name] = [round(float(v), 3) for v in filled / width]
        out.append({"first_us": first // 1000, "last_us": last // 1000, "shares": shares})
    return out


def _backlog_of_rows(rows: DeviceRows, windows: list[tuple[int, int]], steps: StepTable) -> Backlog:
    """When the device was behind the host: from each launch until all that was launched is done."""
    device = rows.take(np.flatnonzero(rows.on_device))
    launched, _ = _launch_calls(rows, device)
    known = launched != MISSING
    if not known.any() or not len(steps):
        return Backlog()
    order = np.argsort(launched[known], kind="stable")
    host = launched[known][order] / 1e3
    reach = np.maximum.accumulate(device.end[known][order]) / 1e3
    first, last = (np.array(c, np.int64) // 1000 for c in zip(*windows, strict=True))
    out = backlog_of_boundaries(host, reach - host, steps)
    out.source, out.boundaries, out.windows = "profiler", EMPTY[0], union(first, last)
    return out
