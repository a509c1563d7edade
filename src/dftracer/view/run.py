"""One run as the page needs it: lanes and rows over all its parts, and pictures of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.machine import Counters, Host, Series, is_shared, merged
from dftracer.format.records import COLLECTIVES_LANE, stream_of
from dftracer.report.machine import machine_plots
from dftracer.view.drawn import FILL_STEPS, KINDS, DrawnProcess, draw_row
from dftracer.view.reading import LEDGER

_LABEL = 96  # characters of a name that fit on a span
_TRACK_POINTS = 4000  # of a counter
Window = tuple[int, int]  # ns from the begin of the run


def _series(counters: dict[str, dict[str, list[int]]]) -> Counters:
    """The counters of a part, as it keeps them."""
    columns = {name: {k: np.array(v, np.int64) for k, v in each.items()} for name, each in counters.items()}
    return {name: Series(each.pop("ts"), each) for name, each in columns.items()}


class Run:
    """All parts together. Times to and from the page are ns from the run's first event."""

    def __init__(self, title: str, parts: list[DrawnProcess], identity: dict[str, Any] | None = None) -> None:
        self.title = title
        self.parts = parts
        self.identity = identity or {}
        self.memo: dict[str, Any] = {}  # cached results
        filled = [p for p in parts if len(p)]
        self.base = min((int(p.start.min()) for p in filled), default=0)
        self.length = max((int(p.end.max()) for p in filled), default=self.base) - self.base
        self.row_at = np.cumsum([0, *(p.rows for p in parts)])
        self.lanes: list[Lane] = find_lanes(parts)
        self._lane_of = {
            int(self.row_at[lane.part]) + row: i for i, lane in enumerate(self.lanes) for row in lane.rows
        }
        self.classes: list[tuple[str, int]] = []
        numbers: dict[tuple[str, int], int] = {}
        self._to_class: list[npt.NDArray[np.uint8]] = []
        self._of_pair: list[npt.NDArray[np.uint8]] = []
        self._part_classes = [drawn.classes_of_pairs for drawn in parts]
        for drawn, mine in zip(parts, self._part_classes, strict=True):
            table = []
            for each in mine:
                numbers.setdefault(each, len(numbers))
                table.append(min(numbers[each], 255))
            self._to_class.append(np.array(table, np.uint8))
            self._of_pair.append(drawn.class_of_pair())
        self.classes = list(numbers)
        self._used: set[int] = set()  # the ledger has classes that may not occur
        for drawn, to in zip(parts, self._to_class, strict=True):
            self._used |= set(to[np.unique(drawn.classes)].tolist())

    @cached_property
    def events(self) -> int:
        return sum(len(p) + p.info["not_drawn"] for p in self.parts if p.info["source"] != LEDGER)

    def part_and_row(self, row: int) -> tuple[int, int]:
        """Part and row within it."""
        part = int(np.searchsorted(self.row_at, row, side="right")) - 1
        if not 0 <= part < len(self.parts):
            raise KeyError(f"no row {row}")
        return part, row - int(self.row_at[part])

    def lane_of(self, part: int, row: int) -> Lane | None:
        found = self._lane_of.get(int(self.row_at[part]) + row)
        return None if found is None else self.lanes[found]

    def about(self) -> dict[str, Any]:
        """What the page must know before it can draw."""
        return {
            "title": self.title,
            "start_us": self.base // 1000,
            "length": self.length,
            "events": self.events,
            "lanes": [lane.to_json(int(self.row_at[lane.part])) for lane in self.lanes],
            "classes": [
                {"cat": cat, "kind": kind, "used": i in self._used}
                for i, (cat, kind) in enumerate(self.classes)
            ],
            "kinds": list(KINDS),
            "identity": self.identity,
        }

    def machine(self) -> list[dict[str, Any]]:
        """Plots of what the machine did; times are seconds from the run's first event."""
        sampled = [
            (p.info, _series(p.info.get("counters", {}))) for p in self.parts if p.info["source"] != LEDGER
        ]
        trains = {(p.info["host"], p.info["pid"]) for p in self.parts if p.info["source"] == LEDGER}
        own = [(info, s) for info, s in sampled if "cpu" in s]
        main = [s for info, s in own if (info["host"], info["pid"]) in trains] or [s for _, s in own]
        longest = max(main, key=lambda s: int(s["cpu"].ts.size), default={})
        shared: dict[str, dict[str, list[Series]]] = {}
        for info, counters in sampled:
            for name, series in counters.items():
                if is_shared(name):
                    shared.setdefault(info["host"], {}).setdefault(name, []).append(series)
        hosts = [Host(host, {n: merged(s) for n, s in by_name.items()}) for host, by_name in shared.items()]
        return machine_plots(self.base // 1000, longest, hosts, _TRACK_POINTS)

    def picture(
        self, window: Window, width: int, rows: Iterable[int], hidden: frozenset[str], only: dict[int, Window]
    ) -> bytes:
        """Rows between two moments, `width` pixels wide: a header in JSON, then columns of numbers.

        `only` limits ranks to a window of their own (a step); `hidden` names categories left out.
        """
        t0, t1 = (self.base + t for t in window)
        spans: list[tuple[int, int, npt.NDArray[Any]]] = []
        bins: list[tuple[int, Any]] = []
        visible: dict[int, npt.NDArray[np.bool_]] = {}
        for n, row in enumerate(rows):
            p, local = self.part_and_row(row)
            lane = self.lane_of(p, local)
            limit = only.get(lane.rank) if only and lane is not None and lane.rank is not None else None
            if only and limit is None:
                continue
            if p not in visible:
                visible[p] = np.array([cat not in hidden for cat, _ in self._part_classes[p]], bool)
            picture = draw_row(self.parts[p], local, t0, t1, width, visible[p], self._of_pair[p])
            if picture.bins is not None:
                b = picture.bins
                if limit is not None:
                    scale = width / (t1 - t0)
                    low, high = ((self.base + t - t0) * scale for t in limit)
                    keep = (b.x + b.width > low) & (b.x < high)
                    b = b.take(keep)
                b.cls = self._to_class[p][b.cls]
                bins.append((n, b))
            elif picture.spans.size:
                found = picture.spans
                if limit is not None:
                    drawn = self.parts[p]
                    inside = drawn.end[found] > self.base + limit[0]
                    inside &= drawn.start[found] < self.base + limit[1]
                    found = found[inside]
                spans.append((n, p, found))
        return self._packed(spans, bins)

    def _packed(self, spans: list[tuple[int, int, npt.NDArray[Any]]], bins: list[tuple[int, Any]]) -> bytes:
        names: dict[str, int] = {}
        columns: dict[str, npt.NDArray[Any]] = {}
        by_part = [(n, p, s, self.parts[p]) for n, p, s in spans]
        columns["start"] = _joined([drawn.start[s] - self.base for _, _, s, drawn in by_part], np.float64)
        columns["length"] = _joined([drawn.end[s] - drawn.start[s] for _, _, s, drawn in by_part], np.float64)
        columns["span"] = _joined([s for _, _, s, _ in by_part], np.uint32)
        named = []
        for _, _, s, drawn in by_part:
            present, inverse = np.unique(drawn.pair[s], return_inverse=True)
            table = [names.setdefault(drawn.pairs[k][1][:_LABEL], len(names)) for k in present.tolist()]
            named.append(np.array(table, np.uint32)[inverse.reshape(-1)])
        columns["name"] = _joined(named, np.uint32)
        columns["row"] = _joined([np.full(s.size, n) for n, _, s, _ in by_part], np.uint16)
        columns["part"] = _joined([np.full(s.size, p) for _, p, s, _ in by_part], np.uint16)
        for name in ("x", "width"):
            columns["bin_" + name] = _joined([getattr(b, name) for _, b in bins], np.uint16)
        columns["bin_row"] = _joined([np.full(b.x.size, n) for n, b in bins], np.uint16)
        columns["cls"] = _joined(
            [self._to_class[p][self._of_pair[p][drawn.pair[s]]] for _, p, s, drawn in by_part], np.uint8
        )
        for name in ("cls", "fill"):
            columns["bin_" + name] = _joined([getattr(b, name) for _, b in bins], np.uint8)
        at = 0
        listed = {}
        for name, column in columns.items():
            listed[name] = [at, int(column.size)]
            at += -(-column.nbytes // 8) * 8
        head = json.dumps({"columns": listed, "names": list(names), "full": FILL_STEPS}).encode()
        head += b" " * (-(len(head) + 8) % 8)
        body = b"".join(c.tobytes() + bytes(-c.nbytes % 8) for c in columns.values())
        return len(head).to_bytes(8, "little") + head + body


def _joined(pieces: list[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate(pieces).astype(kind) if pieces else np.empty(0, kind)


# --- The lanes of a run, named for what they are, in a natural order


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


def find_lanes(parts: list[DrawnProcess]) -> list[Lane]:
    """All lanes, sorted."""
    processes = _processes(parts)
    _number_ranks(processes)
    _number_workers(processes, parts)
    lanes = [lane for p in processes for lane in _lanes_of(p, parts)]
    lanes.sort(key=lambda lane: lane.order)
    _disambiguate(lanes)
    return lanes


def _disambiguate(lanes: list[Lane]) -> None:
    """Each epoch may start new workers with the same numbers as the old ones: those get their pid."""
    count = Counter((lane.group, lane.label) for lane in lanes)
    for lane in lanes:
        if lane.role == "worker" and count[lane.group, lane.label] > 1:
            lane.label += f" ({lane.detail.partition(',')[0]})"


def _processes(parts: list[DrawnProcess]) -> list[_Process]:
    found: dict[tuple[str, int], _Process] = {}
    for i, drawn in enumerate(parts):
        if len(drawn) == 0:
            continue
        info = drawn.info
        key = (info["host"], info["pid"])
        if info["source"] == "profiler":
            key = _traced(info, found) or key
        first = int(drawn.start.min())
        p = found.setdefault(key, _Process(key, [], info, first))
        p.parts.append(i)
        p.first = min(p.first, first)
        p.trains = p.trains or info["source"] == LEDGER
        p.feeds = p.feeds or any(cat.lower() in _FEEDING for cat, _, _ in drawn.pairs)
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


def _number_workers(processes: list[_Process], parts: list[DrawnProcess]) -> None:
    """Loader workers: child processes that train nothing and read data."""
    numbers: dict[tuple[str, int], int] = {}
    for p in processes:
        for i in p.parts:
            if parts[i].info["source"] == "trace":
                pairs = zip(parts[i].wait_pid.tolist(), parts[i].wait_worker.tolist(), strict=True)
                numbers.update({(p.key[0], pid): worker for pid, worker in set(pairs) if worker >= 0})
    count: dict[tuple[str, int], int] = {}
    for p in sorted(processes, key=lambda p: (p.first, p.key)):
        if p.parent is None or p.trains or not p.feeds:
            continue
        number = count.get(p.parent.key, 0)
        count[p.parent.key] = number + 1
        p.worker = numbers.get(p.key, number)


def _lanes_of(p: _Process, parts: list[DrawnProcess]) -> list[Lane]:
    out: list[Lane] = []
    group = f"rank {p.rank}" if p.rank is not None else _program(p)
    is_main = p.worker is None and (p.rank is None or p.trains or p.parent is None)
    devices = {m.group(1) for i in p.parts for m in map(_STREAM.match, parts[i].info["lanes"].values()) if m}
    for i in p.parts:
        drawn = parts[i]
        main_tid = next(
            (parts[k].info["tid"] for k in p.parts if parts[k].info["source"] == LEDGER), p.key[1]
        )
        for tid in np.unique(drawn.row_tid).tolist():
            rows = np.flatnonzero(drawn.row_tid == tid)
            device = tid in drawn.info["devices"]
            lane = Lane("", group, "thread", p.rank, i, tid, rows.tolist())
            lane.events = sum(high - low for low, high in map(drawn.row_span, lane.rows))
            lane.detail = f"pid {p.key[1]}" + ("" if device or tid == p.key[1] else f", tid {tid}")
            name = drawn.info["threads"].get(str(tid), "")
            name = name if name and not name.isdigit() else f"thread {tid}"
            if drawn.info["source"] == LEDGER:
                lane.role, lane.label = "stages", f"{group} stages"
            elif device:
                lane.role, lane.label = "stream", _stream(drawn, lane, len(devices) > 1)
            elif p.worker is not None:
                lane.role = "worker"
                lane.label = f"loader worker {p.worker}" + (
                    "" if tid == _first_tid(drawn, p) else f", {name}"
                )
            elif is_main and tid == main_tid:
                lane.role, lane.label = "main", group
            elif is_main:
                lane.label = name
            else:
                lane.role, lane.label = "process", f"{_program(p)}" + ("" if tid == p.key[1] else f", {name}")
            if drawn.info["source"] == "profiler" and not device:
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


def _first_tid(drawn: DrawnProcess, p: _Process) -> int:
    """The main thread of a worker, or the first thread if that has no spans."""
    tids = drawn.row_tid
    return p.key[1] if (tids == p.key[1]).any() else int(tids.min())


def _program(p: _Process) -> str:
    words = re.split(r"[; ]", p.info["command"])
    program = next(
        (w.rpartition("/")[2] for w in words[1:] if w.endswith(".py")), words[0].rpartition("/")[2]
    )
    return f"process {p.key[1]}" + (f" ({program})" if program else "")


def _stream(drawn: DrawnProcess, lane: Lane, several: bool) -> str:
    named = drawn.info["lanes"].get(str(lane.tid), "")
    match = _STREAM.match(named)
    if lane.tid >= COLLECTIVES_LANE:
        return named or "device phases"
    device, stream = match.groups() if match else stream_of(lane.tid)
    return (f"GPU {device} " if several else "") + f"stream {stream}" + _use(drawn, lane)


def _use(drawn: DrawnProcess, lane: Lane) -> str:
    """What a stream is mostly used for, if it is one thing."""
    spans = np.concatenate([np.arange(*drawn.row_span(r)) for r in lane.rows])
    time = np.bincount(drawn.pair[spans], drawn.end[spans] - drawn.start[spans], minlength=len(drawn.pairs))
    names = [name.lower() for _, name, _ in drawn.pairs]
    whole = max(float(time.sum()), 1.0)
    for word, use in (("nccl", "nccl"), ("memcpy", "copies")):
        if sum(t for t, n in zip(time, names, strict=True) if word in n) > _MOSTLY * whole:
            return f" ({use})"
    return ""
