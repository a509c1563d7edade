"""The linked tables as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link._columns import Flags, Interner, Ints
from dftracer.link.activity import KIND_NAMES, ActivityTable
from dftracer.link.arrow_columns import booleans, dictionary, numbers
from dftracer.link.clock import Member
from dftracer.link.collectives import Collective
from dftracer.link.edges import EDGE_TYPES, Edges
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import Graph
from dftracer.link.join import BY_ORDER, BY_RF, Join
from dftracer.link.regions import NOTHING, Labels, Spans
from dftracer.load._need import need

__all__ = ["COLUMNS", "TablePart", "write_tables"]

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
        "`op`, `annotation`, `runtime`, `kernel`, `memcpy`, `memset`; of our trace `region`, `io`",
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
        "start in ns since the epoch, on the clock of the reference rank; null where there is no time",
    ),
    ("dur_ns", "int64", "duration, inner nodes included"),
    (
        "exclusive_ns",
        "int64",
        "duration without the inner nodes of the same thread and without waiting for another thread",
    ),
    ("waiting_ns", "int64", "how long it waited for another thread, which is not in `exclusive_ns`"),
    ("step", "int64", "training step"),
    ("epoch", "int64", "epoch"),
    ("phase", "dictionary", "innermost `ai` region, e.g. `compute.forward`"),
    (
        "joined_by",
        "dictionary",
        "`rf_id` or `order`: how the node of the execution trace found its times; null without",
    ),
    ("in_et", "bool", "the execution trace has this node"),
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
    ("collective", "dictionary", "type of collective; on the node that calls it"),
    ("group", "dictionary", "process group of the collective"),
    ("collective_key", "dictionary", "the same for all ranks' parts of one collective"),
    ("arrival_ns", "int64", "how long after the first rank this one came to the collective"),
    ("skew_ns", "int64", "how long after the first the last rank came"),
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
    g, act, spans = part.graph, part.activity, part.spans
    n, extra = len(g), len(spans)
    total = n + extra
    has_et = g.et >= 0
    timed = g.timed
    at = np.maximum(g.activity, 0)

    def ints(values: Ints, missing: Flags, own: Ints | None = None) -> Any:
        """Of nodes, then of our trace's rows (null without `own`)."""
        tail = np.full(extra, NOTHING, dtype=np.int64) if own is None else own
        whole = np.concatenate([np.where(missing, NOTHING, values), tail])
        null = whole == NOTHING
        return numbers(whole, null)

    def of_activity(column: Ints, own: Ints | None = None) -> Any:
        values = column[at] if len(act) else np.zeros(n, dtype=np.int64)
        return ints(values, ~timed | (values < 0), own)

    def of_et(column: Ints, missing: int) -> Any:
        values = column[np.maximum(g.et, 0)] if len(part.et) else np.zeros(n, dtype=np.int64)
        return ints(values, ~has_et | (values == missing))

    def texts(codes: Any, listed: list[str], own: Any = None, own_listed: Sequence[str] = ()) -> Any:
        tail = np.full(extra, -1) if own is None else np.where(own < 0, -1, own + len(listed))
        return dictionary(np.concatenate([codes, tail]), [*listed, *own_listed])

    kind = np.concatenate([g.kind, np.where(spans.is_io, _IO, _REGION)])
    none = np.zeros(n, dtype=bool)
    nothing = np.full(n, -1)
    untimed = ~timed
    device = g.on_device
    rest = part.et.rest[np.maximum(g.et, 0)] if len(part.et) else nothing
    kinds = part.et.input_kinds[np.maximum(g.et, 0)] if len(part.et) else nothing
    schemas, schema_of = _distinct([str(r.get("op_schema") or "") for r in part.et.rests])
    shapes, shape_of = _distinct([k[0].decode("utf-8", "replace") for k in part.et.kinds])
    types, type_of = _distinct([k[1].decode("utf-8", "replace") for k in part.et.kinds])
    comm = _collective_columns(part, n)
    bytes_ = comm["bytes"]
    sizes = np.full(max(len(act), 1), NOTHING, dtype=np.int64)
    for row, detail in act.details.items():
        if isinstance(detail.get("bytes"), int):
            sizes[row] = detail["bytes"]
    bytes_ = np.where(timed & (sizes[at] != NOTHING), sizes[at], bytes_)
    parent = np.where(g.parent >= 0, g.id[np.maximum(g.parent, 0)], 0)
    launched = np.where(g.launch >= 0, g.id[np.maximum(g.launch, 0)], 0)
    how = part.join.how[np.maximum(g.et, 0)] if len(part.et) else nothing
    columns = {
        "rank": numbers(np.full(total, rank, dtype=np.int32)),
        "window": numbers(np.full(total, part.window, dtype=np.int32)),
        "node": ints(g.id, none),
        "parent": ints(parent, g.parent < 0),
        "kind": dictionary(kind, list(_KINDS)),
        "name": texts(g.name, g.names, spans.name, spans.texts),
        "cat": texts(nothing, [], spans.cat, spans.texts),
        "pid": ints(
            np.full(n, act.main_pid if act.main_pid is not None else part.et.pid or 0), none, spans.pid
        ),
        "tid": ints(g.tid, untimed | device, spans.tid),
        "device": ints(act.device[at] if len(act) else nothing, ~device).cast(pa.int32()),
        "stream": ints(act.stream[at] if len(act) else nothing, ~device),
        "start_ns": ints(g.start + offset_ns, untimed, spans.start + offset_ns),
        "dur_ns": ints(g.dur, untimed, spans.dur),
        "exclusive_ns": ints(g.exclusive, untimed),
        "waiting_ns": ints(g.waiting, untimed),
        "step": ints(part.labels.step, none, spans.step),
        "epoch": ints(part.labels.epoch, none, spans.epoch),
        "phase": texts(part.labels.phase, part.labels.phases),
        "joined_by": texts(np.where(has_et & (how > 0), how - 1, -1), [_HOW[BY_RF], _HOW[BY_ORDER]]),
        "in_et": booleans(np.concatenate([has_et, np.zeros(extra, dtype=bool)])),
        "rf_id": of_et(part.et.rf, 0) if len(part.et) else of_activity(act.rf),
        "external_id": of_activity(act.external),
        "correlation": of_activity(act.correlation),
        "launched_by": ints(launched, g.launch < 0),
        "seq_id": of_et(part.et.seq, -1) if len(part.et) else of_activity(act.seq),
        "op_schema": texts(np.where(has_et, schema_of[rest], -1), schemas),
        "input_shapes": texts(np.where(has_et, shape_of[kinds], -1), shapes),
        "input_types": texts(np.where(has_et, type_of[kinds], -1), types),
        "bytes": ints(bytes_, none, spans.bytes),
        "path": texts(nothing, [], spans.path, spans.texts),
        "collective": texts(comm["type"], comm["types"]),
        "group": texts(comm["group"], comm["groups"]),
        "collective_key": texts(comm["key"], comm["keys"]),
        "arrival_ns": ints(comm["arrival"], none),
        "skew_ns": ints(comm["skew"], none),
    }
    return pa.table({name: columns[name] for name, _, _ in COLUMNS})


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
        for row in {call.row, call.carrier}:
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
