"""One run as the page needs it: lanes and rows over all its parts, and pictures of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.machine import Counters, Host, Series, is_shared, merged
from dftracer.report.machine import machine_plots
from dftracer.view.kinds import KINDS
from dftracer.view.lanes import Lane, find_lanes
from dftracer.view.ledger_rows import LEDGER
from dftracer.view.part import Part
from dftracer.view.picture import FILL_STEPS, draw_row

__all__ = ["Run", "Window"]

_LABEL = 96  # characters of a name that fit on a span
_TRACK_POINTS = 4000  # of a counter
Window = tuple[int, int]  # ns from the begin of the run


def _series(counters: dict[str, dict[str, list[int]]]) -> Counters:
    """The counters of a part, as it keeps them."""
    columns = {name: {k: np.array(v, np.int64) for k, v in each.items()} for name, each in counters.items()}
    return {name: Series(each.pop("ts"), each) for name, each in columns.items()}


class Run:
    """All parts together. Times to and from the page are ns from the run's first event."""

    def __init__(self, title: str, parts: list[Part], identity: dict[str, Any] | None = None) -> None:
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
        self._part_classes = [part.classes_of_pairs for part in parts]
        for part, mine in zip(parts, self._part_classes, strict=True):
            table = []
            for each in mine:
                numbers.setdefault(each, len(numbers))
                table.append(min(numbers[each], 255))
            self._to_class.append(np.array(table, np.uint8))
            self._of_pair.append(part.class_of_pair())
        self.classes = list(numbers)
        self._used: set[int] = set()  # the ledger has classes that may not occur
        for part, to in zip(parts, self._to_class, strict=True):
            self._used |= set(to[np.unique(part.classes)].tolist())

    @cached_property
    def events(self) -> int:
        return sum(len(p) for p in self.parts if p.info["source"] != LEDGER)

    def place(self, row: int) -> tuple[int, int]:
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
            p, local = self.place(row)
            lane = self.lane_of(p, local)
            limit = only.get(lane.rank) if only and lane is not None and lane.rank is not None else None
            if only and limit is None:
                continue
            if p not in visible:
                visible[p] = np.array([cat not in hidden for cat, _ in self._part_classes[p]], bool)
            drawn = draw_row(self.parts[p], local, t0, t1, width, visible[p], self._of_pair[p])
            if drawn.bins is not None:
                b = drawn.bins
                if limit is not None:
                    scale = width / (t1 - t0)
                    low, high = ((self.base + t - t0) * scale for t in limit)
                    keep = (b.x + b.width > low) & (b.x < high)
                    b = b.take(keep)
                b.cls = self._to_class[p][b.cls]
                bins.append((n, b))
            elif drawn.spans.size:
                found = drawn.spans
                if limit is not None:
                    part = self.parts[p]
                    inside = part.end[found] > self.base + limit[0]
                    inside &= part.start[found] < self.base + limit[1]
                    found = found[inside]
                spans.append((n, p, found))
        return self._packed(spans, bins)

    def _packed(self, spans: list[tuple[int, int, npt.NDArray[Any]]], bins: list[tuple[int, Any]]) -> bytes:
        names: dict[str, int] = {}
        columns: dict[str, npt.NDArray[Any]] = {}
        by_part = [(n, p, s, self.parts[p]) for n, p, s in spans]
        columns["start"] = _joined([part.start[s] - self.base for _, _, s, part in by_part], np.float64)
        columns["length"] = _joined([part.end[s] - part.start[s] for _, _, s, part in by_part], np.float64)
        columns["span"] = _joined([s for _, _, s, _ in by_part], np.uint32)
        named = []
        for _, _, s, part in by_part:
            present, inverse = np.unique(part.pair[s], return_inverse=True)
            table = [names.setdefault(part.pairs[k][1][:_LABEL], len(names)) for k in present.tolist()]
            named.append(np.array(table, np.uint32)[inverse.reshape(-1)])
        columns["name"] = _joined(named, np.uint32)
        columns["row"] = _joined([np.full(s.size, n) for n, _, s, _ in by_part], np.uint16)
        columns["part"] = _joined([np.full(s.size, p) for _, p, s, _ in by_part], np.uint16)
        for name in ("x", "width"):
            columns["bin_" + name] = _joined([getattr(b, name) for _, b in bins], np.uint16)
        columns["bin_row"] = _joined([np.full(b.x.size, n) for n, b in bins], np.uint16)
        columns["cls"] = _joined(
            [self._to_class[p][self._of_pair[p][part.pair[s]]] for _, p, s, part in by_part], np.uint8
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
