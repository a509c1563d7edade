"""Events as Chrome/Perfetto JSON: times from the start of the trace, and lanes on which nothing overlaps.

Viewers draw spans of one lane by nesting and silently hide what crosses. A span that crosses another of
its thread
(asynchronous tasks do) goes to a further lane of that thread.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import IO, Any

import numpy as np

from dftracer.load.chunk import MISSING
from dftracer.load.trace import Trace, scan_file

__all__ = ["assign_lanes", "write_chrome"]

_COLUMNS = ("level", "p_idx", "epoch", "step", "count", "size", "offset", "ret", "errno", "image_idx")


def assign_lanes(tid: Any, ts: Any, dur: Any) -> list[int]:
    """For each span the lane of its thread (0 is the first) on which it nests cleanly."""
    order = np.lexsort((-dur, ts, tid))
    lanes = [0] * len(order)
    open_ends: list[list[int]] = []
    last_tid: int | None = None
    for i in order.tolist():
        t, start, end = int(tid[i]), int(ts[i]), int(ts[i] + dur[i])
        if t != last_tid:
            open_ends, last_tid = [], t
        for number in range(len(open_ends) + 1):
            if number == len(open_ends):
                open_ends.append([])
            stack = open_ends[number]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1]:
                stack.append(end)
                lanes[i] = number
                break
    return lanes


def write_chrome(trace: Trace, path: Path, *, packed: bool) -> int:
    """Write all events, with gzip if they are to be packed; returns how many."""
    base = min((p.start_us for p in trace.processes if p.start_us is not None), default=0)
    opener: Any = gzip.open if packed else open
    written = 0
    with opener(path, "wt", encoding="utf-8", errors="replace") as out:
        out.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        first = True
        for process in trace.processes:
            if trace.filter.wants(process):
                n = _write_process(trace, process, base, out, first)
                first = first and n == 0
                written += n
        out.write(f'],"otherData":{{"base_time_us":{base}}}}}\n')
    return written


def _write_process(trace: Trace, process: Any, base: int, out: IO[str], first: bool) -> int:
    rows: list[dict[str, Any]] = []
    for scanner, chunk in scan_file(process, trace.filter, trace.threads, trace.chunk_text):
        if chunk.rows == 0:
            continue
        names, cats, files = (scanner.dictionary(c) for c in ("name", "cat", "fhash"))
        numbers = {c: chunk.ints(c).tolist() for c in _COLUMNS if chunk.has(c)}
        columns = zip(
            chunk.codes("name").tolist(),
            chunk.codes("cat").tolist(),
            chunk.codes("fhash").tolist(),
            chunk.ph().tolist(),
            chunk.ints("pid").tolist(),
            chunk.ints("tid").tolist(),
            chunk.ints("ts").tolist(),
            chunk.ints("dur").tolist(),
            strict=True,
        )
        for i, (name, cat, file, ph, pid, tid, ts, dur) in enumerate(columns):
            args = {c: v[i] for c, v in numbers.items() if v[i] != MISSING}
            if file >= 0:
                args["path"] = process.path_of(files[file])
            rest = chunk.args_text(i)
            if rest:
                args.update(_object(rest))
            rows.append(
                {
                    "name": names[name],
                    "cat": cats[cat] if cat >= 0 else "",
                    "ph": chr(ph),
                    "pid": pid,
                    "tid": pid if tid == MISSING else tid,
                    "ts": ts - base,
                    "dur": dur,
                    "args": args,
                }
            )
    if not rows:
        return 0
    tid = np.array([r["tid"] for r in rows])
    lanes = assign_lanes(tid, np.array([r["ts"] for r in rows]), np.array([r["dur"] for r in rows]))
    heads = []
    for pid, rank in process.ranks().items():
        who = f"rank {rank} " if rank is not None else ""
        heads.append(_name("process_name", pid, pid, f"{who}pid {pid}"))
    # Viewers join lanes by (pid, tid): further lanes get numbers no thread has.
    extra: dict[tuple[int, int], int] = {}
    for r, lane in zip(rows, lanes, strict=True):
        if lane:
            key = (r["tid"], lane)
            if key not in extra:
                extra[key] = (1 << 40) + len(extra)
                heads.append(_name("thread_name", r["pid"], extra[key], f"{r['tid']} ({lane + 1})"))
            r["tid"] = extra[key]
    for thread, text in process.threads.items():
        heads.append(_name("thread_name", process.pid, thread, text))
    for r in (*heads, *rows):
        out.write(("" if first else ",\n") + json.dumps(r, separators=(",", ":"), ensure_ascii=False))
        first = False
    return len(rows)


def _object(text: str) -> dict[str, Any]:
    """The arguments that no column holds; as text where a foreign writer's are not JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"args": text}
    return value if isinstance(value, dict) else {"args": text}


def _name(kind: str, pid: int, tid: int, text: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}}
