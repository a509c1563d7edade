"""The lanes of a run, named for what they are, in a natural order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dftracer.view.ledger_rows import LEDGER
from dftracer.view.part import Part

__all__ = ["Lane", "find_lanes"]

_PHASES_TID = 1 << 30
_FEEDING = {"data", "dataloader", "posix", "stdio"}
_STREAM = re.compile(r"GPU (\d+) stream (\d+)$")
_MOSTLY = 0.5
_ROLES = ("stages", "main", "thread", "stream", "worker", "process")


@dataclass
class Lane:
    """One thread, stream or ledger."""

    label: str
    group: str  # the rank or process under which it is listed
    role: str
    rank: int | None
    part: int
    tid: int
    rows: list[int] = field(default_factory=list)  # within the part, by depth
    events: int = 0
    detail: str = ""
    order: tuple[Any, ...] = ()

    def to_json(self, first_row: int) -> dict[str, Any]:
        return {
            "label": self.label,
            "group": self.group,
            "role": self.role,
            "rank": self.rank,
            "pid_tid": self.detail,
            "events": self.events,
            "rows": [first_row + r for r in self.rows],
        }


@dataclass
class _Process:
    key: tuple[str, int]
    parts: list[int]
    info: dict[str, Any]
    first: int
    trains: bool = False
    feeds: bool = False
    rank: int | None = None
    worker: int | None = None
    parent: _Process | None = None


def find_lanes(parts: list[Part]) -> list[Lane]:
    """All lanes, sorted."""
    processes = _processes(parts)
    _number_ranks(processes)
    _number_workers(processes, parts)
    lanes = [lane for p in processes for lane in _lanes_of(p, parts)]
    lanes.sort(key=lambda lane: lane.order)
    _tell_apart(lanes)
    return lanes


def _tell_apart(lanes: list[Lane]) -> None:
    """Each epoch may start new workers with the same numbers as the old ones: those get their pid."""
    count = Counter((lane.group, lane.label) for lane in lanes)
    for lane in lanes:
        if lane.role == "worker" and count[lane.group, lane.label] > 1:
            lane.label += f" ({lane.detail.partition(',')[0]})"


def _processes(parts: list[Part]) -> list[_Process]:
    found: dict[tuple[str, int], _Process] = {}
    for i, part in enumerate(parts):
        if len(part) == 0:
            continue
        info = part.info
        key = (info["host"], info["pid"])
        if info["source"] == "profiler":
            key = _traced(info, found) or key
        first = int(part.start.min())
        p = found.setdefault(key, _Process(key, [], info, first))
        p.parts.append(i)
        p.first = min(p.first, first)
        p.trains = p.trains or info["source"] == LEDGER
        p.feeds = p.feeds or any(cat.lower() in _FEEDING for cat, _, _ in part.pairs)
        p.rank = info["rank"] if p.rank is None else p.rank
    for p in found.values():
        parent = found.get((p.key[0], p.info["ppid"])) if p.info["ppid"] is not None else None
        p.parent = parent if parent is not p else None
    return list(found.values())


def _traced(info: dict[str, Any], found: dict[tuple[str, int], _Process]) -> tuple[str, int] | None:
    """The process that a profiler file belongs to, among those with a trace."""
    same = [key for key in found if key[1] == info["pid"]]
    if len(same) != 1 and info["rank"] is not None:
        same = [key for key, p in found.items() if p.rank == info["rank"] and p.trains]
    return same[0] if same else None


def _ancestors(p: _Process) -> list[_Process]:
    out: list[_Process] = []
    at = p.parent
    while at is not None and at not in out:
        out.append(at)
        at = at.parent
    return out


def _number_ranks(processes: list[_Process]) -> None:
    """Training processes without a rank are numbered in order of their start; children get their parent's."""
    trainers = [p for p in processes if p.trains and not any(a.trains for a in _ancestors(p))]
    taken = {p.rank for p in processes if p.rank is not None}
    free = iter(n for n in range(len(processes) + len(taken) + 1) if n not in taken)
    for p in sorted(trainers, key=lambda p: p.first):
        if p.rank is None:
            p.rank = next(free)
    for p in processes:
        if p.rank is None:
            p.rank = next((a.rank for a in _ancestors(p) if a.rank is not None), None)


def _number_workers(processes: list[_Process], parts: list[Part]) -> None:
    """Loader workers: child processes that train nothing and read data."""
    told: dict[tuple[str, int], int] = {}
    for p in processes:
        for i in p.parts:
            if parts[i].info["source"] == "trace":
                pairs = zip(parts[i].wait_pid.tolist(), parts[i].wait_worker.tolist(), strict=True)
                told.update({(p.key[0], pid): worker for pid, worker in set(pairs) if worker >= 0})
    count: dict[tuple[str, int], int] = {}
    for p in sorted(processes, key=lambda p: (p.first, p.key)):
        if p.parent is None or p.trains or not p.feeds:
            continue
        number = count.get(p.parent.key, 0)
        count[p.parent.key] = number + 1
        p.worker = told.get(p.key, number)


def _lanes_of(p: _Process, parts: list[Part]) -> list[Lane]:
    out: list[Lane] = []
    group = f"rank {p.rank}" if p.rank is not None else _program(p)
    is_main = p.worker is None and (p.rank is None or p.trains or p.parent is None)
    devices = {m.group(1) for i in p.parts for m in map(_STREAM.match, parts[i].info["lanes"].values()) if m}
    for i in p.parts:
        part = parts[i]
        main_tid = next(
            (parts[k].info["tid"] for k in p.parts if parts[k].info["source"] == LEDGER), p.key[1]
        )
        for tid in np.unique(part.row_tid).tolist():
            rows = np.flatnonzero(part.row_tid == tid)
            device = tid in part.info["devices"]
            lane = Lane("", group, "thread", p.rank, i, tid, rows.tolist())
            lane.events = sum(high - low for low, high in map(part.row_span, lane.rows))
            lane.detail = f"pid {p.key[1]}" + ("" if device or tid == p.key[1] else f", tid {tid}")
            name = part.info["threads"].get(str(tid), "")
            name = name if name and not name.isdigit() else f"thread {tid}"
            if part.info["source"] == LEDGER:
                lane.role, lane.label = "stages", f"{group} stages"
            elif device:
                lane.role, lane.label = "stream", _stream(part, lane, len(devices) > 1)
            elif p.worker is not None:
                lane.role = "worker"
                lane.label = f"loader worker {p.worker}" + ("" if tid == _first_tid(part, p) else f", {name}")
            elif is_main and tid == main_tid:
                lane.role, lane.label = "main", group
            elif is_main:
                lane.label = name
            else:
                lane.role, lane.label = "process", f"{_program(p)}" + ("" if tid == p.key[1] else f", {name}")
            if part.info["source"] == "profiler" and not device:
                lane.label += " (profiler)"
            rank = p.rank if p.rank is not None else 1 << 30
            number = p.worker if p.worker is not None else 0
            lane.order = (
                rank,
                p.first if p.rank is None else 0,
                _ROLES.index(lane.role),
                number,
                p.first,
                i,
                tid,
            )
            out.append(lane)
    return out


def _first_tid(part: Part, p: _Process) -> int:
    """The main thread of a worker, or the first thread if that has no spans."""
    tids = part.row_tid
    return p.key[1] if (tids == p.key[1]).any() else int(tids.min())


def _program(p: _Process) -> str:
    words = re.split(r"[; ]", p.info["command"])
    program = next(
        (w.rpartition("/")[2] for w in words[1:] if w.endswith(".py")), words[0].rpartition("/")[2]
    )
    return f"process {p.key[1]}" + (f" ({program})" if program else "")


def _stream(part: Part, lane: Lane, several: bool) -> str:
    told = part.info["lanes"].get(str(lane.tid), "")
    match = _STREAM.match(told)
    if lane.tid >= _PHASES_TID:
        return told or "device phases"
    device, stream = match.groups() if match else ((lane.tid >> 24) - 1, lane.tid & 0xFFFFFF)
    return (f"GPU {device} " if several else "") + f"stream {stream}" + _use(part, lane)


def _use(part: Part, lane: Lane) -> str:
    """What a stream is mostly used for, if it is one thing."""
    spans = np.concatenate([np.arange(*part.row_span(r)) for r in lane.rows])
    time = np.bincount(part.pair[spans], part.end[spans] - part.start[spans], minlength=len(part.pairs))
    names = [name.lower() for _, name, _ in part.pairs]
    whole = max(float(time.sum()), 1.0)
    for word, use in (("nccl", "nccl"), ("memcpy", "copies")):
        if sum(t for t, n in zip(time, names, strict=True) if word in n) > _MOSTLY * whole:
            return f" ({use})"
    return ""
