"""Profiler events of one process as columns: what ran on the device, and the calls that launched it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.host_work import LONG_US
from dftracer.load._scan import arg_numbers, arg_texts
from dftracer.load.chunk import Chunk, Ints, int64s

if TYPE_CHECKING:
    from dftracer.link.activity import ActivityTable

__all__ = [
    "FUNCTION",
    "HOST",
    "KERNEL",
    "LAUNCH",
    "MEMCPY",
    "MEMSET",
    "MODULE",
    "DeviceRows",
    "joined",
    "rows_of_chunk",
]

HOST, LAUNCH, KERNEL, MEMCPY, MEMSET, MODULE, FUNCTION = range(7)
_TYPES = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "cpu_op": HOST,
    "user_annotation": HOST,
    "python_function": MODULE,
}
_NUMBERS = {
    "dur_ns": b'"dur_ns":',
    "correlation": b'"correlation":',
    "device": b'"device_index":',
    "stream": b'"stream":',
}
# In the smallest types that fit: there are as many of them as profiler events.
_COLUMNS = {
    "kind": np.int8,
    "name": np.int32,
    "op": np.int32,
    "start": np.int64,
    "end": np.int64,
    "tid": np.int64,
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
}


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass
class DeviceRows:
    """Times are ns since the epoch; `name` and `op` are indices into `names`, -1 if there is none."""

    names: list[str] = field(default_factory=list)
    kind: Ints = field(default_factory=_none)
    name: Ints = field(default_factory=_none)
    op: Ints = field(default_factory=_none)
    start: Ints = field(default_factory=_none)
    end: Ints = field(default_factory=_none)
    tid: Ints = field(default_factory=_none)
    device: Ints = field(default_factory=_none)
    stream: Ints = field(default_factory=_none)
    correlation: Ints = field(default_factory=_none)
    windows: list[tuple[int, int]] = field(default_factory=list)  # known from outside, otherwise found here

    def __len__(self) -> int:
        return int(self.kind.size)

    def take(self, rows: Any) -> DeviceRows:
        """Some of the rows."""
        columns = {c: getattr(self, c)[rows] for c in _COLUMNS}
        return DeviceRows(self.names, **columns, windows=self.windows)

    def compact(self) -> DeviceRows:
        """The same in less memory."""
        for column, dtype in _COLUMNS.items():
            setattr(self, column, getattr(self, column).astype(dtype, copy=False))
        return self

    @property
    def on_device(self) -> npt.NDArray[np.bool_]:
        flags: npt.NDArray[np.bool_] = (self.kind >= KERNEL) & (self.kind <= MEMSET)
        return flags


class _Names:
    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: dict[str, int] = {}

    def number(self, name: str) -> int:
        found = self._known.setdefault(name, len(self.names))
        if found == len(self.names):
            self.names.append(name)
        return found


def rows_of_chunk(
    chunk: Chunk, rows: npt.NDArray[np.intp], name: Ints, names: list[str]
) -> DeviceRows | None:
    """The profiler's events among some rows of a trace; `name` are those rows' indices into `names`."""
    # If most are needed, reading all of them costs less than joining the texts of some.
    most = 2 * rows.size > chunk.rows
    ends, text = chunk.args() if most else chunk.args_of(rows)
    ends, mine = ends.astype(np.int64), rows if most else slice(None)
    raw, types = arg_texts(ends, text, b'"type":"')
    kind = np.array([*(_TYPES.get(t, -1) for t in types), -1], np.int64)[int64s(raw)[mine]]
    module = np.array([n.startswith("nn.Module") for n in names], dtype=bool)[name]
    kind[(kind == MODULE) & ~module] = FUNCTION
    long = chunk.ints("dur")[rows] >= LONG_US
    keep = np.flatnonzero((kind >= 0) & ((kind != FUNCTION) | long))
    if keep.size == 0:
        return None
    columns = {column: int64s(arg_numbers(ends, text, key))[mine] for column, key in _NUMBERS.items()}
    raw, ops = arg_texts(ends, text, b'"op":"')
    op = int64s(raw)[mine]
    table = _Names()
    called = np.array([table.number(n) for n in names] or [0], np.int64)
    operators = np.array([*(table.number(n) for n in ops), -1], np.int64)
    start = chunk.ints("ts")[rows] * 1000
    length = np.where(columns["dur_ns"] >= 0, columns["dur_ns"], chunk.ints("dur")[rows] * 1000)
    out = DeviceRows(
        table.names,
        kind,
        called[name],
        operators[op],
        start,
        start + length,
        (chunk.ints("tid") if chunk.has("tid") else chunk.ints("pid"))[rows],
        columns["device"],
        columns["stream"],
        columns["correlation"],
    )
    return out.take(keep).compact()


def rows_of_activities(table: ActivityTable) -> DeviceRows:
    """The same of a Kineto file."""
    from dftracer.link import activity as a  # noqa: PLC0415 - only where there are such files

    kinds = np.full(
        max(a.OP, a.ANNOTATION, a.RUNTIME, a.KERNEL, a.MEMCPY, a.MEMSET, a.SYNC) + 1, -1, np.int64
    )
    for theirs, ours in (
        (a.OP, HOST),
        (a.ANNOTATION, HOST),
        (a.RUNTIME, LAUNCH),
        (a.KERNEL, KERNEL),
        (a.MEMCPY, MEMCPY),
        (a.MEMSET, MEMSET),
    ):
        kinds[theirs] = ours
    kind = kinds[table.kind]
    name = table.name.astype(np.int64)
    ops = np.flatnonzero((table.kind == a.OP) & (table.external >= 0))
    op = np.full(len(table), -1, np.int64)
    if ops.size:
        order = ops[np.argsort(table.external[ops], kind="stable")]
        keys = table.external[order]
        at = np.minimum(np.searchsorted(keys, table.external), keys.size - 1)
        hit = (keys[at] == table.external) & (table.external >= 0) & (kind >= LAUNCH)
        op[hit] = name[order[at[hit]]]
    span = table.span
    out = DeviceRows(
        list(table.names),
        kind,
        name,
        op,
        table.start,
        table.end,
        table.tid,
        table.device,
        table.stream,
        table.correlation,
        [span] if len(table) else [],
    )
    return out.take(np.flatnonzero(kind >= 0))


def joined(parts: Iterable[DeviceRows]) -> DeviceRows:
    """All parts as one, in order of their start; the parts are empty afterwards."""
    parts = list(parts)
    table = _Names()
    numbers = [np.array([*(table.number(n) for n in part.names), -1], np.int32) for part in parts]
    out = DeviceRows(table.names, windows=[w for part in parts for w in part.windows])
    order: Any = np.argsort(np.concatenate([_none(), *(part.start for part in parts)]), kind="stable")
    for column, dtype in _COLUMNS.items():
        values: list[Any] = []
        for part, number in zip(parts, numbers, strict=True):
            value = getattr(part, column)
            values.append(number[value] if column in ("name", "op") else value.astype(dtype, copy=False))
            setattr(part, column, _none())
        if values:
            setattr(out, column, np.concatenate(values)[order])
    return out
