"""The account of a device, and how events at phase boundaries give it: always available, but coarse.

An event says when the device reached a boundary. While the host waits for data it launches nothing, so the
device is idle. In the phases that launch work, the device is busy at most from the first boundary
to the last; gaps between kernels are not visible, so busy time is an upper bound. If the device reaches both
ends of a phase as soon as the host does, the host sets the pace and it is not known how busy the device
was. Nor is it known in a checkpoint: the device copies its tensors to the host, briefly or for most of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dftracer.analyze.device.profiler_rows import (
    KERNEL_KINDS,
)
from dftracer.analyze.intervals import (
    innermost,
)
from dftracer.analyze.map.account import NO_LAG_US, Backlog, Floats, backlog_of_boundaries
from dftracer.analyze.map.steps import StepTable
from dftracer.load.chunk import MISSING, Chunk, Ints

IDLE_CLASSES: Final = ("input", "host", "dependency", "launch", "comm", "checkpoint", "unknown")

PHASES: Final = ("fetch", "step", "transfer", "forward", "backward", "optimizer", "checkpoint")
_FETCH, _STEP, _CHECKPOINT = (PHASES.index(p) for p in ("fetch", "step", "checkpoint"))
_NO_LAG_SHARE = 0.1  # of a stretch: a lag up to this counts as none, as does NO_LAG_US
_NUMBERS = {
    "lag": re.compile(rb'"lag_us":(-?[0-9.eE+-]+)'),
    "end_lag": re.compile(rb'"end_lag_us":(-?[0-9.eE+-]+)'),
    "error": re.compile(rb'"error_us":([0-9.eE+-]+)'),
    "memory": re.compile(rb'"memory":(\d+)'),
    "memory_peak": re.compile(rb'"memory_peak":(\d+)'),
}


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


def _none() -> Floats:
    return np.empty(0)


@dataclass
class PhaseRows:
    """Phases on the device's side; times are in us."""

    phase: Floats = field(default_factory=_none)
    start: Floats = field(default_factory=_none)
    end: Floats = field(default_factory=_none)
    lag: Floats = field(default_factory=_none)
    end_lag: Floats = field(default_factory=_none)
    error: Floats = field(default_factory=_none)
    memory: Floats = field(default_factory=_none)
    memory_peak: Floats = field(default_factory=_none)


def phases_of_chunk(chunk: Chunk, rows: npt.NDArray[np.intp], names: list[str]) -> PhaseRows:
    """The rows of category `device_time` of a trace."""
    ends, text = chunk.args_of(rows)
    blob = text.tobytes()
    columns = {c: np.full(rows.size, np.nan) for c in _NUMBERS}
    for column, pattern in _NUMBERS.items():
        for match in pattern.finditer(blob):
            columns[column][np.searchsorted(ends, match.start(), side="right")] = float(match.group(1))
    number = {name: i for i, name in enumerate(PHASES)}
    start = chunk.ints("ts")[rows].astype(np.float64)
    return PhaseRows(
        np.array([number.get(n, -1) for n in names], np.float64),
        start,
        start + chunk.ints("dur")[rows],
        **columns,
    )


def joined_phases(parts: list[PhaseRows]) -> PhaseRows:
    """All parts as one."""
    return PhaseRows(
        *(np.concatenate([getattr(p, c) for p in parts]) for c in PhaseRows.__dataclass_fields__)
    )


@dataclass
class _Stretches:
    """Time between one boundary and the next, on the device."""

    host: Floats  # the midpoint, on the host's side
    length: Floats
    label: Ints  # place in PHASES, -1 between phases
    paced: npt.NDArray[np.bool_]  # the device was waiting for the host at both ends
    seen: npt.NDArray[np.bool_]  # not of a step whose boundaries were left out


def account_of_phases(
    rows: PhaseRows, steps: StepTable, steady: npt.NDArray[np.bool_]
) -> DeviceAccount | None:
    """The account of the whole run, with that of its steady steps; None with fewer than two boundaries."""
    rows = _known(rows)
    if rows.start.size < 2:
        return None
    stretches = _stretches(rows)
    at = np.searchsorted(steps.start, stretches.host, side="right") - 1
    inside = (
        (at >= 0) & (stretches.host < steps.end[np.maximum(at, 0)]) if len(steps) else np.zeros(at.size, bool)
    )
    out = _sums(stretches, stretches.seen)
    if steady.any():
        out.steady = _sums(stretches, stretches.seen & inside & steady[np.maximum(at, 0)])
    out.error_us = float(np.nanmedian(rows.error)) if np.isfinite(rows.error).any() else None
    peaks = rows.memory_peak[np.isfinite(rows.memory_peak)]
    out.memory_peak = int(peaks.max()) if peaks.size else None
    out.phases = _phase_rows(rows)
    out.steps = _step_rows(rows, steps)
    return out


def _known(rows: PhaseRows) -> PhaseRows:
    known = np.isfinite(rows.lag) & np.isfinite(rows.end_lag) & (rows.phase >= 0)
    return PhaseRows(*(getattr(rows, c)[known] for c in PhaseRows.__dataclass_fields__))


def _boundaries(rows: PhaseRows) -> tuple[Floats, Floats]:
    """When the host and when the device reached each boundary, in order."""
    host = np.concatenate([rows.start - rows.lag, rows.end - rows.end_lag])
    device = np.concatenate([rows.start, rows.end])
    # A boundary is the end of one phase and the start of the next; times are rounded to us.
    order = np.lexsort((device, host))
    host, device = host[order], device[order]
    new = np.concatenate(([True], np.diff(host) > 1.0))
    return host[new], np.maximum.accumulate(device[new])


def backlog_of_phases(rows: PhaseRows, steps: StepTable) -> Backlog:
    """When the device was behind the host."""
    rows = _known(rows)
    if rows.start.size < 2 or not len(steps):
        return Backlog()
    host, device = _boundaries(rows)
    error = float(np.nanmedian(rows.error)) if np.isfinite(rows.error).any() else 0.0
    out = backlog_of_boundaries(host, device - host, steps, error)
    out.source = "events"
    return out


def _stretches(rows: PhaseRows) -> _Stretches:
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
    return _Stretches(middle, np.diff(device), label, paced, _seen(rows, middle))


def _seen(rows: PhaseRows, at: Floats) -> npt.NDArray[np.bool_]:
    """Whether these host times are in something recorded; without steps, nothing was left out."""
    if not (rows.phase == _STEP).any():
        return np.ones(at.size, dtype=bool)
    begin, end = rows.start - rows.lag, rows.end - rows.end_lag
    order = np.argsort(begin)
    begin, end = begin[order], np.maximum.accumulate(end[order])
    before = np.searchsorted(begin, at, side="right") - 1
    return np.asarray((before >= 0) & (at <= end[np.maximum(before, 0)]))


def _sums(s: _Stretches, which: npt.NDArray[np.bool_]) -> DeviceAccount:
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


def _phase_rows(rows: PhaseRows) -> list[dict[str, Any]]:
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


def _step_rows(rows: PhaseRows, steps: StepTable) -> list[dict[str, Any]]:
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
