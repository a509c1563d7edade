"""A rank's graph as a Chakra execution trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link import wire
from dftracer.link._columns import ByteColumn, Codes, Ints, distinct
from dftracer.link.activity import ActivityTable
from dftracer.link.collectives import BARRIER, COLLECTIVE_TYPES, RECV, SEND, Collective
from dftracer.link.edges import EDGE_TYPES, Edges, begun_inside
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import Graph
from dftracer.link.regions import NOTHING, Labels
from dftracer.link.wire import messages

__all__ = ["VERSION", "Facts", "read_chakra", "write_chakra"]

VERSION = "0.0.4"
_METADATA, _COMP, _SEND, _RECV, _COLL = 1, 4, 5, 6, 7
_BATCH = 1 << 13
_CALL = EDGE_TYPES.index("call")
_ORDER = EDGE_TYPES.index("order")
_SEPARATE = ("pg_name", "comm_size", "comm_type", "comm_group", "comm_seq", "comm_dtype")
_GROUPS = "process_group:init"
# Numbers as Chakra's converter types them, whatever the execution trace calls them.
_KNOWN_REST = {"scope": "int64_val", "tid": "int64_val", "fw_tid": "int64_val", "op_schema": "string_val"}


@dataclass
class Facts:
    """The file's metadata."""

    rank: int
    world_size: int | None
    window: int
    schema: str
    offset_ns: int
    error_ns: int | None


def write_chakra(
    path: Path,
    graph: Graph,
    et: ExecutionTrace,
    activity: ActivityTable,
    edges: Edges,
    collectives: list[Collective],
    labels: Labels,
    facts: Facts,
) -> int:
    """Write the file in the order of the nodes' places, so that a node's dependencies come before it."""
    kinds = _Kinds(graph, et, activity, edges, collectives, labels, facts.offset_ns, facts.rank)
    order = np.argsort(graph.place)
    with path.open("wb") as out:
        first = ByteColumn.of([_global_metadata(facts)])
        out.write(wire.join(wire.delimited(b"", first), np.zeros(1, dtype=np.int64)).text)
        for low in range(0, order.size, _BATCH):
            out.write(kinds.frames(order[low : low + _BATCH]))
    return int(order.size)


def _global_metadata(facts: Facts) -> bytes:
    m = messages()
    attribute = m["AttributeProto"]
    listed = [
        attribute(name="schema", string_val=facts.schema),
        attribute(name="rank", int64_val=facts.rank),
        attribute(name="window", int64_val=facts.window),
        attribute(name="clock_offset_ns", int64_val=facts.offset_ns),
    ]
    if facts.world_size is not None:
        listed.append(attribute(name="world_size", int64_val=facts.world_size))
    if facts.error_ns is not None:
        listed.append(attribute(name="clock_error_ns", int64_val=facts.error_ns))
    text: bytes = m["GlobalMetadata"](version=VERSION, attr=listed).SerializeToString()
    return text


class _Kinds:
    """The fields of three kinds of nodes: of the execution trace, others of the host, of devices."""

    def __init__(
        self,
        graph: Graph,
        et: ExecutionTrace,
        activity: ActivityTable,
        edges: Edges,
        collectives: list[Collective],
        labels: Labels,
        offset_ns: int,
        rank: int,
    ) -> None:
        n, n_et = len(graph), len(et)
        node = messages()["Node"]
        self._kind = np.where(graph.on_device, 2, np.where(np.arange(n) < n_et, 0, 1))
        kinds = np.full(n, _COMP, dtype=np.int64)
        kinds[graph.structural] = _METADATA
        special = [b""]
        which = np.zeros(n, dtype=np.int32)
        carrier = np.zeros(n, dtype=np.int64)
        for c in collectives:
            which[c.carrier] = len(special)
            special.append(_collective_attributes(c, rank))
            if c.type != BARRIER:
                kinds[c.carrier] = _SEND if c.type == SEND else _RECV if c.type == RECV else _COLL
                carrier[c.carrier] = 1
        timed = graph.timed
        start = np.where(timed, (graph.start + offset_ns) // 1000, 0)
        micros = np.where(timed, (graph.own + 500) // 1000, 0)
        common = [
            *wire.number_field("id", graph.id),
            wire.coded(graph.name, [node(name=t).SerializeToString() for t in graph.names]),
            wire.coded(kinds, [node(type=k).SerializeToString() for k in range(_COLL + 1)]),
            *_dependencies(graph, edges, n),
            *wire.number_field("start_time_micros", start),
            *wire.number_field("duration_micros", micros),
        ]
        last = [
            *wire.attribute_columns("inclusive_ns", "int64_val", graph.dur, timed),
            *wire.attribute_columns("exclusive_ns", "int64_val", graph.exclusive, timed),
            *wire.attribute_columns("duration_ns", "int64_val", graph.own, timed),
            _label_column(labels),
            wire.coded(which, special),
        ]
        # Simulators reject communication on the host, whoever carried it out.
        cpu = wire.coded(carrier, [wire.attribute("is_cpu_op", bool_val=v) for v in (True, False)])
        own = [*_values("inputs", _input_values(et), et.input_kinds, et.kinds)] if n_et else []
        own += [*_values("outputs", et.output_values, et.output_kinds, et.kinds)] if n_et else []
        own += [
            *wire.attribute_columns("rf_id", "int64_val", np.maximum(et.rf, 0)),
            *wire.attribute_columns("fw_parent", "int64_val", np.maximum(et.fw_parent, 0)),
            *wire.attribute_columns("seq_id", "int64_val", et.seq),
            wire.coded(*_rest_columns(et, which)),
        ]
        self._columns = (
            [*common, *own, cpu, *last],
            [*common, cpu, *last],
            [*common, *_device_attributes(graph, activity), *last],
        )

    def frames(self, rows: Ints) -> bytes:
        """The messages of these nodes, each preceded by its length."""
        parts, where = [], []
        for kind, columns in enumerate(self._columns):
            mine = np.flatnonzero(self._kind[rows] == kind)
            if mine.size:
                parts.append(wire.join(columns, rows[mine]))
                where.append(mine)
        bodies = ByteColumn.joined(parts)
        back = np.argsort(np.concatenate(where))
        return wire.join(wire.delimited(b"", bodies), back).text


def _collective_attributes(c: Collective, rank: int) -> bytes:
    pieces = [wire.attribute("comm_size", int64_val=c.bytes or 0)]
    if c.type == BARRIER:
        # It moves no data, and ASTRA-sim has no such collective: it is replayed, not simulated.
        pieces.append(wire.attribute("collective", string_val=c.type))
    elif c.type in COLLECTIVE_TYPES:
        pieces.append(wire.attribute("comm_type", int64_val=COLLECTIVE_TYPES[c.type]))
    elif c.peer is not None:
        ends = (rank, c.peer) if c.type == SEND else (c.peer, rank)
        for name, value in zip(("comm_src", "comm_dst", "comm_tag"), (*ends, c.tag), strict=True):
            pieces.append(wire.attribute(name, int32_val=value))
    pieces.append(wire.attribute("pg_name", string_val=c.group))
    if c.ranks:
        pieces.append(wire.attribute("comm_group", int64_list=messages()["Int64List"](values=c.ranks)))
    if c.seq is not None:
        pieces.append(wire.attribute("comm_seq", int64_val=c.seq))
    if c.dtype:
        pieces.append(wire.attribute("comm_dtype", string_val=c.dtype))
    return b"".join(pieces)


def _rest_columns(et: ExecutionTrace, which: Codes) -> tuple[Codes, list[bytes]]:
    """The other attributes from the execution trace; for a collective, without those already written."""
    of_collective = which[: len(et)] > 0
    texts = [_rest_attributes(r) for r in et.rests]
    again = [_rest_attributes({k: v for k, v in r.items() if k not in _SEPARATE}) for r in et.rests]
    return et.rest + np.where(of_collective, len(texts), 0).astype(np.int32), texts + again


def _dependencies(graph: Graph, edges: Edges, n: int) -> wire.Columns:
    """The caller is a control dependency, everything else a data dependency.

    Readers may look only at data dependencies: a node that follows nothing else on its thread also names its
    caller there.
    """
    call = edges.type == _CALL
    has_order = np.zeros(n, dtype=bool)
    has_order[edges.target[edges.type == _ORDER]] = True
    used = ~call | ~has_order[edges.target]
    early = begun_inside(graph, edges)
    control = (edges.source[call | early], edges.target[call | early])
    data = (edges.source[used & ~early], edges.target[used & ~early])
    for row in np.flatnonzero(early).tolist():
        # It waits for what its call waited for.
        before = data[0][data[1] == edges.source[row]]
        data = (
            np.concatenate([data[0], before]),
            np.concatenate([data[1], np.full(before.size, edges.target[row])]),
        )
    out: wire.Columns = []
    for field, (source, target) in (("ctrl_deps", control), ("data_deps", data)):
        pairs = distinct(target * n + source) if n else np.zeros(0, dtype=np.int64)
        out += wire.packed_field(field, pairs // max(n, 1), graph.id[pairs % max(n, 1)], n)
    return out


def _device_attributes(graph: Graph, activity: ActivityTable) -> wire.Columns:
    there = graph.on_device
    at = np.maximum(graph.activity, 0)
    out: wire.Columns = [wire.attribute("is_cpu_op", bool_val=False)]
    if not len(activity):
        return out
    for name, column in (
        ("stream", activity.stream),
        ("device", activity.device),
        ("correlation", activity.correlation),
    ):
        values = column[at]
        out += wire.attribute_columns(name, "int64_val", values, there & (values >= 0))
    return out


def _input_values(et: ExecutionTrace) -> ByteColumn:
    """Unchanged, but the list of process groups as Python prints it: ASTRA-sim strips `['` and `']`."""
    named = np.array([_GROUPS in name for name in et.names], dtype=bool)
    parts, low = [], 0
    for row in np.flatnonzero(named[et.name]).tolist():
        try:
            text = str(json.loads(et.input_values[row])).encode()
        except ValueError:
            continue
        parts += [et.input_values.take(np.arange(low, row)), ByteColumn.of([text])]
        low = row + 1
    if not parts:
        return et.input_values
    return ByteColumn.joined([*parts, et.input_values.take(np.arange(low, len(et.input_values)))])


def _values(field: str, values: ByteColumn, codes: Codes, kinds: list[tuple[bytes, bytes]]) -> wire.Columns:
    """Inputs or outputs of the nodes of the execution trace."""
    info = messages()["IOInfo"]
    tails = [
        info(
            shapes=shapes.decode("utf-8", "replace"), types=types.decode("utf-8", "replace")
        ).SerializeToString()
        for shapes, types in kinds
    ]
    rows = np.arange(len(values))
    inside = wire.join(
        [*wire.delimited(wire.tag_of("IOInfo", values="x"), values), wire.coded(codes, tails)], rows
    )
    return wire.delimited(wire.tag_of("Node", **{field: info(values="x")}), inside)


def _rest_attributes(rest: dict[str, Any]) -> bytes:
    pieces = []
    for name, value in rest.items():
        field = _KNOWN_REST.get(name)
        if field is None:
            if value in ("", None):
                continue
            field = "string_val" if isinstance(value, str) else "int64_val"
        if field == "string_val":
            pieces.append(wire.attribute(name, string_val=str(value)))
        else:
            number = int(value) if isinstance(value, int) and abs(value) < 1 << 63 else 0
            pieces.append(wire.attribute(name, **{field: number}))
    return b"".join(pieces)


def _label_column(labels: Labels) -> Any:
    """Step, epoch and phase: few distinct ones, each made once."""
    pieces = []
    for row in labels.rows:
        parts = []
        for name, column in (("step", labels.step), ("epoch", labels.epoch)):
            if column[row] != NOTHING:
                parts.append(wire.attribute(name, int64_val=int(column[row])))
        if labels.phase[row] >= 0:
            parts.append(wire.attribute("phase", string_val=labels.phases[labels.phase[row]]))
        pieces.append(b"".join(parts))
    return wire.coded(labels.code, pieces)


def read_chakra(path: Path) -> tuple[Any, list[Any]]:
    """The metadata and all nodes of a file, as messages."""
    m = messages()
    text = path.read_bytes()
    at = 0
    found: list[Any] = []
    while at < len(text):
        size = shift = 0
        while True:
            byte = text[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(m["Node" if found else "GlobalMetadata"].FromString(text[at : at + size]))
        at += size
    return found[0], found[1:]
