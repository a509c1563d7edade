"""Kineto traces of any torch version, whichever program wrote them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import need
from dftracer.format.torch_files import EVENT_NAME
from dftracer.link._json_stream import ItemReader
from dftracer.link._text import parse_events
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
    Ints,
    integer,
    integers,
)
from dftracer.load.chunk import int32s, int64s

# Spellings of torch 1.8 to 2.13 in lower case with blanks as underscores.
_KINDS = {
    "cpu_op": OP,
    "operator": OP,
    "user_annotation": ANNOTATION,
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    "cuda_sync": SYNC,
    "runtime": RUNTIME,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
}
_RUNTIME_ENDING = ("_runtime", "_driver")
_COLLECTIVE = re.compile(r"nccl|record_param_comms|gloo:|ucc:|mpi:|c10d", re.IGNORECASE)
# Key of the detail, key in the trace.
_DETAILS = {
    "collective_name": "Collective name",
    "dtype": "dtype",
    "in_msg_nelems": "In msg nelems",
    "out_msg_nelems": "Out msg nelems",
    "pg_size": "Group size",
    "pg_name": "Process Group Name",
    "pg_desc": "Process Group Description",
    "pg_ranks": "Process Group Ranks",
    "comm_seq": "Seq",
    "bytes": "bytes",
    "sync_kind": "cuda_sync_kind",
    "wait_on_stream": "wait_on_stream",
    "wait_on_record": "wait_on_cuda_event_record_corr_id",
}
_LATEST_NS = 2.0**62
_ABSOLUTE_NS = 10**17  # older traces count from the epoch, so their times are larger than this


def _event_type() -> Any:
    msgspec = need("msgspec", "link")
    number = int | float | str | None
    anything = msgspec.Raw
    fields: list[Any] = [
        ("rf", number, msgspec.field(default=-1, name="Record function id")),
        ("external", number, msgspec.field(default=-1, name="External id")),
        ("external_old", number, msgspec.field(default=-1, name="external id")),
        ("correlation", number, msgspec.field(default=-1)),
        ("seq", number, msgspec.field(default=-1, name="Sequence number")),
        ("fw_tid", number, msgspec.field(default=-1, name="Fwd thread id")),
        ("device", number, msgspec.field(default=-1)),
        ("stream", number, msgspec.field(default=-1)),
        ("name", anything, msgspec.field(default=anything(b""))),
    ]
    fields += [(k, anything, msgspec.field(default=anything(b""), name=v)) for k, v in _DETAILS.items()]
    args = msgspec.defstruct("Args", fields, gc=False)
    return msgspec.defstruct(
        "Event",
        [
            ("ph", str, ""),
            ("name", str | None, ""),
            ("cat", str | None, ""),
            ("pid", int | float | str | None, -1),
            ("tid", int | float | str | None, -1),
            ("ts", float | str | None, 0.0),
            ("dur", float | str | None, 0.0),
            ("args", args | None, None),
        ],
        gc=False,
    )


def _kind(category: str) -> int:
    name = category.strip().lower().replace(" ", "_")
    known = _KINDS.get(name)
    if known is not None:
        return known
    return RUNTIME if name.endswith(_RUNTIME_ENDING) else -1


def read_kineto(path: Path) -> ActivityTable:
    """Read a file; what is wrong with it is in `repairs`, never an exception."""
    begins = rb'"(?:ph|name|cat|pid|ts)"\s*:'
    reader = ItemReader(path, "traceEvents", begins, _event_type, EVENT_NAME)
    builder = _Builder()
    for text in reader.texts():
        if not builder.take_text(text):
            builder.take(reader.decode(text))
    if not reader.found:
        reader.repairs.notes.append("it has no traceEvents: this is not a profiler trace")
    return builder.finish(path, reader)


class _Builder:
    def __init__(self) -> None:
        self._names = Interner()
        self._parts: dict[str, list[Any]] = {}
        self._details: dict[int, dict[str, Any]] = {}
        self._threads: dict[int, str] = {}
        self._kinds: dict[str | None, int] = {}
        self._count = 0

    def take_text(self, text: bytes) -> bool:
        """Events as torch writes them; False, and nothing read, if anything in the text is unusual."""
        found = parse_events(text)
        if found is None:
            return False
        try:
            names = [json.loads(b'"' + n + b'"') if b"\\" in n else n.decode() for n in found["names"]]
            cats = [_kind(c.decode()) for c in found["cats"]]
        except ValueError:
            return False
        kind = integers([*cats, -1])[int32s(found["cat"])]
        keep = np.flatnonzero(kind >= 0)
        name = integers([*self._names.codes(names), -1])[int32s(found["name"])][keep]
        columns = {c: int64s(found[c])[keep] for c in COLUMNS if c in found}
        columns.update(
            kind=kind[keep], name=name, ts=int64s(found["ts"])[keep], dur=int64s(found["dur"])[keep]
        )
        for column, values in columns.items():
            self._parts.setdefault(column, []).append(values)
        is_collective = np.array([_COLLECTIVE.search(n) is not None for n in self._names], dtype=bool)
        begin, end = int64s(found["args_begin"])[keep], int64s(found["args_end"])[keep]
        wanted = (is_collective[name] | np.isin(kind[keep], (MEMCPY, MEMSET, SYNC))) & (end > begin)
        for row in np.flatnonzero(wanted).tolist():
            self._add_details(row, text[int(begin[row]) : int(end[row])])
        for tid, first, last in zip(
            *(int64s(found[f"thread_{c}"]).tolist() for c in ("tid", "begin", "end")), strict=True
        ):
            args = _object(text[first:last])
            if "name" in args:
                self._threads[tid] = str(args["name"])
        self._count += keep.size
        return True

    def _add_details(self, row: int, text: bytes) -> None:
        args = _object(text)
        found = {k: args[v] for k, v in _DETAILS.items() if v in args}
        if found:
            self._details[self._count + row] = found

    def take(self, events: list[Any]) -> None:
        kept, codes = self._kept(events)
        args = [e.args for e in kept]
        blank = need("msgspec").convert({}, _args_type(events)) if None in args else None
        args = [a if a is not None else blank for a in args]
        columns = {
            "kind": integers(codes),
            "pid": _numbers([e.pid for e in kept]),
            "tid": _numbers([e.tid for e in kept]),
            "ts": _nanoseconds([e.ts for e in kept]),
            "dur": _nanoseconds([e.dur for e in kept]),
            "rf": _numbers([a.rf for a in args]),
            "external": np.maximum(
                _numbers([a.external for a in args]), _numbers([a.external_old for a in args])
            ),
            "correlation": _numbers([a.correlation for a in args]),
            "seq": _numbers([a.seq for a in args]),
            "fw_tid": _numbers([a.fw_tid for a in args]),
            "device": _numbers([a.device for a in args]),
            "stream": _numbers([a.stream for a in args]),
            "name": integers(self._names.codes([e.name or "" for e in kept])),
        }
        for name, values in columns.items():
            self._parts.setdefault(name, []).append(values)
        collective = self._collective_names([e.name or "" for e in kept])
        for row, (kind, a) in enumerate(zip(codes, args, strict=True)):
            if collective[row] or kind in (MEMCPY, MEMSET, SYNC):
                found = {k: _plain(bytes(getattr(a, k))) for k in _DETAILS if bytes(getattr(a, k))}
                if found:
                    self._details[self._count + row] = found
        self._count += len(kept)

    @staticmethod
    def _collective_names(names: list[str]) -> list[bool]:
        """Whether each is the name of a collective; most names are repeated."""
        known = {name: _COLLECTIVE.search(name) is not None for name in set(names)}
        return [known[name] for name in names]

    def _kept(self, events: list[Any]) -> tuple[list[Any], list[int]]:
        """The spans that we use, and the kind of each; thread names are collected along the way."""
        kinds = self._kinds
        kept = []
        codes = []
        for e in events:
            if e.ph == "X":
                kind = kinds.get(e.cat)
                if kind is None:
                    kind = kinds[e.cat] = _kind(e.cat or "")
                if kind >= 0:
                    kept.append(e)
                    codes.append(kind)
            elif e.ph == "M" and e.name == "thread_name" and e.args is not None:
                self._threads[_number(e.tid)] = bytes(e.args.name).decode("utf-8", "replace").strip('"')
        return kept, codes

    def _column(self, name: str) -> Any:
        parts = self._parts.get(name)
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def finish(self, path: Path, reader: ItemReader) -> ActivityTable:
        head = reader.head
        base = integer(head.get("baseTimeNanoseconds") or 0, 0)
        ts = self._column("ts")
        absolute = ts.size and int(ts.max()) > _ABSOLUTE_NS
        start = ts + (0 if absolute else base)
        dur = np.maximum(self._column("dur"), 0)
        rf = self._column("rf")
        # Among equal spans, the one recorded first is the outer one.
        order = np.lexsort((np.where(rf > 0, rf, np.iinfo(np.int64).max), -dur, start))
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        columns: dict[str, Ints] = {}
        for name in COLUMNS:
            if name not in ("start", "dur"):
                columns[name] = self._column(name).astype(np.int64)[order]
        columns["start"], columns["dur"] = start[order], dur[order]
        # Traces of older versions name the stream only in the lane.
        lane = np.isin(columns["kind"], (KERNEL, MEMCPY, MEMSET))
        columns["stream"] = np.where(lane & (columns["stream"] < 0), columns["tid"], columns["stream"])
        columns["device"] = np.where(lane & (columns["device"] < 0), columns["pid"], columns["device"])
        host = np.isin(columns["kind"], (OP, ANNOTATION))
        common = Counter(columns["pid"][host].tolist()).most_common(1)
        group = head.get("distributedInfo")
        group = group if isinstance(group, dict) else {}
        return ActivityTable(
            path=path,
            source="kineto",
            **columns,
            name=self._column("name").astype(np.int32)[order],
            names=list(self._names),
            details={int(place[row]): found for row, found in self._details.items()},
            main_pid=common[0][0] if common else None,
            rank=_optional(group.get("rank")),
            world_size=_optional(group.get("world_size")),
            groups=[g for g in _list(group.get("pg_config")) if isinstance(g, dict)],
            host=str(head.get("host_name") or ""),
            threads=self._threads,
            writes_ids=bool((columns["rf"] >= 0).any()),
            repairs=reader.repairs,
        )


def _args_type(events: list[Any]) -> Any:
    for e in events:
        if e.args is not None:
            return type(e.args)
    return need("msgspec").structs.fields(type(events[0]))[-1].type.__args__[0]


def _plain(text: bytes) -> Any:
    value = text.decode("utf-8", "replace")
    if value[:1] == '"':
        return value[1:-1]
    try:
        return int(value)
    except ValueError:
        return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _optional(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    digits = re.search(r"-?\d+", str(value))
    return integer(digits.group()) if digits else -1


def _numbers(values: list[Any]) -> Ints:
    try:
        # A float or a string in the column would be accepted silently; it should be a list of ints.
        column = np.array(values)
        if column.dtype.kind == "i":
            whole: Ints = column.astype(np.int64)
            return whole
    except (OverflowError, ValueError):
        pass
    numbers = [_number(v) for v in values]
    return integers(numbers)


def _nanoseconds(values: list[Any]) -> Ints:
    """Microseconds with a fraction as whole nanoseconds."""
    try:
        micros = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        micros = np.array([_float(v) for v in values], dtype=np.float64)
    # An invalid time becomes the beginning; an impossible one is clamped.
    nanos = np.clip(np.nan_to_num(np.rint(micros * 1000.0)), -_LATEST_NS, _LATEST_NS)
    whole: Ints = nanos.astype(np.int64)
    return whole


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
