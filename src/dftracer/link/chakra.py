"""A rank's graph as a Chakra execution trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import need
from dftracer.link.collectives import BARRIER, COLLECTIVE_TYPES, RECV, SEND, Collective
from dftracer.link.columns import (
    ActivityTable,
    ByteColumn,
    Codes,
    Columns,
    Flags,
    Ints,
    coded,
    distinct,
    join_rows,
)
from dftracer.link.edges import EDGE_TYPES, Edges
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import Graph
from dftracer.link.regions import NOTHING, Labels

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
        out.write(join_rows(delimited(b"", first), np.zeros(1, dtype=np.int64)).text)
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
            which[c.carriers] = len(special)
            special.append(_collective_attributes(c, rank))
            if c.type != BARRIER:
                kinds[c.carriers] = _SEND if c.type == SEND else _RECV if c.type == RECV else _COLL
                carrier[c.carriers] = 1
        timed = graph.timed
        start = np.where(timed, (graph.start + offset_ns) // 1000, 0)
        micros = np.where(timed, (graph.own + 500) // 1000, 0)
        common = [
            *number_field("id", graph.id),
            coded(graph.name, [node(name=t).SerializeToString() for t in graph.names]),
            coded(kinds, [node(type=k).SerializeToString() for k in range(_COLL + 1)]),
            *_dependencies(graph, edges, n),
            *number_field("start_time_micros", start),
            *number_field("duration_micros", micros),
        ]
        last = [
            *attribute_columns("inclusive_ns", "int64_val", graph.dur, timed),
            *attribute_columns("exclusive_ns", "int64_val", graph.exclusive, timed),
            *attribute_columns("duration_ns", "int64_val", graph.own, timed),
            _label_column(labels),
            coded(which, special),
        ]
        # Simulators reject communication on the host, whoever carried it out.
        cpu = coded(carrier, [attribute("is_cpu_op", bool_val=v) for v in (True, False)])
        own = [*_values("inputs", _input_values(et), et.input_kinds, et.kinds)] if n_et else []
        own += [*_values("outputs", et.output_values, et.output_kinds, et.kinds)] if n_et else []
        own += [
            *attribute_columns("rf_id", "int64_val", np.maximum(et.rf, 0)),
            *attribute_columns("fw_parent", "int64_val", np.maximum(et.fw_parent, 0)),
            *attribute_columns("seq_id", "int64_val", et.seq),
            coded(*_rest_columns(et, which)),
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
                parts.append(join_rows(columns, rows[mine]))
                where.append(mine)
        bodies = ByteColumn.joined(parts)
        back = np.argsort(np.concatenate(where))
        return join_rows(delimited(b"", bodies), back).text


def _collective_attributes(c: Collective, rank: int) -> bytes:
    pieces = [attribute("comm_size", int64_val=(c.bytes or 0) // len(c.carriers))]
    if c.type == BARRIER:
        # It moves no data, and ASTRA-sim has no such collective: it is replayed, not simulated.
        pieces.append(attribute("collective", string_val=c.type))
    elif c.type in COLLECTIVE_TYPES:
        pieces.append(attribute("comm_type", int64_val=COLLECTIVE_TYPES[c.type]))
    elif c.peer is not None:
        ends = (rank, c.peer) if c.type == SEND else (c.peer, rank)
        for name, value in zip(("comm_src", "comm_dst", "comm_tag"), (*ends, c.tag), strict=True):
            pieces.append(attribute(name, int32_val=value))
    pieces.append(attribute("pg_name", string_val=c.group))
    if c.ranks:
        pieces.append(attribute("comm_group", int64_list=messages()["Int64List"](values=c.ranks)))
    if c.seq is not None:
        pieces.append(attribute("comm_seq", int64_val=c.seq))
    if c.dtype:
        pieces.append(attribute("comm_dtype", string_val=c.dtype))
    return b"".join(pieces)


def _rest_columns(et: ExecutionTrace, which: Codes) -> tuple[Codes, list[bytes]]:
    """The other attributes from the execution trace; for a collective, without those already written."""
    of_collective = which[: len(et)] > 0
    texts = [_rest_attributes(r) for r in et.rests]
    again = [_rest_attributes({k: v for k, v in r.items() if k not in _SEPARATE}) for r in et.rests]
    return et.rest + np.where(of_collective, len(texts), 0).astype(np.int32), texts + again


def _dependencies(graph: Graph, edges: Edges, n: int) -> Columns:
    """The caller is a control dependency, everything else a data dependency.

    Readers may look only at data dependencies: a node that follows nothing else on its thread also names its
    caller there.
    """
    call = edges.type == _CALL
    has_order = np.zeros(n, dtype=bool)
    has_order[edges.target[edges.type == _ORDER]] = True
    used = ~call | ~has_order[edges.target]
    control = (edges.source[call], edges.target[call])
    data = (edges.source[used], edges.target[used])
    out: Columns = []
    for field, (source, target) in (("ctrl_deps", control), ("data_deps", data)):
        pairs = distinct(target * n + source) if n else np.zeros(0, dtype=np.int64)
        out += packed_field(field, pairs // max(n, 1), graph.id[pairs % max(n, 1)], n)
    return out


def _device_attributes(graph: Graph, activity: ActivityTable) -> Columns:
    there = graph.on_device
    at = np.maximum(graph.activity, 0)
    out: Columns = [attribute("is_cpu_op", bool_val=False)]
    if not len(activity):
        return out
    for name, column in (
        ("stream", activity.stream),
        ("device", activity.device),
        ("correlation", activity.correlation),
    ):
        values = column[at]
        out += attribute_columns(name, "int64_val", values, there & (values >= 0))
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


def _values(field: str, values: ByteColumn, codes: Codes, kinds: list[tuple[bytes, bytes]]) -> Columns:
    """Inputs or outputs of the nodes of the execution trace."""
    info = messages()["IOInfo"]
    tails = [
        info(
            shapes=shapes.decode("utf-8", "replace"), types=types.decode("utf-8", "replace")
        ).SerializeToString()
        for shapes, types in kinds
    ]
    rows = np.arange(len(values))
    inside = join_rows([*delimited(tag_of("IOInfo", values="x"), values), coded(codes, tails)], rows)
    return delimited(tag_of("Node", **{field: info(values="x")}), inside)


def _rest_attributes(rest: dict[str, Any]) -> bytes:
    pieces = []
    for name, value in rest.items():
        field = _KNOWN_REST.get(name)
        if field is None:
            if value in ("", None):
                continue
            field = "string_val" if isinstance(value, str) else "int64_val"
        if field == "string_val":
            pieces.append(attribute(name, string_val=str(value)))
        else:
            number = int(value) if isinstance(value, int) and abs(value) < 1 << 63 else 0
            pieces.append(attribute(name, **{field: number}))
    return b"".join(pieces)


def _label_column(labels: Labels) -> Any:
    """Step, epoch and phase: few distinct ones, each made once."""
    pieces = []
    for row in labels.rows:
        parts = []
        for name, column in (("step", labels.step), ("epoch", labels.epoch)):
            if column[row] != NOTHING:
                parts.append(attribute(name, int64_val=int(column[row])))
        if labels.phase[row] >= 0:
            parts.append(attribute("phase", string_val=labels.phases[labels.phase[row]]))
        pieces.append(b"".join(parts))
    return coded(labels.code, pieces)


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


# --- The wire format: protobuf messages for whole columns of nodes
#
# A message is its fields one after the other, so fields that many messages share are made once, and the
# numbers of a column are made together: the library writes them as one packed list, which is cut at the known
# widths. Every byte comes from the protobuf library; only the joining is ours.

# What protoc makes of chakra.proto (`make chakra-descriptor`); a test compares the two. Unlike a generated
# Python module it is not tied to one version of the protobuf library.
_COMPILED = Path(__file__).with_name("chakra.desc")


@cache
def messages() -> dict[str, Any]:
    """All message classes of the schema by name."""
    descriptor = need("google.protobuf.descriptor_pb2", "link")
    pools = need("google.protobuf.descriptor_pool", "link")
    factory = need("google.protobuf.message_factory", "link")
    (file,) = descriptor.FileDescriptorSet.FromString(_COMPILED.read_bytes()).file
    pool = pools.DescriptorPool()
    pool.Add(file)
    return {
        m.name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{m.name}"))
        for m in file.message_type
    }


_STEPS = tuple(1 << (7 * k) for k in range(1, 9))
_NEGATIVE_WIDTH = 10


def _widths(values: Ints) -> Ints:
    """The bytes of each number as a varint."""
    width = np.ones(values.size, dtype=np.int64)
    largest = int(values.max()) if values.size else 0
    for step in _STEPS:
        if step > largest:
            break
        width += values >= step
    width[values < 0] = _NEGATIVE_WIDTH
    return width


def _payload(values: Ints) -> bytes:
    """All numbers as varints in a row."""
    if not values.size:
        return b""
    packed: bytes = messages()["Int64List"](values=values.tolist()).SerializeToString()
    return packed[len(packed) - int(_widths(values).sum()) :]


def varints(values: Ints, present: Flags | None = None) -> ByteColumn:
    """Each number as a varint; nothing if it is not present. Negative ones as in `int64` fields."""
    width = _widths(values)
    if present is not None:
        width = np.where(present, width, 0)
        values = values[present]
    return ByteColumn(_payload(values), np.cumsum(width))


def tag_of(message: str, **field: Any) -> bytes:
    """The tag of a field, from a message with only this field; its number must fit one byte."""
    text: bytes = messages()[message](**field).SerializeToString()
    return text[:1]


def delimited(tag: bytes, column: ByteColumn) -> Columns:
    """Texts or messages as a field: tag, length, content."""
    lengths = np.diff(column.ends, prepend=0)
    return [tag, varints(lengths).slices, column.slices]


def number_field(name: str, values: Ints) -> Columns:
    """A number of the node; as the library does, nothing for 0."""
    present = values != 0
    tag = tag_of("Node", **{name: 1})
    return [coded(present, [b"", tag]), varints(values, present).slices]


def packed_field(name: str, targets: Ints, values: Ints, n: int) -> Columns:
    """For each of `n` nodes its list of numbers; `targets` are sorted."""
    width = np.bincount(targets, weights=_widths(values), minlength=n).astype(np.int64)
    tag = tag_of("Node", **{name: [1]})
    lengths, codes = np.unique(width, return_inverse=True)
    sizes = varints(lengths)
    pieces = [tag + size if length else b"" for length, size in zip(lengths.tolist(), sizes, strict=True)]
    return [coded(codes, pieces), ByteColumn(_payload(values), np.cumsum(width)).slices]


def attribute(name: str, **value: Any) -> bytes:
    """An attribute of a node, with its tag."""
    m = messages()
    clean = {k: _text(v) if isinstance(v, str) else v for k, v in value.items()}
    piece: bytes = m["Node"](attr=[m["AttributeProto"](name=_text(name), **clean)]).SerializeToString()
    return piece


def _text(text: str) -> str:
    """Text that can be written: damaged files contain partial characters."""
    return text.encode("utf-8", "replace").decode()


def attribute_columns(name: str, field: str, values: Ints, present: Flags | None = None) -> Columns:
    """An attribute that differs from node to node."""
    column = varints(values, present)
    width = np.diff(column.ends, prepend=0)
    heads = [b""] * (_NEGATIVE_WIDTH + 1)
    there, first = np.unique(width, return_index=True)
    for size, row in zip(there.tolist(), first.tolist(), strict=True):
        if size:
            whole = attribute(name, **{field: int(values[row])})
            heads[size] = whole[: len(whole) - size]
    return [coded(width, heads), column.slices]
