"""Records as lines of text, spelled as the recorder spells them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "COUNTER",
    "END_RECORD",
    "FILE_KEY",
    "FIRST_LINE",
    "LAST_LINE",
    "RANK_FACT",
    "SAMPLE",
    "START_RECORD",
    "TIME",
    "TRACER",
    "arguments",
    "counter_line",
    "event_line",
    "event_text",
    "metadata_line",
]

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
