"""PyTorch's execution trace as columns, whatever the version of its schema."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import need
from dftracer.format.torch_files import NODE_NAME, STRUCTURAL
from dftracer.link._json_stream import ItemReader, Repairs, read_blocks
from dftracer.link._text import parse_nodes
from dftracer.link.columns import (
    ByteColumn,
    Codes,
    Interner,
    Ints,
    distinct,
    integer,
    integers,
)
from dftracer.load.chunk import int32s, int64s

# Nodes that represent the process and its threads, and groups made before the window: nothing ran.
_TENSOR = re.compile(rb'\0|\[(\d+),\s*(\d+),\s*\d+,\s*(\d+),\s*(\d+),\s*"')
# The six attributes every node of the current schema begins with; three of them differ from node to node, the
# rest repeat and are parsed once.
_USUAL = re.compile(
    rb'\[\s*\{"name":\s*"rf_id",\s*"type":\s*"uint64",\s*"value":\s*(\d+)\},'
    rb'\s*\{"name":\s*"fw_parent",\s*"type":\s*"uint64",\s*"value":\s*(\d+)\},'
    rb'\s*\{"name":\s*"seq_id",\s*"type":\s*"int64",\s*"value":\s*(-?\d+)\},\s*'
)
_BEGINS = rb'"id"\s*:|"name"\s*:\s*"[^"]*"\s*,\s*"(?:id|rf_id|parent|ctrl_deps)"'
_NUMBERS = ("rf_id", "fw_parent", "seq_id")
_REST = ("scope", "tid", "fw_tid")


@dataclass
class Tensors:
    """Every input or output tensor of a node: the row of the node, tensor, storage, elements, item size."""

    node: Ints
    tensor: Ints
    storage: Ints
    elements: Ints
    item: Ints


@dataclass
class ExecutionTrace:
    """The nodes in the order of their ids, which is the order in which they began."""

    path: Path | None
    schema: str
    pid: int | None
    id: Ints
    parent: Ints  # id of the parent as torch wrote it
    rf: Ints
    fw_parent: Ints
    seq: Ints
    scope: Ints
    tid: Ints  # torch's small number of the thread
    fw_tid: Ints
    name: Codes
    names: list[str]
    rest: Codes  # the further attributes of a node, as a row of `rests`
    rests: list[dict[str, Any]]
    input_values: ByteColumn
    input_kinds: Codes  # shapes and types of the inputs, as a row of `kinds`
    output_values: ByteColumn
    output_kinds: Codes
    kinds: list[tuple[bytes, bytes]]
    inputs: Tensors
    outputs: Tensors
    repairs: Repairs = field(default_factory=Repairs)
    duplicate_ids: int = 0

    def __len__(self) -> int:
        return int(self.id.size)

    @property
    def real(self) -> Any:
        """Which nodes represent something that ran."""
        ran = np.array([STRUCTURAL.fullmatch(n) is None for n in self.names], dtype=bool)
        return ran[self.name] if len(self.names) else np.zeros(0, dtype=bool)

    @property
    def has_rf_ids(self) -> bool:
        """Whether the observer and the profiler ran together in a torch that numbers its records."""
        return bool((self.rf > 0).any())


def _node() -> Any:
    msgspec = need("msgspec", "link")
    raw = msgspec.Raw
    empty = raw(b"[]")
    put = msgspec.defstruct(
        "InputOutput", [("values", raw, empty), ("shapes", raw, empty), ("types", raw, empty)], gc=False
    )
    return msgspec.defstruct(
        "Node",
        [
            ("id", int),
            ("name", str),
            ("ctrl_deps", int | list[int] | None, None),
            ("parent", int | None, None),
            ("inputs", put | None, None),
            ("outputs", put | None, None),
            ("attrs", raw, empty),
        ],
        gc=False,
    )


def _flat_node() -> Any:
    """Schema 1.0.1: lists instead of objects, and the attributes beside the name."""
    msgspec = need("msgspec", "link")
    raw = msgspec.Raw
    empty = raw(b"[]")
    number = int | None
    return msgspec.defstruct(
        "FlatNode",
        [
            ("id", int),
            ("name", str),
            ("parent", number, None),
            ("ctrl_deps", int | list[int] | None, None),
            ("rf_id", number, 0),
            ("fw_parent", number, 0),
            ("seq_id", number, -1),
            ("scope", number, 0),
            ("tid", number, 0),
            ("fw_tid", number, 0),
            ("op_schema", str | None, ""),
            ("inputs", raw, empty),
            ("input_shapes", raw, empty),
            ("input_types", raw, empty),
            ("outputs", raw, empty),
            ("output_shapes", raw, empty),
            ("output_types", raw, empty),
        ],
        gc=False,
    )


def read_execution_trace(path: Path) -> ExecutionTrace:
    """Read a file; what is wrong with it is in `repairs`, never an exception."""
    is_flat = _is_flat(path)
    kind = _flat_node if is_flat else _node
    reader = ItemReader(path, "nodes", _BEGINS, kind, NODE_NAME)
    builder = _Builder()
    for text in reader.texts():
        if is_flat or not builder.take_text(text):
            (builder.take_flat if is_flat else builder.take)(reader.decode(text))
    if not reader.found:
        reader.repairs.notes.append("it has no list of nodes: this is not an execution trace")
    return builder.finish(path, reader.head, reader.repairs)


def empty_execution_trace() -> ExecutionTrace:
    """A trace without nodes."""
    out = _Builder().finish(Path(), {}, Repairs())
    out.path = None
    return out


def _is_flat(path: Path) -> bool:
    start = next(read_blocks(path, Repairs(), 1 << 20), b"")
    return b'"input_shapes"' in start or (b'"rf_id":' in start and b'"attrs"' not in start)


def _first(dependency: Any) -> int:
    if isinstance(dependency, list):
        return dependency[0] if dependency else -1
    return -1 if dependency is None else dependency


class _Builder:
    """Columns that grow by a block of nodes at a time."""

    def __init__(self) -> None:
        self._names, self._rests, self._kinds = Interner(), Interner(), Interner()
        self._decoded: list[dict[str, Any]] = []
        self._parts: dict[str, list[Ints]] = {}
        self._values: dict[str, list[ByteColumn]] = {"input": [], "output": []}
        self._count = 0

    def _add(self, **columns: Any) -> None:
        for name, values in columns.items():
            self._parts.setdefault(name, []).append(integers(values))

    def take_text(self, text: bytes) -> bool:
        """Nodes as torch writes them today; False, and nothing read, if anything in the text is unusual."""
        found = parse_nodes(text)
        if found is None:
            return False
        try:
            names = [json.loads(b'"' + n + b'"') if b"\\" in n else n.decode() for n in found["names"]]
            for side in ("input", "output"):
                found[f"{side}_values"].decode()
        except ValueError:
            return False
        parts = self._parts
        for name in ("id", "parent", "rf", "fw_parent", "seq"):
            parts.setdefault(name, []).append(int64s(found[name]))
        rests = [self._known_rest(t) for t in found["rests"]]
        kinds = self._kinds.codes(zip(found["shapes"], found["types"], strict=True))
        for name, table, codes in (
            ("name", self._names.codes(names), "name"),
            ("rest", rests, "rest"),
            ("input_kinds", kinds, "input_kinds"),
            ("output_kinds", kinds, "output_kinds"),
        ):
            parts.setdefault(name, []).append(integers(table)[int32s(found[codes])])
        for side in ("input", "output"):
            self._values[side].append(ByteColumn(found[f"{side}_values"], int64s(found[f"{side}_ends"])))
            parts.setdefault(f"{side}_node", []).append(int64s(found[f"{side}_node"]) + self._count)
            for name in ("tensor", "storage", "elements", "item"):
                parts.setdefault(f"{side}_{name}", []).append(int64s(found[f"{side}_{name}"]))
        self._count += len(found["id"]) // 8
        return True

    def _known_rest(self, text: bytes) -> int:
        code = self._rests.get(text)
        return self._rest_code(text, _named(b"[" + text)) if code is None else code

    def take(self, nodes: list[Any]) -> None:
        """Nodes of the current schema."""
        rf, fw, seq, rest = self._attributes([bytes(n.attrs) for n in nodes])
        self._add(
            id=[n.id for n in nodes],
            parent=[_first(n.parent if n.ctrl_deps is None else n.ctrl_deps) for n in nodes],
            name=self._names.codes([n.name for n in nodes]),
            rf=rf,
            fw_parent=fw,
            seq=seq,
            rest=rest,
        )
        for side, puts in (("input", [n.inputs for n in nodes]), ("output", [n.outputs for n in nodes])):
            values = [b"[]" if p is None else bytes(p.values) for p in puts]
            kinds = [(b"[]", b"[]") if p is None else (bytes(p.shapes), bytes(p.types)) for p in puts]
            self._take_values(side, values, kinds)
        self._count += len(nodes)

    def take_flat(self, nodes: list[Any]) -> None:
        """Nodes of schema 1.0.1."""
        rest = []
        for n in nodes:
            found = {"scope": n.scope, "tid": n.tid, "fw_tid": n.fw_tid, "op_schema": n.op_schema or ""}
            rest.append(self._rest_code(tuple(found.values()), found))
        self._add(
            id=[n.id for n in nodes],
            parent=[_first(n.parent if n.ctrl_deps is None else n.ctrl_deps) for n in nodes],
            name=self._names.codes([n.name for n in nodes]),
            rf=[n.rf_id or 0 for n in nodes],
            fw_parent=[n.fw_parent or 0 for n in nodes],
            seq=[-1 if n.seq_id is None else n.seq_id for n in nodes],
            rest=rest,
        )
        for side in ("input", "output"):
            values = [bytes(getattr(n, side + "s")) for n in nodes]
            kinds = [(bytes(getattr(n, side + "_shapes")), bytes(getattr(n, side + "_types"))) for n in nodes]
            self._take_values(side, values, kinds)
        self._count += len(nodes)

    def _attributes(self, texts: list[bytes]) -> tuple[list[Any], list[Any], list[Any], list[int]]:
        rf, fw, seq, rest = [], [], [], []
        match = _USUAL.match
        codes = self._rests
        for text in texts:
            found = match(text)
            if found is not None:
                a, b, c = found.groups()
                tail = text[found.end() :]
                code = codes.get(tail)
                if code is None:
                    code = self._rest_code(tail, _named(b"[" + tail))
            else:
                attributes = _named(text)
                a, b, c = (attributes.pop(k, d) for k, d in zip(_NUMBERS, (0, 0, -1), strict=True))
                code = self._rest_code(json.dumps(attributes, sort_keys=True), attributes)
            rf.append(integer(a, 0))
            fw.append(integer(b, 0))
            seq.append(integer(c))
            rest.append(code)
        return rf, fw, seq, rest

    def _rest_code(self, key: Any, attributes: dict[str, Any]) -> int:
        code = self._rests[key]
        if code == len(self._decoded):
            self._decoded.append(attributes)
        return code

    def _take_values(self, side: str, values: list[bytes], kinds: list[tuple[bytes, bytes]]) -> None:
        self._values[side].append(ByteColumn.of(values))
        node: list[int] = []
        columns: tuple[list[int], ...] = ([], [], [], [])
        at = self._count
        for tensor, storage, elements, item in _TENSOR.findall(b"\0".join(values)):
            if not tensor:
                at += 1
                continue
            node.append(at)
            for column, text in zip(columns, (tensor, storage, elements, item), strict=True):
                column.append(integer(text))
        self._add(
            **{
                f"{side}_kinds": self._kinds.codes(kinds),
                f"{side}_node": node,
                f"{side}_tensor": columns[0],
                f"{side}_storage": columns[1],
                f"{side}_elements": columns[2],
                f"{side}_item": columns[3],
            }
        )

    def _column(self, name: str) -> Ints:
        parts = self._parts.get(name)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def finish(self, path: Path, head: dict[str, Any], repairs: Repairs) -> ExecutionTrace:
        """Everything in the order of the ids."""
        ids = self._column("id")
        order = np.argsort(ids, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        rest = self._column("rest")[order].astype(np.int32)
        table = {k: np.array([_whole(r.get(k)) for r in self._decoded] or [0], dtype=np.int64) for k in _REST}
        sides = {}
        for side in ("input", "output"):
            node = self._column(f"{side}_node")
            sides[side] = Tensors(
                place[node],
                *(self._column(f"{side}_{c}") for c in ("tensor", "storage", "elements", "item")),
            )
        pid = head.get("pid")
        return ExecutionTrace(
            path=path,
            schema=str(head.get("schema", "")),
            pid=int(pid) if isinstance(pid, int) else None,
            id=ids[order],
            parent=self._column("parent")[order],
            rf=self._column("rf")[order],
            fw_parent=self._column("fw_parent")[order],
            seq=self._column("seq")[order],
            scope=table["scope"][rest],
            tid=table["tid"][rest],
            fw_tid=table["fw_tid"][rest],
            name=self._column("name")[order].astype(np.int32),
            names=list(self._names),
            rest=rest,
            rests=self._decoded,
            input_values=ByteColumn.joined(self._values["input"]).take(order),
            input_kinds=self._column("input_kinds")[order].astype(np.int32),
            output_values=ByteColumn.joined(self._values["output"]).take(order),
            output_kinds=self._column("output_kinds")[order].astype(np.int32),
            kinds=list(self._kinds),
            inputs=sides["input"],
            outputs=sides["output"],
            repairs=repairs,
            duplicate_ids=int(ids.size - distinct(ids).size),
        )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else 0


def _named(text: bytes) -> dict[str, Any]:
    """A list of `{"name", "type", "value"}` as a dictionary."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(listed, list):
        return {}
    named = (a for a in listed if isinstance(a, dict) and isinstance(a.get("name"), str))
    return {a["name"]: a.get("value") for a in named}
