"""Collective operations of a rank: type, bytes, group and arrival time, whatever the backend."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.format.reader import parse_line, split_lines
from dftracer.link._json_stream import Repairs, read_blocks
from dftracer.link.columns import KERNEL, ActivityTable, Ints, integer
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import Graph

# Chakra's numbers.
COLLECTIVE_TYPES = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "reduce_scatter_block": 8,
    "barrier": 9,
}
SEND, RECV, BARRIER = "send", "recv", "barrier"
# The longer spelling first: `reduce` is part of others.
_SPELLINGS = (
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
    (RECV, re.compile(r"recv|receive", re.IGNORECASE)),
    (SEND, re.compile(r"send", re.IGNORECASE)),
)
_CALL = re.compile(r"(?:_?c10d(?:_functional)?|_c10d_functional)::(?!wait_tensor|_wrap)\w+")
_BACKEND = re.compile(r"(nccl|gloo|ucc|mpi|xccl|hccl):\w+")
# gloo reduces the part of each rank by itself, for all of them.
_CARRIED_OUT_FOR = {"all_reduce": ("reduce_scatter",)}
_PARAMS = "record_param_comms"
_DEVICE_WORK = re.compile(r"nccl|rccl|xccl|hccl", re.IGNORECASE)
# Calls that name their result first.
_RESULT_FIRST = re.compile(r"gather|scatter|alltoall|all_to_all", re.IGNORECASE)
_ITEM_BYTES = {
    "double": 8, "float64": 8, "long": 8, "longint": 8, "int64": 8, "complexfloat": 8, "uint64": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "uint16": 2,
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1, "complexdouble": 16,
}  # fmt: skip


@dataclass
class Collective:
    """One rank's view of a collective; rows refer to the rank's graph, times are in ns on its clock."""

    type: str
    row: int  # the call
    carriers: list[int]  # what moved the data: a kernel, records of the backend's threads, otherwise the call
    start: int  # when the rank arrived
    end: int
    timed: bool
    bytes: int | None = None
    dtype: str = ""
    group: str = ""
    size: int | None = None
    ranks: list[int] = field(default_factory=list)
    seq: int | None = None  # the group's own count, if the backend provides it
    number: int = -1  # its place among the group's collectives in the window
    asynchronous: bool | None = None
    peer: int | None = None  # of a message: the rank at the other end
    tag: int = 0


def collective_type(name: str) -> str | None:
    """The type of collective behind one of the many spellings of a name."""
    for kind, spelling in _SPELLINGS:
        if spelling.search(name):
            return kind
    return None


def find_collectives(
    graph: Graph, et: ExecutionTrace, activity: ActivityTable
) -> tuple[list[Collective], tuple[Ints, Ints]]:
    """The collectives in the order of their calls, and the pairs (call, work on another thread)."""
    wanted = np.array(
        [bool(_CALL.fullmatch(n) or _BACKEND.fullmatch(n) or n == _PARAMS) for n in graph.names], dtype=bool
    )
    none = np.zeros(0, dtype=np.int64)
    if not wanted.any():
        return [], (none, none)
    rows = np.flatnonzero(wanted[graph.name] & ~graph.on_device)
    rows = rows[np.argsort(graph.place[rows], kind="stable")]
    top = _tops(graph, rows)
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(top[row], []).append(row)
    work = _device_work(graph, top)
    calls: list[Collective] = []
    waiting: dict[str, list[Collective]] = {}
    pairs: list[tuple[int, int]] = []
    for head, members in groups.items():
        names = [graph.names[graph.name[m]] for m in members]
        kind = _type_of(graph, et, activity, members, names)
        if kind is None:
            continue
        if _BACKEND.fullmatch(names[0]) and (call := _requested(waiting, kind)) is not None:
            # A backend thread does what another thread has requested.
            call.carriers = [head] if call.carriers == [call.row] else [*call.carriers, head]
            if len(call.carriers) == _parts(call, kind, graph, et, activity):
                waiting[call.type].remove(call)
            call.end = max(call.end, _end(graph, head))
            pairs.append((call.row, head))
            continue
        call = _describe(graph, et, activity, head, members, names, kind, work.get(head, []))
        calls.append(call)
        backend = any(_BACKEND.fullmatch(n) or n == _PARAMS for n in names)
        if not backend and not work.get(head):
            waiting.setdefault(kind, []).append(call)
    _name_groups(calls, activity)
    issued = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return calls, (issued[:, 0], issued[:, 1])


def _requested(waiting: dict[str, list[Collective]], kind: str) -> Collective | None:
    """The call that a backend's record of this kind carries out: the first that waits for one."""
    first = [calls[0] for calls in map(waiting.get, (kind, *_CARRIED_OUT_FOR.get(kind, ()))) if calls]
    return min(first, key=lambda call: call.start, default=None)


def _parts(call: Collective, kind: str, graph: Graph, et: ExecutionTrace, activity: ActivityTable) -> int:
    """How many records of this kind carry the call out."""
    if kind == call.type:
        return 1
    sizes = [_number(group.get("pg_size")) or 1 for group in activity.groups]
    return max(len(sizes) == 1 and sizes[0], call.size or 1, len(_sent(graph, et, call.row)[0]))


def _end(graph: Graph, row: int) -> int:
    return int(graph.start[row]) + int(graph.dur[row])


def _tops(graph: Graph, rows: Ints) -> dict[int, int]:
    """For each row the outermost of the rows that contain it."""
    inside = set(rows.tolist())
    top: dict[int, int] = {}
    for row in rows.tolist():
        up, found = int(graph.parent[row]), row
        while up >= 0:
            if up in inside:
                found = top.get(up, up)
                break
            up = int(graph.parent[up])
        top[row] = found
    return top


def _device_work(graph: Graph, top: dict[int, int]) -> dict[int, list[int]]:
    """The communication kernels launched below each call."""
    named = np.array([_DEVICE_WORK.search(n) is not None for n in graph.names], dtype=bool)
    found: dict[int, list[int]] = {}
    for row in np.flatnonzero(graph.on_device & (graph.kind == KERNEL) & named[graph.name]).tolist():
        up = int(graph.parent[row])
        while up >= 0 and up not in top:
            up = int(graph.parent[up])
        if up >= 0:
            found.setdefault(top[up], []).append(row)
    return found


def _facts(graph: Graph, et: ExecutionTrace, activity: ActivityTable, row: int) -> dict[str, Any]:
    """The facts from a backend record, in the profiler's trace or in the execution trace."""
    known = dict(activity.details.get(int(graph.activity[row]), {}))
    at = int(graph.et[row])
    if at >= 0:
        known.update({k: v for k, v in et.rests[et.rest[at]].items() if v not in ("", None)})
    return known


def _type_of(
    graph: Graph, et: ExecutionTrace, activity: ActivityTable, members: list[int], names: list[str]
) -> str | None:
    for row, name in zip(members, names, strict=True):
        spelling = _facts(graph, et, activity, row).get("collective_name") if name == _PARAMS else name
        kind = collective_type(str(spelling)) if spelling else None
        if kind is not None:
            return kind
    return None


def _describe(
    graph: Graph,
    et: ExecutionTrace,
    activity: ActivityTable,
    head: int,
    members: list[int],
    names: list[str],
    kind: str,
    kernels: list[int],
) -> Collective:
    params = next((m for m, n in zip(members, names, strict=True) if n == _PARAMS), None)
    backend = next((m for m, n in zip(members, names, strict=True) if _BACKEND.fullmatch(n)), None)
    carrier = kernels[0] if kernels else head if params is None else params
    if not kernels and params is None and backend is not None:
        carrier = backend
    end = _end(graph, head)
    for kernel in kernels:
        end = max(end, _end(graph, kernel))
    out = Collective(kind, head, [carrier], int(graph.start[head]), end, bool(graph.activity[head] >= 0))
    facts: dict[str, Any] = {}
    for row in [*members, *kernels]:
        facts = {**_facts(graph, et, activity, row), **facts}
    out.dtype = str(facts.get("dtype") or "")
    elements = facts.get("in_msg_nelems")
    if isinstance(elements, int):
        out.bytes = elements * _ITEM_BYTES.get(out.dtype.replace(" ", "").lower(), 1)
    out.group = str(facts.get("pg_name") or "")
    out.size = _number(facts.get("pg_size"))
    out.ranks = _rank_list(facts)
    out.seq = _number(facts.get("comm_seq"))
    if params is not None and out.seq is None:
        out.seq = _sequence(et, int(graph.et[params]))
    if out.bytes is None:
        _from_tensors(out, graph, et, head)
    return out


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _rank_list(facts: dict[str, Any]) -> list[int]:
    text = facts.get("pg_ranks")
    if isinstance(text, str) and text.startswith("[") and "..." not in text:
        return [int(x) for x in re.findall(r"\d+", text)]
    first, step, size = (
        _number(facts.get(k)) for k in ("global_rank_start", "global_rank_stride", "pg_size")
    )
    if first is not None and step is not None and size and (step > 0 or size == 1):
        return [first + step * i for i in range(size)]
    return []


def _sequence(et: ExecutionTrace, at: int) -> int | None:
    """`record_param_comms` takes a pair of the group's count and whether it is point to point."""
    if at < 0:
        return None
    try:
        values = json.loads(et.input_values[at])
    except ValueError:
        return None
    for value in values[1:2]:
        if isinstance(value, list) and len(value) == 2 and isinstance(value[1], bool):
            return _number(value[0])
    return None


def _from_tensors(out: Collective, graph: Graph, et: ExecutionTrace, row: int) -> None:
    """Bytes and type from the tensors that a call takes."""
    tensors, kind = _sent(graph, et, row)
    if kind is None:
        return
    out.bytes = sum(t[3] * t[4] for t in tensors)
    named = re.search(r"Tensor\((.*?)\)", kind)
    out.dtype = out.dtype or (named.group(1) if named else "")


def _sent(graph: Graph, et: ExecutionTrace, row: int) -> tuple[list[list[int]], str | None]:
    """The tensors that a call takes, and how their kind is spelled; None where that is not known."""
    at = int(graph.et[row])
    if at < 0:
        return [], None
    try:
        values = json.loads(et.input_values[at])
        types = json.loads(et.kinds[et.input_kinds[at]][1])
    except ValueError:
        return [], None
    sent = 1 if _RESULT_FIRST.search(graph.names[graph.name[row]]) and len(values) > 1 else 0
    tensors = _tensors(values[sent]) if len(values) > sent else []
    if not tensors:
        tensors = [t for v in values[:2] for t in _tensors(v)]
    return tensors, str(types[sent]) if len(types) > sent else ""


def _tensors(value: Any) -> list[list[int]]:
    if isinstance(value, list):
        if len(value) == 6 and isinstance(value[5], str) and all(isinstance(x, int) for x in value[:5]):
            return [value]
        return [t for v in value for t in _tensors(v)]
    return []


def _name_groups(calls: list[Collective], activity: ActivityTable) -> None:
    """Ranks and sizes of the groups the profiler lists; a call without a group name uses the only one."""
    listed = {str(g.get("pg_name", "")): g for g in activity.groups}
    only = next(iter(listed)) if len(listed) == 1 else ""
    for call in calls:
        call.group = call.group or only
        group = listed.get(call.group)
        if group is not None:
            ranks = group.get("ranks")
            if isinstance(ranks, list) and not call.ranks:
                call.ranks = [r for r in ranks if isinstance(r, int)]
            if call.size is None:
                call.size = _number(group.get("pg_size"))
        if call.size is None and call.ranks:
            call.size = len(call.ranks)


# --- Records of `dftracer collect`: they have group and count where torch's own traces do not

_LATEST_US = 1 << 53
_SAME_NS = 5_000_000  # between a record and the call it describes


def read_records(paths: Sequence[Path], warnings: list[str]) -> list[dict[str, Any]]:
    """All records of the files; a truncated end is reported."""
    out: list[dict[str, Any]] = []
    for path in paths:
        repairs = Repairs()
        bad = 0

        def too_long() -> None:
            nonlocal bad
            bad += 1

        try:
            for line, _ in split_lines(read_blocks(path, repairs), too_long):
                if not line.strip():
                    continue
                try:
                    record = parse_line(line.strip())
                except ValueError:
                    bad += 1
                    continue
                if isinstance(record, dict) and _is_time(record.get("start_us")):
                    out.append(record)
        except OSError as e:
            warnings.append(f"{path.name}: {e.strerror or e}")
        if bad:
            warnings.append(f"{path.name}: {bad} {'line is' if bad == 1 else 'lines are'} not a record")
        warnings += [f"{path.name}: {text}" for text in repairs.sentences()]
    return out


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _LATEST_US


def apply_records(calls: list[Collective], records: list[dict[str, Any]]) -> None:
    """Give each call the facts from the nearest record of its type; no record is used twice."""
    by_type: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda r: float(r["start_us"])):
        by_type.setdefault(str(record.get("type")), []).append(record)
    starts = {k: [int(float(r["start_us"]) * 1000) for r in v] for k, v in by_type.items()}
    used: set[int] = set()
    for call in calls:
        times = starts.get(call.type)
        if not times or not call.timed:
            continue
        at = bisect.bisect(times, call.start)
        near = [i for i in (at - 2, at - 1, at, at + 1) if 0 <= i < len(times)]
        near = [
            i for i in near if id(by_type[call.type][i]) not in used and abs(times[i] - call.start) < _SAME_NS
        ]
        if not near:
            continue
        record = by_type[call.type][min(near, key=lambda i: abs(times[i] - call.start))]
        used.add(id(record))
        _apply(call, record)


def _apply(call: Collective, record: dict[str, Any]) -> None:
    call.group = str(record.get("group") or call.group)
    ranks = record.get("ranks")
    if isinstance(ranks, list) and ranks:
        call.ranks = [integer(r) for r in ranks]
        call.size = len(call.ranks)
    if call.seq is None:
        call.seq = _whole(record.get("seq"))
    if call.bytes is None:
        call.bytes = _whole(record.get("bytes"))
    call.dtype = call.dtype or str(record.get("dtype") or "")
    peer = record.get("dst" if call.type == SEND else "src")
    if call.type in (SEND, RECV) and isinstance(peer, int):
        call.peer = peer
        call.tag = record["tag"] if isinstance(record.get("tag"), int) else 0
    if isinstance(record.get("async"), bool):
        call.asynchronous = record["async"]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None
