"""The device's ledger inside profiler windows: busy time by kind of kernel, idle time by what it waited for.

A gap on the device ends with some kernel or copy. Until the host made the call that launched it, nothing was
queued: the device waited for the host, and what the host did meanwhile says why. Once queued, it needs
about the time of a launch to start; what is longer waits for another stream or an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.device.from_events import IDLE_CLASSES, DeviceAccount
from dftracer.analyze.device.profiler_rows import (
    FUNCTION,
    HOST,
    KERNEL,
    KERNEL_KINDS,
    LAUNCH,
    MEMCPY,
    MODULE,
    DeviceRows,
    kernel_kind,
)
from dftracer.analyze.intervals import (
    EMPTY,
    Intervals,
    clip,
    difference,
    innermost,
    intersection,
    measure,
    total,
    union,
    union_of,
)
from dftracer.analyze.map.account import Backlog, backlog_of_boundaries
from dftracer.analyze.map.own_code import HostWork
from dftracer.analyze.map.steps import StepTable
from dftracer.analyze.stages import INPUT_STAGES, NONE, STAGES
from dftracer.load.chunk import MISSING, Ints

# The time from a launch call to the kernel's start, if the trace does not say: ns.
_LAUNCH_NS = 10_000
_LAUNCH_LEAST, _LAUNCH_MOST = 2_000, 20_000
_BRIDGE_NS = 500_000_000  # without profiler steps, a window ends when nothing is recorded for this long
_TOP = 30  # kernels
_MOST = 8  # functions, and files
_SLOTS = 240  # of a plot


def idle_class_of_stage(stage: str) -> str:
    """What the device waits for while the host is in `stage`."""
    if stage in INPUT_STAGES:
        return "input"
    return stage if stage in ("comm", "checkpoint") else "host"


@dataclass
class HostSide:
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
        return _stage_at((self.start, self.end, self.stage), times)

    def stage_of_calls(self, times: Ints, tids: Ints) -> Ints:
        """The stage in which each call was made: the main thread's, otherwise that of the calling thread."""
        out = self.stage_at(times)
        for tid in np.unique(tids).tolist():
            if tid in self.threads:
                mine = np.flatnonzero((tids == tid) & (out == NONE))
                out[mine] = _stage_at(self.threads[tid], times[mine])
        return out


def _stage_at(lane: tuple[Ints, Ints, Ints], times: Ints) -> Ints:
    start, end, stage = lane
    if start.size == 0:
        return np.full(times.size, NONE, np.int64)
    i = np.searchsorted(start, times, side="right") - 1
    inside = (i >= 0) & (times < end[np.maximum(i, 0)])
    out: Ints = np.where(inside, stage[np.maximum(i, 0)], NONE)
    return out


def find_windows(rows: DeviceRows) -> list[tuple[int, int]]:
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


def account_of_rows(rows: DeviceRows, host: HostSide, work: HostWork) -> DeviceAccount | None:
    """The whole account; None if nothing ran on a device."""
    device = rows.take(np.flatnonzero(rows.on_device))
    if len(device) == 0:
        return None
    out = DeviceAccount(windows=find_windows(rows))
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
        for name, time in _idle(gaps, device.start[mine], launched[mine], host, at_work).items():
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
    out.steps = _steps(device, launched, host.steps, windows)
    when = np.where(launched == MISSING, device.start, launched)
    out.top = _top(device, kinds, when, host.stage_of_calls(when, callers), rows)
    out.over_time = _over_time(windows, busy, idle)
    return out


def backlog_of_rows(rows: DeviceRows, windows: list[tuple[int, int]], steps: StepTable) -> Backlog:
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


def _overlaps(out: DeviceAccount, device: DeviceRows, kinds: Ints, mine: npt.NDArray[np.bool_]) -> float:
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


def _idle(
    gaps: Intervals, starts: Ints, launched: Ints, host: HostSide, at_work: Intervals
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
    usual = min(max(usual, _LAUNCH_LEAST), _LAUNCH_MOST)
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


def _some(start: Ints, end: Ints, which: npt.NDArray[np.bool_]) -> Intervals:
    return union(start[which], end[which])


def _by_host(time: Intervals, host: HostSide, at_work: Intervals) -> dict[str, Intervals]:
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
            classes.setdefault(idle_class_of_stage(stage), []).append(intersection(time, during))
    out = {name: union_of(*parts) for name, parts in classes.items()}
    rest = difference(time, union_of(*out.values()))
    if not host.whole:
        out["unknown"] = difference(rest, at_work)
        rest = intersection(rest, at_work)
    out["host"] = union_of(out.get("host", EMPTY), rest)
    return out


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
    out: DeviceAccount, rows: DeviceRows, host: HostSide, idle: list[Intervals], work: HostWork
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


def _steps(device: DeviceRows, launched: Ints, steps: StepTable, windows: Intervals) -> list[dict[str, Any]]:
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


def _top(device: DeviceRows, kinds: Ints, when: Ints, stage: Ints, rows: DeviceRows) -> list[dict[str, Any]]:
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
    for name in np.argsort(-sums, kind="stable")[:_TOP].tolist():
        if not counts[name]:
            break
        at = mine[device.name[mine] == name]
        took = (device.end - device.start)[at]
        module = None
        if modules.size:
            inner = innermost(rows.start[modules], rows.end[modules], when[at])
            places = np.where(inner >= 0, rows.name[modules[np.maximum(inner, 0)]], -1)
            module = _name_of(_most(places, took), rows.names)
        phase = _most(stage[at], took)
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
                "operator": _name_of(_most(device.op[at], took), device.names),
            }
        )
    return out


def _most(keys: Ints, weight: Ints) -> int:
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
    return _seconds(time, start, end, name, [*rows.names, *work.names])


def _io_during(time: Intervals, work: HostWork, tid: int) -> dict[str, float]:
    """The same by the call that does I/O, with its file."""
    mine = np.flatnonzero((work.io == 1) & ((work.tid == tid) | (tid == 0)))
    return _seconds(time, work.start[mine], work.end[mine], work.name[mine], work.names)


def _seconds(time: Intervals, start: Ints, end: Ints, name: Ints, names: list[str]) -> dict[str, float]:
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
    most = sorted(np.flatnonzero(sums).tolist(), key=lambda n: (-sums[n], names[n]))[:_MOST]
    return {names[n]: float(sums[n]) / 1e9 for n in most}
