"""The linked tables as Parquet: nodes and edges of each rank, and the collectives of all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import need
from dftracer.link.clock import Clock, Member
from dftracer.link.collectives import Collective
from dftracer.link.columns import KIND_NAMES, ActivityTable, Flags, Interner, Ints
from dftracer.link.edges import EDGE_TYPES, Edges
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import BY_ORDER, BY_RF, Graph, Join
from dftracer.link.regions import NOTHING, Labels, Spans

_REGION, _IO = len(KIND_NAMES), len(KIND_NAMES) + 1
_KINDS = (*KIND_NAMES, "region", "io")
_HOW = {0: "", BY_RF: "rf_id", BY_ORDER: "order"}
# Name, type, meaning: docs/linked-tables.md is checked against this.
COLUMNS = (
    ("rank", "int32", "rank of the process"),
    ("window", "int32", "window of the schedule, from 0"),
    ("node", "int64", "id of the node, the same in the Chakra file; null for rows of our own trace"),
    ("parent", "int64", "id of the node around this one, or of the operator that launched this device work"),
    (
        "kind",
        "dictionary",
        "`op`, `annotation`, `runtime`, `kernel`, `memcpy`, `memset`; for our trace `region`, `io`",
    ),
    ("name", "dictionary", "name of the operator, kernel, call, region or I/O function"),
    ("cat", "dictionary", "category of a region or I/O event"),
    ("pid", "int64", "process"),
    ("tid", "int64", "thread; null for device work"),
    ("device", "int32", "device; null on the host"),
    ("stream", "int64", "stream of device work"),
    (
        "start_ns",
        "int64",
        "start in ns since the epoch, on the clock of the reference rank; null if there is no time",
    ),
    ("dur_ns", "int64", "duration, including inner nodes"),
    (
        "exclusive_ns",
        "int64",
        "duration without the inner nodes of the same thread and without waiting for another thread",
    ),
    ("waiting_ns", "int64", "how long it waited for another thread; not included in `exclusive_ns`"),
    ("step", "int64", "training step"),
    ("epoch", "int64", "epoch"),
    ("phase", "dictionary", "innermost `ai` region, e.g. `compute.forward`"),
    (
        "joined_by",
        "dictionary",
        "`rf_id` or `order`: how the times of the execution trace's node were found; null if they were not",
    ),
    ("in_et", "bool", "whether the execution trace has this node"),
    ("rf_id", "int64", "record function id"),
    ("external_id", "int64", "the profiler's external id"),
    ("correlation", "int64", "joins device work and its launch"),
    ("launched_by", "int64", "id of the call that launched this device work"),
    ("seq_id", "int64", "autograd's sequence number"),
    ("op_schema", "dictionary", "signature of the operator"),
    ("input_shapes", "dictionary", "shapes of the inputs as JSON"),
    ("input_types", "dictionary", "types of the inputs as JSON"),
    ("bytes", "int64", "bytes of a collective, a copy, or what an I/O call returned"),
    ("path", "dictionary", "file of an I/O event"),
    ("collective", "dictionary", "type of the collective, on the node that calls it"),
    ("group", "dictionary", "process group of the collective"),
    ("collective_key", "dictionary", "the same for all ranks' parts of one collective"),
    ("arrival_ns", "int64", "how long after the first rank this one reached the collective"),
    ("skew_ns", "int64", "how long after the first rank the last one reached it"),
)


@dataclass
class TablePart:
    """One window of a rank."""

    window: int
    graph: Graph
    et: ExecutionTrace
    activity: ActivityTable
    join: Join
    edges: Edges
    labels: Labels
    spans: Spans
    collectives: list[Collective]
    members: list[Member]


def write_tables(folder: Path, rank: int, parts: Sequence[TablePart], offset_ns: int) -> None:
    """`linked_<rank>.parquet` and `edges_<rank>.parquet`."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    tables = [_table(pa, rank, part, offset_ns) for part in parts]
    _write(pa, parquet, tables, folder / f"linked_{rank}.parquet")
    _write(pa, parquet, [_edge_table(pa, part) for part in parts], folder / f"edges_{rank}.parquet")


def _write(pa: Any, parquet: Any, tables: list[Any], path: Path) -> None:
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries()
    coded = [f.name for f in table.schema if pa.types.is_dictionary(f.type)]
    parquet.write_table(table, path, compression="zstd", compression_level=1, use_dictionary=coded)


def _table(pa: Any, rank: int, part: TablePart, offset_ns: int) -> Any:
    rows = _Rows(part)
    columns = {
        "rank": numbers(np.full(rows.total, rank, dtype=np.int32)),
        "window": numbers(np.full(rows.total, part.window, dtype=np.int32)),
        **_what(rows),
        **_where(pa, rows),
        **_when(rows, offset_ns),
        **_joined(rows),
        **_operator(rows),
        **_communication(rows),
    }
    return pa.table({name: columns[name] for name, _, _ in COLUMNS})


class _Rows:
    """The rows of a table: the nodes of the graph, then those of our own trace (`spans`)."""

    def __init__(self, part: TablePart) -> None:
        self.part = part
        self.nodes, self.extra = len(part.graph), len(part.spans)
        self.total = self.nodes + self.extra
        self.all = np.zeros(self.nodes, dtype=bool)  # no node's value is missing
        self.nothing = np.full(self.nodes, -1)
        self.has_et = part.graph.et >= 0
        self.untimed = ~part.graph.timed
        self._activity_row = np.maximum(part.graph.activity, 0)
        self._et_row = np.maximum(part.graph.et, 0)

    def activity(self, column: Ints) -> Ints:
        """A column of the activities, for each node."""
        found: Ints = (
            column[self._activity_row] if len(self.part.activity) else np.zeros(self.nodes, np.int64)
        )
        return found

    def et(self, column: Any) -> Ints:
        """A column of the execution trace, for each node; -1 if there is no such trace."""
        found: Ints = column[self._et_row] if len(self.part.et) else self.nothing
        return found

    def ints(self, values: Ints, missing: Flags, own: Ints | None = None) -> Any:
        """Of nodes, then of our trace's rows (null without `own`)."""
        tail = np.full(self.extra, NOTHING, dtype=np.int64) if own is None else own
        whole = np.concatenate([np.where(missing, NOTHING, values), tail])
        return numbers(whole, whole == NOTHING)

    def of_activity(self, column: Ints) -> Any:
        values = self.activity(column)
        return self.ints(values, self.untimed | (values < 0))

    def of_et(self, column: Ints, missing: int) -> Any:
        values = self.et(column)
        return self.ints(values, ~self.has_et | (values == missing))

    def texts(self, codes: Any, listed: list[str], own: Any = None, own_listed: Sequence[str] = ()) -> Any:
        tail = np.full(self.extra, -1) if own is None else np.where(own < 0, -1, own + len(listed))
        return dictionary(np.concatenate([codes, tail]), [*listed, *own_listed])

    def ids(self, rows: Ints) -> Any:
        """The ids of other nodes, -1: none."""
        return self.ints(np.where(rows >= 0, self.part.graph.id[np.maximum(rows, 0)], 0), rows < 0)


def _what(rows: _Rows) -> dict[str, Any]:
    g, spans = rows.part.graph, rows.part.spans
    kind = np.concatenate([g.kind, np.where(spans.is_io, _IO, _REGION)])
    return {
        "node": rows.ints(g.id, rows.all),
        "parent": rows.ids(g.parent),
        "kind": dictionary(kind, list(_KINDS)),
        "name": rows.texts(g.name, g.names, spans.name, spans.texts),
        "cat": rows.texts(rows.nothing, [], spans.cat, spans.texts),
        "path": rows.texts(rows.nothing, [], spans.path, spans.texts),
    }


def _where(pa: Any, rows: _Rows) -> dict[str, Any]:
    g, act, spans = rows.part.graph, rows.part.activity, rows.part.spans
    pid = act.main_pid if act.main_pid is not None else rows.part.et.pid or 0
    device = rows.activity(act.device) if len(act) else rows.nothing
    stream = rows.activity(act.stream) if len(act) else rows.nothing
    return {
        "pid": rows.ints(np.full(rows.nodes, pid), rows.all, spans.pid),
        "tid": rows.ints(g.tid, rows.untimed | g.on_device, spans.tid),
        "device": rows.ints(device, ~g.on_device).cast(pa.int32()),
        "stream": rows.ints(stream, ~g.on_device),
    }


def _when(rows: _Rows, offset_ns: int) -> dict[str, Any]:
    g, labels, spans = rows.part.graph, rows.part.labels, rows.part.spans
    return {
        "start_ns": rows.ints(g.start + offset_ns, rows.untimed, spans.start + offset_ns),
        "dur_ns": rows.ints(g.dur, rows.untimed, spans.dur),
        "exclusive_ns": rows.ints(g.exclusive, rows.untimed),
        "waiting_ns": rows.ints(g.waiting, rows.untimed),
        "step": rows.ints(labels.step, rows.all, spans.step),
        "epoch": rows.ints(labels.epoch, rows.all, spans.epoch),
        "phase": rows.texts(labels.phase, labels.phases),
    }


def _joined(rows: _Rows) -> dict[str, Any]:
    """What connects the rows of the different sources."""
    g, act, et = rows.part.graph, rows.part.activity, rows.part.et
    how = rows.et(rows.part.join.how)
    return {
        "joined_by": rows.texts(
            np.where(rows.has_et & (how > 0), how - 1, -1), [_HOW[BY_RF], _HOW[BY_ORDER]]
        ),
        "in_et": booleans(np.concatenate([rows.has_et, np.zeros(rows.extra, dtype=bool)])),
        "rf_id": rows.of_et(et.rf, 0) if len(et) else rows.of_activity(act.rf),
        "external_id": rows.of_activity(act.external),
        "correlation": rows.of_activity(act.correlation),
        "launched_by": rows.ids(g.launch),
        "seq_id": rows.of_et(et.seq, -1) if len(et) else rows.of_activity(act.seq),
    }


def _operator(rows: _Rows) -> dict[str, Any]:
    et = rows.part.et
    rest, kinds = rows.et(et.rest), rows.et(et.input_kinds)
    schemas, schema_of = _distinct([str(r.get("op_schema") or "") for r in et.rests])
    shapes, shape_of = _distinct([k[0].decode("utf-8", "replace") for k in et.kinds])
    types, type_of = _distinct([k[1].decode("utf-8", "replace") for k in et.kinds])
    return {
        "op_schema": rows.texts(np.where(rows.has_et, schema_of[rest], -1), schemas),
        "input_shapes": rows.texts(np.where(rows.has_et, shape_of[kinds], -1), shapes),
        "input_types": rows.texts(np.where(rows.has_et, type_of[kinds], -1), types),
    }


def _communication(rows: _Rows) -> dict[str, Any]:
    act, spans = rows.part.activity, rows.part.spans
    comm = _collective_columns(rows.part, rows.nodes)
    sizes = np.full(max(len(act), 1), NOTHING, dtype=np.int64)
    for row, detail in act.details.items():
        if isinstance(detail.get("bytes"), int):
            sizes[row] = detail["bytes"]
    copied = sizes[np.maximum(rows.part.graph.activity, 0)]
    bytes_ = np.where(~rows.untimed & (copied != NOTHING), copied, comm["bytes"])
    return {
        "bytes": rows.ints(bytes_, rows.all, spans.bytes),
        "collective": rows.texts(comm["type"], comm["types"]),
        "group": rows.texts(comm["group"], comm["groups"]),
        "collective_key": rows.texts(comm["key"], comm["keys"]),
        "arrival_ns": rows.ints(comm["arrival"], rows.all),
        "skew_ns": rows.ints(comm["skew"], rows.all),
    }


def _distinct(texts: list[str]) -> tuple[list[str], Any]:
    """Each text once ("" is null), and the code of each."""
    numbers = Interner()
    codes = [numbers[t] if t else -1 for t in texts]
    return list(numbers), np.array([*codes, -1], dtype=np.int64)


def _collective_columns(part: TablePart, n: int) -> dict[str, Any]:
    types, groups, keys = Interner(), Interner(), Interner()
    out: dict[str, Any] = {c: np.full(n, -1, dtype=np.int64) for c in ("type", "group", "key")}
    for c in ("bytes", "arrival", "skew"):
        out[c] = np.full(n, NOTHING, dtype=np.int64)
    for call, member in zip(part.collectives, part.members, strict=True):
        for row in {call.row, *call.carriers}:
            out["type"][row] = types[call.type]
            out["group"][row] = groups[call.group]
            out["key"][row] = keys[member.key]
            if call.bytes is not None:
                out["bytes"][row] = call.bytes
            if member.arrival_ns is not None:
                out["arrival"][row] = member.arrival_ns
                out["skew"][row] = member.skew_ns
    out.update(types=list(types), groups=list(groups), keys=list(keys))
    return out


def _edge_table(pa: Any, part: TablePart) -> Any:
    e, g = part.edges, part.graph
    return pa.table(
        {
            "window": numbers(np.full(e.source.size, part.window, dtype=np.int32)),
            "source": numbers(g.id[e.source]),
            "target": numbers(g.id[e.target]),
            "type": dictionary(e.type, list(EDGE_TYPES)),
        }
    )


# --- All ranks' collectives in one table


def write_collectives(path: Path, members: list[Member], clocks: dict[int, Clock]) -> None:
    """One row for each rank's part of each collective, on the common clock."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    offsets = [clocks.get(m.rank, Clock()) for m in members]

    def whole(values: Iterable[int | None], kind: type = np.int64) -> Any:
        listed = list(values)
        null = np.array([v is None for v in listed], dtype=bool)
        return numbers(np.array([v or 0 for v in listed], dtype=kind), null)

    table = {
        "key": texts([m.key for m in members]),
        "type": texts([m.type for m in members]),
        "group": texts([m.group for m in members]),
        "rank": whole((m.rank for m in members), np.int32),
        "window": whole((m.window for m in members), np.int32),
        "number": whole(m.number for m in members),
        "seq": whole(m.seq for m in members),
        "bytes": whole(m.bytes for m in members),
        "start_ns": whole(
            m.start + c.offset_ns if m.timed else None for m, c in zip(members, offsets, strict=True)
        ),
        "end_ns": whole(
            m.end + c.offset_ns if m.timed else None for m, c in zip(members, offsets, strict=True)
        ),
        "ranks_matched": whole((m.matched for m in members), np.int32),
        "arrival_ns": whole(m.arrival_ns for m in members),
        "skew_ns": whole(m.skew_ns for m in members),
        "clock_error_ns": whole(c.error_ns for c in offsets),
    }
    parquet.write_table(pa.table(table), path)


# --- Arrow columns straight from NumPy memory: `pyarrow.array` would import pandas if it is installed, which
# takes longer than linking a window


def _bits(flags: Any) -> Any:
    return need("pyarrow").py_buffer(np.packbits(flags, bitorder="little"))


def _validity(null: Any) -> Any:
    return None if null is None or not null.any() else _bits(~null)


def numbers(values: Any, null: Any = None) -> Any:
    """Whole numbers of 32 or 64 bits."""
    pa = need("pyarrow")
    values = np.ascontiguousarray(values)
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, values.size, [_validity(null), pa.py_buffer(values)])


def booleans(flags: Any) -> Any:
    pa = need("pyarrow")
    return pa.Array.from_buffers(pa.bool_(), flags.size, [None, _bits(flags)])


def texts(values: Sequence[str]) -> Any:
    pa = need("pyarrow")
    encoded = [v.encode("utf-8", "replace") for v in values]
    ends = np.cumsum([0, *(len(e) for e in encoded)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    )


def dictionary(codes: Any, listed: Sequence[str]) -> Any:
    """Texts from codes; -1 is null."""
    pa = need("pyarrow")
    indices = np.ascontiguousarray(codes, dtype=np.int32)
    return pa.DictionaryArray.from_arrays(numbers(indices, indices < 0), texts(listed))
