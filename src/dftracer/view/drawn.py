"""One process, ready to be drawn: its spans on rows, the kind of each, and pictures of a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dftracer.analyze.stages import CLASSES, class_of
from dftracer.format.io_calls import IO_CATEGORIES, is_process, is_read, is_write
from dftracer.load._scan import pixels, stack
from dftracer.load.chunk import Ints, uint8s

# --- The visual kind of an event: one kind for each colour of the timeline


KINDS: Final = (
    "fetch wait",
    "step body",
    "read",
    "write",
    "file metadata",
    "preprocess",
    "collate",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "sync",
    "own code",
    "operator",
    "launch",
    "kernel",
    "compile",
    "other",
)
KIND_INDEX: Final = {name: i for i, name in enumerate(KINDS)}

# The profiler says the type of each of its events.
PROFILER_KINDS: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "transfer",
    "gpu_memset": "kernel",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "cpu_op": "operator",
    "user_annotation": "other",
    "python_function": "other",
}
_BY_CLASS: Final = {
    "fetch_wait": "fetch wait",
    "block": "step body",
    "container": "step body",
    "item": "preprocess",
    "update": "optimizer",
    "any_compute": "forward",
    "comm": "communication",
    "model_op": "compile",
    "wait_for_device": "sync",
    "wait_for_peers": "communication",
    "copy": "transfer",
    "launch": "launch",
}
_DEVICE_PHASES: Final = {"fetch": "fetch wait", "step": "step body"}


@lru_cache(maxsize=1 << 16)
def kind_of(cat: str, name: str, profiler_type: str = "") -> int:
    """The kind of an event, as an index into KINDS."""
    return KIND_INDEX[_kind(cat, name, profiler_type)]


def _kind(cat: str, name: str, profiler_type: str) -> str:
    if profiler_type:
        if "nccl" in name.lower():
            return "communication"
        return PROFILER_KINDS.get(profiler_type, "other")
    lower = cat.lower()
    if lower in IO_CATEGORIES and not is_process(name):
        return "read" if is_read(name) else "write" if is_write(name) else "file metadata"
    if lower == "device_time":
        return _DEVICE_PHASES.get(name, name if name in KIND_INDEX else "kernel")
    if lower in {"pp", "kineto"}:  # of unknown type: operators have names like `aten::mm`
        return "operator" if "::" in name else "other"
    found = CLASSES[class_of(cat, name)]
    return found if found in KIND_INDEX else _BY_CLASS.get(found, "other")


# --- The spans as they are drawn: rows on which nothing overlaps, and sums that answer any zoom
#
# A row is one depth of one thread or device stream. Its spans are disjoint and sorted, so everything in a
# time range is found by two binary searches; how much time each class of events takes in it follows from
# sums kept at every 16th span. So a picture costs the same whatever it shows.


Codes = npt.NDArray[np.int32]
BLOCK = 16
_SLACK_NS = 1000  # records are in whole microseconds: neighbours may overlap by that much


@dataclass
class Spans:
    """What was read for a process, in any order. Times are ns since the epoch."""

    tid: Ints
    start: Ints
    end: Ints
    pair: Codes
    path: Codes
    moved: Ints  # bytes
    correlation: Ints  # of launches and what they launched, -1 elsewhere

    def __len__(self) -> int:
        return int(self.start.size)


@dataclass
class DrawnProcess:
    """One process, or its ledger, ready to be drawn; the steps of a run are cached in the same form."""

    info: dict[str, Any]  # who it is: see describe() in reading.py
    pairs: list[tuple[str, str, int]] = field(default_factory=list)  # category, name, kind
    paths: list[str] = field(default_factory=list)
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    # The columns, by name:
    #   start end pair path moved      of each span, row after row
    #   row_tid row_depth row_at       of each row; row_at has one more
    #   row_sums row_classes_at        where the row's sums and classes begin; each has one more
    #   classes sums                   of all rows: pairs of (category, kind), and ns up to each block
    #   launch_from launch_to          spans, by what they point from
    #   wait_span wait_batch wait_pid wait_worker   waits that name their batch
    #   made_span made_batch           batches that were made
    #   item_span item_of              items, and which of the made batches they are in

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.__dict__["columns"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return int(self.columns["start"].size)

    @property
    def rows(self) -> int:
        return int(self.columns["row_tid"].size)

    @property
    def classes_of_pairs(self) -> list[tuple[str, int]]:
        """The distinct (category, kind) of the pairs: what pictures distinguish and filters hide."""
        return list(dict.fromkeys((cat, kind) for cat, _, kind in self.pairs))

    def class_of_pair(self) -> npt.NDArray[np.uint8]:
        """The class of each pair, as an index into `classes_of_pairs`."""
        known = {c: i for i, c in enumerate(self.classes_of_pairs)}
        return np.array([min(known[cat, kind], 255) for cat, _, kind in self.pairs], np.uint8)

    def row_of(self, span: int) -> int:
        """The row that contains a span."""
        return int(np.searchsorted(self.columns["row_at"], span, side="right")) - 1

    def row_span(self, row: int) -> tuple[int, int]:
        at = self.columns["row_at"]
        return int(at[row]), int(at[row + 1])


def lay_out(
    info: dict[str, Any], pairs: list[tuple[str, str, int]], paths: list[str], spans: Spans
) -> tuple[DrawnProcess, Ints]:
    """Put spans on rows; also returns where each of the given spans went."""
    n = len(spans)
    tids, lane = np.unique(spans.tid, return_inverse=True)
    lane = lane.astype(np.int64).reshape(-1)
    # Among equal intervals, the one written later encloses: parents are written after their children.
    last_first = slice(None, None, -1)
    order = n - 1 - np.lexsort((-spans.end[last_first], spans.start[last_first], lane[last_first]))
    lane, start, end = lane[order], spans.start[order], spans.end[order]
    stacked: Any = stack(lane, start, end, _SLACK_NS)
    depth = np.frombuffer(stacked, np.int32)
    deepest = int(depth.max()) + 1 if n else 1
    key = lane * deepest + depth
    by_row = np.argsort(key, kind="stable")
    order, key = order[by_row], key[by_row]
    start, end = start[by_row], end[by_row]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1]))) if n else np.empty(0, np.int64)
    at = np.concatenate((first, [n])).astype(np.int64)
    if n:
        same_row = key[1:] == key[:-1]
        end[:-1][same_row] = np.minimum(end[:-1], start[1:])[same_row]
    drawn = DrawnProcess(info, pairs, paths)
    drawn.columns = {
        "start": start,
        "end": end,
        "pair": spans.pair[order],
        "path": spans.path[order],
        "moved": spans.moved[order],
        "row_tid": tids[key[first] // deepest] if n else np.empty(0, np.int64),
        "row_depth": (key[first] % deepest).astype(np.int64) if n else np.empty(0, np.int64),
        "row_at": at,
    }
    _sum_up(drawn)
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    drawn.columns.update(_launches(spans.correlation[order], drawn))
    return drawn, position


def _sum_up(drawn: DrawnProcess) -> None:
    """For each row the classes in it, and the time of each up to every block of spans."""
    of_pair = drawn.class_of_pair()
    at = drawn.row_at
    classes: list[npt.NDArray[np.uint8]] = []
    sums: list[Ints] = []
    sums_at, classes_at = [0], [0]
    for row in range(drawn.rows):
        low, high = int(at[row]), int(at[row + 1])
        cls = of_pair[drawn.pair[low:high]]
        length = drawn.end[low:high] - drawn.start[low:high]
        present = np.unique(cls)
        blocks = -(-(high - low) // BLOCK)
        table = np.zeros((blocks + 1, present.size), np.int64)
        edges = np.arange(0, high - low, BLOCK)
        for k, c in enumerate(present.tolist()):
            mine = length if present.size == 1 else np.where(cls == c, length, 0)
            np.cumsum(np.add.reduceat(mine, edges), out=table[1:, k])
        classes.append(present)
        sums.append(table.reshape(-1))
        classes_at.append(classes_at[-1] + present.size)
        sums_at.append(sums_at[-1] + table.size)
    drawn.columns["classes"] = np.concatenate([np.empty(0, np.uint8), *classes])
    drawn.columns["sums"] = np.concatenate([np.empty(0, np.int64), *sums])
    drawn.columns["row_classes_at"] = np.array(classes_at, np.int64)
    drawn.columns["row_sums"] = np.array(sums_at, np.int64)


def _launches(correlation: Ints, drawn: DrawnProcess) -> dict[str, npt.NDArray[Any]]:
    """Pairs of spans with the same number: a call on the host, and what it started on the device."""
    with_number = np.flatnonzero(correlation >= 0)
    nothing = np.empty(0, np.int64)
    if with_number.size == 0:
        return {"launch_from": nothing, "launch_to": nothing}
    row = np.searchsorted(drawn.row_at, with_number, side="right") - 1
    on_device = np.isin(drawn.row_tid[row], drawn.info["devices"])
    calls, work = with_number[~on_device], with_number[on_device]
    calls = calls[np.argsort(correlation[calls], kind="stable")]
    if calls.size == 0 or work.size == 0:
        return {"launch_from": nothing, "launch_to": nothing}
    found = np.minimum(np.searchsorted(correlation[calls], correlation[work]), calls.size - 1)
    hit = correlation[calls[found]] == correlation[work]
    source, target = calls[found[hit]], work[hit]
    order = np.argsort(source, kind="stable")
    return {"launch_from": source[order], "launch_to": target[order]}


# --- What a row looks like between two moments, at a width in pixels: its spans, or how full each pixel is
#
# The answer is exact at every zoom, and costs one binary search and at most 16 spans for each pixel.


FILL_STEPS = 15


@dataclass
class Bins:
    """Runs of pixels that look alike: from, how many, class, and how full (0 to FILL_STEPS)."""

    x: npt.NDArray[np.uint16]
    width: npt.NDArray[np.uint16]
    cls: npt.NDArray[np.uint8]
    fill: npt.NDArray[np.uint8]

    def take(self, rows: Any) -> Bins:
        return Bins(self.x[rows], self.width[rows], self.cls[rows], self.fill[rows])


@dataclass
class RowPicture:
    """Either spans (their numbers) or bins."""

    spans: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))
    bins: Bins | None = None


def draw_row(
    drawn: DrawnProcess, row: int, t0: int, t1: int, width: int, visible: npt.NDArray[np.bool_], of_pair: Any
) -> RowPicture:
    """One row; `visible` says which classes of the process are shown, `of_pair` the class of each pair."""
    low, high = drawn.row_span(row)
    start, end = drawn.start[low:high], drawn.end[low:high]
    first = int(np.searchsorted(end, t0, side="right"))
    # A zero-length span at the very beginning ends there and is still visible.
    while first > 0 and start[first - 1] >= t0:
        first -= 1
    last = int(np.searchsorted(start, t1, side="left"))
    if last - first <= width // 2:
        spans = np.arange(first, last)
        if not visible.all():
            spans = spans[visible[of_pair[drawn.pair[low + first : low + last]]]]
        return RowPicture(spans + low)
    return RowPicture(bins=_bins(drawn, row, (t0, t1, width), visible, of_pair))


def _bins(
    drawn: DrawnProcess, row: int, window: tuple[int, int, int], visible: npt.NDArray[np.bool_], of_pair: Any
) -> Bins:
    t0, t1, width = window
    low, high = drawn.row_span(row)
    shown = np.zeros(256, bool)
    shown[: visible.size] = visible
    raw = pixels(
        drawn.start[low:high],
        drawn.end[low:high],
        drawn.pair[low:high],
        of_pair,
        drawn.classes[int(drawn.row_classes_at[row]) : int(drawn.row_classes_at[row + 1])],
        drawn.sums[int(drawn.row_sums[row]) : int(drawn.row_sums[row + 1])],
        BLOCK,
        shown,
        t0,
        t1,
        width,
        FILL_STEPS,
    )
    cls, fill = (uint8s(r) for r in raw)
    look = np.where(fill > 0, cls.astype(np.int32) * (FILL_STEPS + 1) + fill, -1)
    begins = np.flatnonzero(np.concatenate(([True], look[1:] != look[:-1])))
    ends = np.concatenate((begins[1:], [width]))
    keep = look[begins] >= 0
    begins, ends = begins[keep], ends[keep]
    return Bins(begins.astype(np.uint16), (ends - begins).astype(np.uint16), cls[begins], fill[begins])
