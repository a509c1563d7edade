"""What one process's trace says about its devices: gathered while it is read, evaluated at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer.analyze.device.from_events import (
    DeviceAccount,
    PhaseRows,
    account_of_phases,
    backlog_of_phases,
    joined_phases,
    phases_of_chunk,
)
from dftracer.analyze.device.from_profiler import HostSide, account_of_rows, backlog_of_rows
from dftracer.analyze.device.profiler_rows import HOST, DeviceRows, joined, rows_of_chunk
from dftracer.analyze.map.account import Backlog
from dftracer.analyze.map.own_code import HostWork
from dftracer.analyze.map.steps import StepTable
from dftracer.analyze.map.threads import Lane
from dftracer.analyze.stages import STAGE_INDEX
from dftracer.load.chunk import Chunk
from dftracer.load.process import ProcessInfo

_FETCH_WAIT = STAGE_INDEX["fetch_wait"]


@dataclass
class DeviceParts:
    """The rows of one chunk, or of all so far."""

    rows: list[DeviceRows] = field(default_factory=list)
    phases: list[PhaseRows] = field(default_factory=list)

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
            out.profiler = account_of_rows(rows, _host_side(rows, lanes, steps), work)
            if out.profiler is not None:
                out.backlog = backlog_of_rows(rows, out.profiler.windows, steps)
        if self.phases:
            phases = joined_phases(self.phases)
            out.events = account_of_phases(phases, steps, steps.steady)
            if not out.backlog.source:
                out.backlog = backlog_of_phases(phases, steps)
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
            out.phases.append(phases_of_chunk(chunk, place[at], [keys[p][1] for p in pair[at].tolist()]))
        else:
            used = np.flatnonzero(wanted & (np.bincount(pair[at], minlength=len(keys)) > 0))
            number = np.full(len(keys), -1, np.int64)
            number[used] = np.arange(used.size)
            found = rows_of_chunk(chunk, place[at], number[pair[at]], [keys[p][1] for p in used.tolist()])
            if found is not None:
                out.rows.append(found)
    return out


def _host_side(rows: DeviceRows, lanes: list[Lane], steps: StepTable) -> HostSide:
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
        return HostSide(steps=steps, threads=threads)
    return HostSide(*main, steps, bool((main[2] == _FETCH_WAIT).any()), threads)
