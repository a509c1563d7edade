"""Exports of Nsight Systems (`nsys export --type sqlite`) as the same table as the profiler's traces."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dftracer.link._json_stream import Repairs
from dftracer.link.columns import (
    ANNOTATION,
    COLUMNS,
    KERNEL,
    MEMCPY,
    MEMSET,
    OP,
    RUNTIME,
    SYNC,
    ActivityTable,
    Interner,
    empty_activity,
    integer,
    integers,
)

_PUSH_POP, _START_END = 59, 60
_COPIES = {
    1: "Memcpy HtoD", 2: "Memcpy DtoH", 3: "Memcpy HtoA", 4: "Memcpy AtoH", 5: "Memcpy AtoA",
    6: "Memcpy AtoD", 7: "Memcpy DtoA", 8: "Memcpy DtoD", 9: "Memcpy HtoH", 10: "Memcpy PtoP",
}  # fmt: skip
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
# What `torch.autograd.profiler.emit_nvtx` puts after an operator's name.
_DECORATION = re.compile(r", (?:seq = (-?\d+)|op_id = \d+|sizes = .*|input_op_ids = .*|trace_id = .*)")


def is_nsys(path: Path) -> bool:
    """Whether a file is such an export."""
    try:
        with path.open("rb") as f:
            if f.read(16) != b"SQLite format 3\0":
                return False
        with _open(path) as base:
            return "StringIds" in _tables(base)
    except (OSError, sqlite3.Error, UnicodeError):  # its messages may contain bytes of the file
        return False


def _open(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    base.text_factory = lambda text: text.decode("utf-8", "replace")
    return base


def _tables(base: sqlite3.Connection) -> set[str]:
    return {r[0] for r in base.execute("select name from sqlite_master where type in ('table', 'view')")}


def _rows(base: sqlite3.Connection, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """The columns of a table; null for columns, and no rows for tables, that this version does not write."""
    if table not in _tables(base):
        return []
    there = {r[1] for r in base.execute(f"pragma table_info({table})")}
    listed = ", ".join(f'"{c}"' if c in there else "null" for c in columns)
    return base.execute(f"select {listed} from {table}").fetchall()


def read_nsys(path: Path) -> ActivityTable:
    """Read an export; what is wrong with it is in `repairs`, never an exception."""
    try:
        with _open(path) as base:
            return _read(base, path)
    except (sqlite3.Error, UnicodeError) as e:
        out = empty_activity("nsys")
        out.path = path
        out.repairs = Repairs(notes=[f"cannot be read as an nsys export: {e}"])
        return out


def _read(base: sqlite3.Connection, path: Path) -> ActivityTable:
    texts = dict(_rows(base, "StringIds", "id", "value"))
    begun = _rows(base, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs")
    zero = integer(begun[0][0], 0) if begun else 0
    repairs = Repairs()
    if not zero:
        repairs.notes.append("it has no session start: times count from its beginning")
    table = _Rows(texts, zero)
    for take in (_take_runtime, _take_kernels, _take_copies, _take_memsets, _take_syncs, _take_ranges):
        take(base, texts, table)
    out = table.finish(path, repairs)
    threads = _rows(base, "ThreadNames", "nameId", "globalTid")
    out.threads = {_tid(t): str(texts.get(n, "")) for n, t in threads if t is not None}
    return out


def _on_device(base: sqlite3.Connection, kind: str, *more: str) -> Iterator[tuple[_Where, tuple[Any, ...]]]:
    """The rows of a device activity table: when and where each was, and its other columns."""
    columns = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
    for row in _rows(base, f"CUPTI_ACTIVITY_KIND_{kind}", *columns, *more):
        start, end, process, device, stream, correlation = row[: len(columns)]
        where = _Where(start, end, process, device, stream, correlation)
        yield where, row[len(columns) :]


def _take_runtime(base: sqlite3.Connection, texts: dict[int, str], table: _Rows) -> None:
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for start, end, thread, correlation, name in _rows(base, "CUPTI_ACTIVITY_KIND_RUNTIME", *columns):
        # The names end in the version of the interface: cudaLaunchKernel_v7000.
        text = re.sub(r"_v\d+$", "", str(texts.get(name, "")))
        table.add(RUNTIME, text, _Where(start, end, thread, correlation=correlation))


def _take_kernels(base: sqlite3.Connection, texts: dict[int, str], table: _Rows) -> None:
    for where, (demangled, short) in _on_device(base, "KERNEL", "demangledName", "shortName"):
        table.add(KERNEL, str(texts.get(demangled) or texts.get(short) or ""), where)


def _take_copies(base: sqlite3.Connection, _: dict[int, str], table: _Rows) -> None:
    for where, (size, kind) in _on_device(base, "MEMCPY", "bytes", "copyKind"):
        row = table.add(MEMCPY, _COPIES.get(kind, "Memcpy"), where)
        table.details[row] = {"bytes": integer(size, 0)}


def _take_memsets(base: sqlite3.Connection, _: dict[int, str], table: _Rows) -> None:
    for where, (size,) in _on_device(base, "MEMSET", "bytes"):
        row = table.add(MEMSET, "Memset", where)
        table.details[row] = {"bytes": integer(size, 0)}


def _take_syncs(base: sqlite3.Connection, _: dict[int, str], table: _Rows) -> None:
    for where, (kind,) in _on_device(base, "SYNCHRONIZATION", "syncType"):
        text = _SYNCS.get(kind, "Sync")
        # nsys writes the largest number for "no stream".
        lane = integer(where.stream)
        row = table.add(SYNC, text, where._replace(stream=-1 if lane >= 0xFFFFFFFF else lane))
        table.details[row] = {"sync_kind": text}


def _take_ranges(base: sqlite3.Connection, texts: dict[int, str], table: _Rows) -> None:
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, text_id, thread in _rows(base, "NVTX_EVENTS", *columns):
        if kind not in (_PUSH_POP, _START_END) or end is None:
            continue
        label = str(text if text is not None else texts.get(text_id, ""))
        seq = next((integer(m.group(1)) for m in _DECORATION.finditer(label) if m.group(1)), -1)
        name = _DECORATION.sub("", label)
        table.add(OP if "::" in name else ANNOTATION, name, _Where(start, end, thread), seq=seq)


def _pid(number: Any) -> int:
    whole = integer(number)
    return -1 if whole == -1 else (whole >> 24) & 0xFFFFFF


def _tid(number: Any) -> int:
    whole = integer(number)
    return -1 if whole == -1 else whole & 0xFFFFFF


class _Where(NamedTuple):
    """When and where something ran, as the export says it."""

    start: Any
    end: Any
    thread: Any
    device: Any = None
    stream: Any = None
    correlation: Any = None


class _Rows:
    def __init__(self, texts: dict[int, str], zero: int) -> None:
        self._texts = texts
        self._zero = zero
        self._names = Interner()
        self._columns: dict[str, list[int]] = {c: [] for c in (*COLUMNS, "name")}
        self.details: dict[int, dict[str, Any]] = {}

    def add(self, kind: int, name: str, where: _Where, seq: int = -1) -> int:
        start, thread = where.start, where.thread
        row = {
            "kind": kind,
            "pid": _pid(thread),
            "tid": _tid(thread),
            "start": self._zero + integer(start, 0),
            "dur": max(integer(where.end, 0) - integer(start, 0), 0),
            "rf": 0,
            "external": -1,
            # 0 if the runtime was not traced.
            "correlation": integer(where.correlation) or -1,
            "seq": seq,
            "fw_tid": -1,
            "device": integer(where.device),
            "stream": integer(where.stream),
            "name": self._names[name],
        }
        for column, value in row.items():
            self._columns[column].append(value)
        return len(self._columns["kind"]) - 1

    def finish(self, path: Path, repairs: Repairs) -> ActivityTable:
        columns: dict[str, Any] = {c: integers(v) for c, v in self._columns.items()}
        order = np.lexsort((-columns["dur"], columns["start"]))
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        name = columns.pop("name")[order].astype(np.int32)
        columns = {c: v[order] for c, v in columns.items()}
        common = Counter(columns["pid"].tolist()).most_common(1)
        return ActivityTable(
            path=path,
            source="nsys",
            **columns,
            name=name,
            names=list(self._names),
            details={int(place[r]): d for r, d in self.details.items()},
            main_pid=common[0][0] if common else None,
            repairs=repairs,
        )
