"""The records of a trace: the single description shared by the documentation and every reader."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

# --- Their keys, and what these mean


class Field(NamedTuple):
    """A key of a record itself."""

    name: str
    type: str
    records: str  # the phases it occurs in
    doc: str


class Arg(NamedTuple):
    """A key of `args` with a fixed meaning; all other keys are the user's."""

    name: str
    type: str  # "int", "bool" or "hash"
    where: str
    doc: str


class MetadataKind(NamedTuple):
    """A `name` of a record of phase M."""

    name: str
    args_name: str
    args_value: str


FIELDS: tuple[Field, ...] = (
    Field(
        "id",
        "int",
        "X M C A",
        "number of the record within its process, from 1; without gaps, except on a free-threaded Python."
        " Intercepted calls get theirs when they are written, other records when they begin",
    ),
    Field("name", "str", "X M C A", "name of the event, kind of the metadata, name of the counter"),
    Field("cat", "str", "X M C A", "category; `dftracer` on the tracer's own records"),
    Field("pid", "int", "X M C A", "process id"),
    Field("tid", "int", "X M C A", "thread id of the operating system"),
    Field("ts", "int", "X C A", "start, in us since the epoch"),
    Field("dur", "int", "X", "duration in us"),
    Field("ph", "str", "X M C A", "phase: `X` event, `M` metadata, `C` counter, `A` aggregated events"),
    Field("args", "object", "X M C A", "the tracer's own arguments (below) and the user's"),
)

ARGS: tuple[Arg, ...] = (
    Arg("hhash", "hash", "all records", "host, named by the `HH` record"),
    Arg("p_idx", "int", "X", "`id` of the enclosing open event of the same thread or task, -1 without one"),
    Arg("level", "int", "X", "nesting depth, 1 at the top"),
    Arg(
        "count",
        "int",
        "`*.iter`, `*.block`, I/O",
        "number of the iteration (written as a string), or bytes requested",
    ),
    Arg("dft_cnt", "int", "A", "events that the record stands for"),
    Arg("interval_us", "int", "A", "the interval that begins at `ts`, if it is not a second"),
    Arg("fhash", "hash", "I/O", "file, named by an `FH` record"),
    Arg("cwd", "hash", "`start`", "working directory, named by an `FH` record"),
    Arg("cmd_hash", "hash", "`start`", "command line, named by an `SH` record"),
    Arg("exec_hash", "hash", "`start`", "executable, named by an `SH` record"),
    Arg("ppid", "int", "`start`", "parent process"),
    Arg("process_start_us", "int", "`start`", "when the process began, in us since the epoch"),
    Arg("num_events", "int", "`end`", "records written"),
    Arg("dropped", "int", "`end`", "events that could not be kept; `dropped_*` give the counts by reason"),
    Arg("aggregated", "int", "`end`", "events that were summed up instead of written one by one"),
    Arg(
        "values_cut",
        "int",
        "`end`",
        "argument values cut off with `...`: the args of an event are limited to 4 MiB",
    ),
    Arg("bytes", "int", "`end`", "size of the trace file before this record, over all parts"),
    Arg("members", "int", "`end`", "number of writes"),
    Arg("writer_cpu_us", "int", "`end`", "CPU time of the writer thread"),
    Arg("event_cost_ns", "int", "`end`", "what recording one event costs its thread, measured in place"),
    Arg("overhead_us", "int", "`end`", "that cost times the number of events"),
    Arg("clock_start_ns", "int", "`end`", "first anchor of the trace's clock, ns since the epoch"),
    Arg("clock_end_ns", "int", "`end`", "the trace's clock at the end, ns since the epoch"),
    Arg("clock_drift_ns", "int", "`end`", "wall clock minus the trace's clock at the end"),
    Arg("exit_code", "int", "`end`", "exit status of the process, if the trace ended with it"),
    Arg("recovered", "bool", "`end`", "written by a reader after the process had died"),
    Arg("life_us", "int", "`end`", "age of the process"),
    Arg("cpu_us", "int", "`end`", "CPU time of the process, of all its threads"),
    Arg("main_ran_us", "int", "`end`", "CPU time of its first thread"),
    Arg("main_waited_us", "int", "`end`", "how long its first thread was ready to run but had no CPU"),
    Arg("switched_out", "int", "`end`", "involuntary context switches"),
    Arg("rss_peak", "int", "`end`", "largest resident memory in bytes"),
    Arg("major_faults", "int", "`end`", "page faults that had to wait for a disk"),
    Arg("read_bytes", "int", "`end`", "bytes read from storage, not from the page cache"),
    Arg("write_bytes", "int", "`end`", "bytes written to storage"),
    Arg("counters_missing", "str", "`end`", "sources of [counters](#counters) that could not be read"),
    Arg("part", "int", "`end`", "number of the file in a rotated trace"),
    Arg("continues", "int", "`end`", "1: the end of this part, not of the process"),
)

METADATA: tuple[MetadataKind, ...] = (
    MetadataKind("HH", "host name", "its hash; other arguments name the run (see Runs)"),
    MetadataKind("FH", "path", "its hash"),
    MetadataKind("SH", "string (command line, executable)", "its hash"),
    MetadataKind("CM", "the user's key", "value"),
    MetadataKind("PR", "fact about the process (rank, affinity, the exception that ended it)", "value"),
    MetadataKind("run", "`run`", "id of the run, in traces of earlier versions"),
    MetadataKind("thread_name", "name of the thread", "`thread_name`"),
    MetadataKind("process_name", "name of the process", "`process_name`"),
)

# `ph` as DFTracer 1.x and we spell it, and as the integers of 2.x.
PHASES: dict[object, str] = {"X": "X", "M": "M", "C": "C", "A": "A", 1: "X", 2: "C", 3: "A", 4: "M"}

TIME_LIMIT = 1 << 53  # in us: a later time is damage, and sums of such times would not fit into 64 bits
MAX_RANKS = 1 << 20  # no job has more; a larger number is damage

INTEGER_FIELDS = tuple(field.name for field in FIELDS if field.type == "int")
HASH_ARGS = frozenset(arg.name for arg in ARGS if arg.type == "hash")
RESERVED_ARGS = frozenset({"hhash", "p_idx", "level"})
HASH_RECORDS = frozenset({"HH", "FH", "SH"})

# Arguments that the 2023 dialect writes as strings.
INTEGER_ARGS = frozenset({arg.name for arg in ARGS if arg.type == "int"}) | {
    "epoch",
    "step",
    "image_idx",
    "image_size",
    "size",
    "ret",
    "offset",
    "flags",
    "mode",
    "whence",
    "fd",
}

# DFTracer 2.x may write other units than us and says so in a `CM` record `time_metric`: (multiply, divide).
TIME_UNITS: dict[str, tuple[int, int]] = {
    "NS": (1, 1000),
    "US": (1, 1),
    "MS": (1000, 1),
    "SEC": (1_000_000, 1),
    "S": (1_000_000, 1),
}


AGGREGATION_INTERVAL_US = 1_000_000  # unless the record or the `end` of its process says otherwise


def interval_us(record: Mapping[str, Any]) -> int | None:
    """The time that an aggregated record stands for, from its `ts` on.

    None: another tracer's record; what its process was set to is in the `end` record.
    """
    args = record.get("args")
    if not isinstance(args, dict):
        return None
    interval = args.get("interval_us")
    if type(interval) is int and interval > 0:
        return interval
    return AGGREGATION_INTERVAL_US if "dur_hist" in args else None


def is_metadata(record: Mapping[str, Any]) -> bool:
    """Whether it says something of the process rather than what happened in it."""
    return record.get("ph") in ("M", 4)


def is_own_event(record: Mapping[str, Any]) -> bool:
    """Whether it is the `start` or the `end` of the tracer itself."""
    return record.get("cat") == "dftracer" and record.get("name") in ("start", "end")


# --- Lanes: the `tid` of what no thread of the program does

_STREAMS = 1 << 24  # from here on, above every thread id of Linux (2**22); native/module/profiler_table.cpp
COLLECTIVES_LANE = 1 << 30  # those issued below Python; the phases of devices come after it


def stream_lane(device: Any, stream: Any) -> Any:
    """The lane of a device's stream; also of arrays of them."""
    return (device + 1) * _STREAMS + (stream & (_STREAMS - 1))


def stream_of(lane: int) -> tuple[int, int]:
    """The device and the stream of such a lane."""
    return lane // _STREAMS - 1, lane & (_STREAMS - 1)


def phases_lane(device: int) -> int:
    """The lane of a device's time in each phase of training."""
    return COLLECTIVES_LANE + 1 + device


# --- Hashes that stand for hosts, paths and strings


def string_hash(text: str) -> str:
    """Hash a string the way traces do: every second byte of its MD5."""
    data = text.encode("utf-8", "surrogateescape")
    return hashlib.md5(data, usedforsecurity=False).digest()[::2].hex()


def as_hash(value: Any) -> str:
    """Integers of DFTracer 1.0.5-1.0.8 become 16 hex digits; a raw string of the 2023 dialect stays."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) not in (0, 16):
        value = int(value) if len(value) <= 20 else value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value & 0xFFFF_FFFF_FFFF_FFFF:016x}"
    return value if isinstance(value, str) else str(value)


# --- Records as lines of text, spelled as the recorder spells them


FIRST_LINE = "[\n"
LAST_LINE = "]\n"
TRACER = "dftracer"  # the category of the tracer's own records
COUNTER = "counter"  # the category of its samples of the machine
# What tells without parsing a line: a quote inside of a string would be escaped.
TIME = b',"ts":'
END_RECORD = b'"name":"end","cat":"dftracer"'
START_RECORD = b'"name":"start","cat":"dftracer"'
RANK_FACT = b'"name":"rank","value":'
SAMPLE = b'"ph":"C"'
FILE_KEY = '"fhash":'


def event_line(
    ident: int, name: str, cat: str, pid: int, tid: int, ts: int, dur: int, args: Mapping[str, Any]
) -> str:
    """A complete event."""
    head = {"id": ident, "name": name, "cat": cat, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return _dump({**head, "ph": "X", "args": args})


def counter_line(ident: int, name: str, pid: int, ts: int, values: Mapping[str, float]) -> str:
    """A sample of the machine."""
    head = {"id": ident, "name": name, "cat": COUNTER, "pid": pid, "tid": pid, "ts": ts}
    return _dump({**head, "ph": "C", "args": values})


def arguments(hhash: str, above: int, args: Mapping[str, Any], level: int) -> dict[str, Any]:
    """All arguments of an event: the tracer's around the user's."""
    return {"hhash": hhash, "p_idx": above, **args, "level": level}


def metadata_line(
    ident: int, kind: str, pid: int, hhash: str, key: str, value: str, more: Mapping[str, Any]
) -> str:
    """A metadata record."""
    args = {"hhash": hhash, "name": key, "value": value, **more}
    head = {"id": ident, "name": kind, "cat": TRACER, "pid": pid, "tid": pid}
    return _dump({**head, "ph": "M", "args": args})


def event_text(
    ident: int,
    name: str,
    cat: str,
    pid: int,
    ts: int,
    dur: int,
    hhash: str,
    above: int,
    args: str,
    level: int,
) -> str:
    """A complete event of a process's main thread whose arguments, one at least, are text already.

    For lines by the million, which `event_line` would take long to write.
    """
    return (
        f'{{"id":{ident},"name":"{name}","cat":"{cat}","pid":{pid},"tid":{pid},"ts":{ts},"dur":{dur},'
        f'"ph":"X","args":{{"hhash":"{hhash}","p_idx":{above},{args},"level":{level}}}}}\n'
    )


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
