"""A rank's graph as a Chakra execution trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link import wire
from dftracer.link._columns import Ints
from dftracer.link.activity import ActivityTable
from dftracer.link.collectives import COLLECTIVE_TYPES, RECV, SEND, Collective
from dftracer.link.edges import EDGE_TYPES, Edges
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import Graph
from dftracer.link.proto import messages
from dftracer.link.regions import NOTHING, Labels

__all__ = ["VERSION", "Facts", "read_chakra", "write_chakra"]

VERSION = "0.0.4"
_METADATA, _COMP, _SEND, _RECV, _COLL = 1, 4, 5, 6, 7
_BATCH = 8192
_CALL = EDGE_TYPES.index("call")
_ORDER = EDGE_TYPES.index("order")
_KNOWN_REST = {"scope": "uint64_val", "tid": "uint64_val", "fw_tid": "uint64_val", "op_schema": "string_val"}


@dataclass
class Facts:
    """What the file says of itself."""

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
    """Write the file in the order of the nodes' places, so that what a node waits for comes before it."""
    columns = _Columns(graph, et, activity, edges, collectives, labels, facts.offset_ns)
    order = np.argsort(graph.place)
    head = wire.Lengths(b"")
    with path.open("wb") as out:
        first = _global_metadata(facts)
        out.write(head[len(first)] + first)
        for low in range(0, order.size, _BATCH):
            parts: list[bytes] = []
            for body in columns.bodies(order[low : low + _BATCH].tolist()):
                parts += (head[len(body)], body)
            out.write(b"".join(parts))
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


class _Columns:
    """Every field of every node as a piece of its message."""

    def __init__(
        self,
        graph: Graph,
        et: ExecutionTrace,
        activity: ActivityTable,
        edges: Edges,
        collectives: list[Collective],
        labels: Labels,
        offset_ns: int,
    ) -> None:
        node = messages()["Node"]
        n = len(graph)
        self._et = et
        self._n_et = len(et)
        self._id = wire.varints(graph.id)
        self._id_tag = wire.tag_of("Node", id=1)
        self._name = wire.text_pieces(graph.names, lambda t: node(name=t))
        self._names = graph.name.tolist()
        kinds = np.full(n, _COMP, dtype=np.int64)
        kinds[graph.structural] = _METADATA
        self._special: dict[int, list[bytes]] = {}
        for c in collectives:
            self._add_collective(c, kinds)
        types = {k: node(type=k).SerializeToString() for k in np.unique(kinds).tolist()}
        self._type = [types[k] for k in kinds.tolist()]
        self._add_edges(graph, edges, n)
        timed = graph.timed
        start = np.where(timed, (graph.start + offset_ns) // 1000, 0)
        micros = np.where(timed, (graph.exclusive + 500) // 1000, 0)
        self._start = _field("start_time_micros", start)
        self._duration = _field("duration_micros", micros)
        inclusive = wire.attribute_column("inclusive_ns", "uint64_val", graph.dur)
        exclusive = wire.attribute_column("exclusive_ns", "uint64_val", graph.exclusive)
        self._times = [a + b if t else b"" for a, b, t in zip(inclusive, exclusive, timed.tolist(), strict=True)]
        self._rf = wire.attribute_column("rf_id", "uint64_val", np.maximum(et.rf, 0))
        self._fw = wire.attribute_column("fw_parent", "uint64_val", np.maximum(et.fw_parent, 0))
        self._seq = wire.attribute_column("seq_id", "int64_val", et.seq)
        self._rest = [_rest_attributes(r) for r in et.rests]
        self._rests = et.rest.tolist()
        self._label = _label_pieces(labels)
        self._kind_tail = [_kind_piece(k) for k in et.kinds]
        self._in_kinds, self._out_kinds = et.input_kinds.tolist(), et.output_kinds.tolist()
        self._values_head = wire.Lengths(wire.tag_of("IOInfo", values="x"))
        one = messages()["IOInfo"](values="x")
        self._in_head = wire.Lengths(wire.tag_of("Node", inputs=one))
        self._out_head = wire.Lengths(wire.tag_of("Node", outputs=one))
        self._add_device(graph, activity)
        self._graph = graph

    def _add_collective(self, c: Collective, kinds: Ints) -> None:
        kinds[c.carrier] = _SEND if c.type == SEND else _RECV if c.type == RECV else _COLL
        pieces = [wire.attribute("comm_size", int64_val=c.bytes or 0)]
        if c.type in COLLECTIVE_TYPES:
            pieces.append(wire.attribute("comm_type", int64_val=COLLECTIVE_TYPES[c.type]))
        pieces.append(wire.attribute("pg_name", string_val=c.group))
        if c.ranks:
            ranks = messages()["Int64List"](values=c.ranks)
            pieces.append(wire.attribute("comm_group", int64_list=ranks))
        if c.seq is not None:
            pieces.append(wire.attribute("comm_seq", int64_val=c.seq))
        if c.dtype:
            pieces.append(wire.attribute("comm_dtype", string_val=c.dtype))
        self._special[c.carrier] = pieces

    def _add_edges(self, graph: Graph, edges: Edges, n: int) -> None:
        """The caller is a control dependency, everything else a data dependency.

        Readers may look at data dependencies alone: a node that follows nothing else on its thread also names its
        caller there.
        """
        call = edges.type == _CALL
        has_order = np.zeros(n, dtype=bool)
        has_order[edges.target[edges.type == _ORDER]] = True
        self._ctrl = _dependencies("ctrl_deps", graph, edges.source[call], edges.target[call], n)
        used = ~call | ~has_order[edges.target]
        pairs = np.unique(edges.target[used] * n + edges.source[used]) if n else edges.target
        self._data = _dependencies("data_deps", graph, pairs % n if n else pairs, pairs // n if n else pairs, n)

    def _add_device(self, graph: Graph, activity: ActivityTable) -> None:
        cpu = wire.attribute("is_cpu_op", bool_val=True)
        gpu = wire.attribute("is_cpu_op", bool_val=False)
        self._where = [cpu] * len(graph)
        for row in np.flatnonzero(graph.on_device).tolist():
            at = int(graph.activity[row])
            pieces = [gpu, wire.attribute("stream", int64_val=int(activity.stream[at]))]
            pieces.append(wire.attribute("device", int64_val=int(activity.device[at])))
            if activity.correlation[at] >= 0:
                pieces.append(wire.attribute("correlation", int64_val=int(activity.correlation[at])))
            self._where[row] = b"".join(pieces)

    def bodies(self, rows: list[int]) -> list[bytes]:
        """The messages of these nodes."""
        out = []
        n_et, et = self._n_et, self._et
        ids, names, name, kind = self._id, self._names, self._name, self._type
        ctrl, data, start, duration = self._ctrl, self._data, self._start, self._duration
        times, where, label, special = self._times, self._where, self._label, self._special
        rf, fw, seq, rest, rests = self._rf, self._fw, self._seq, self._rest, self._rests
        tail, in_kinds, out_kinds = self._kind_tail, self._in_kinds, self._out_kinds
        values_head, in_head, out_head = self._values_head, self._in_head, self._out_head
        in_values, out_values = et.input_values, et.output_values
        tag, join = self._id_tag, b"".join
        for i in rows:
            pieces = [tag, ids[i], name[names[i]], kind[i], ctrl[i], data[i], start[i], duration[i]]
            if i < n_et:
                for values, more, head in (
                    (in_values[i], tail[in_kinds[i]], in_head),
                    (out_values[i], tail[out_kinds[i]], out_head),
                ):
                    front = values_head[len(values)]
                    pieces += (head[len(front) + len(values) + len(more)], front, values, more)
                pieces += (rf[i], fw[i], seq[i], rest[rests[i]])
            pieces += (where[i], times[i], label[i])
            if i in special:
                pieces += special[i]
            out.append(join(pieces))
        return out


def _field(name: str, values: Ints) -> list[bytes]:
    tag = wire.tag_of("Node", **{name: 1})
    return [tag + v if v != b"\0" else b"" for v in wire.varints(values)]


def _dependencies(field: str, graph: Graph, source: Ints, target: Ints, n: int) -> list[bytes]:
    order = np.argsort(target, kind="stable")
    return wire.packed_column(field, target[order], graph.id[source[order]], n)


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
            number = value if isinstance(value, int) and abs(value) < 1 << 63 else 0
            number = max(number, 0) if field == "uint64_val" else number
            pieces.append(wire.attribute(name, **{field: number}))
    return b"".join(pieces)


def _kind_piece(kind: tuple[bytes, bytes]) -> bytes:
    shapes, types = (t.decode("utf-8", "replace") for t in kind)
    piece: bytes = messages()["IOInfo"](shapes=shapes, types=types).SerializeToString()
    return piece


def _label_pieces(labels: Labels) -> list[bytes]:
    known: dict[tuple[int, int, int], bytes] = {}
    out = []
    for key in zip(labels.step.tolist(), labels.epoch.tolist(), labels.phase.tolist(), strict=True):
        piece = known.get(key)
        if piece is None:
            step, epoch, phase = key
            parts = []
            if step != NOTHING:
                parts.append(wire.attribute("step", int64_val=step))
            if epoch != NOTHING:
                parts.append(wire.attribute("epoch", int64_val=epoch))
            if phase >= 0:
                parts.append(wire.attribute("phase", string_val=labels.phases[phase]))
            piece = known[key] = b"".join(parts)
        out.append(piece)
    return out


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
