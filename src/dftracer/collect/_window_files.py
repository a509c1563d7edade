"""Processing a window's files after it has ended: repair, join, compression, in a separate process.

It runs at the lowest priority during training and does not hold the trainer's interpreter lock. Only the
standard library is imported.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from typing import IO, Any

from dftracer._torch_names import STRUCTURAL, plain_name
from dftracer._units import plural
from dftracer.collect._et_text import EtText
from dftracer.collect._kineto_text import KinetoText, as_kineto_writes

__all__ = ["finish", "main"]

_LEVEL = 5
# Kinds of events that nodes of an execution trace can be.
_HOST = ("cpu_op", "user_annotation")
_COMM = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d::", "record_param_comms")


def _open_out(path: str, compress: bool) -> IO[str]:
    if compress:
        return gzip.open(path, "wt", compresslevel=_LEVEL, encoding="utf-8", newline="\n")
    return open(path, "w", encoding="utf-8", newline="\n")


def _open_in(path: str) -> IO[str]:
    # A file that torch wrote has \n line ends only; others belong to names.
    return open(path, encoding="utf-8", errors="replace", newline="\n")


def _attribute(node: dict[str, Any], name: str) -> Any:
    for attribute in node.get("attrs", ()):
        if attribute.get("name") == name:
            return attribute.get("value")
    return None


def _finish_et(source: str, target: str, compress: bool, out: dict[str, Any]) -> dict[int, str]:
    names: dict[int, str] = {}
    records = real = 0
    with _open_in(source) as lines, _open_out(target, compress) as file:
        text = EtText(lines)
        nodes = text.nodes()
        first = next(nodes, None)
        head = json.dumps(text.head or {"schema": "unknown"})[:-1]
        file.write(head + ', "nodes": [\n')
        separator = ""
        while first is not None:
            body, node = first
            file.write(separator + body)
            separator = ",\n"
            records += 1
            rf_id = _attribute(node, "rf_id")
            name = str(node.get("name"))
            if STRUCTURAL.fullmatch(name) is None:
                real += 1
                if isinstance(rf_id, int) and rf_id > 0:
                    names.setdefault(rf_id, name)
            first = next(nodes, None)
        finish = text.finish_ts if text.finish_ts is not None else text.head.get("start_ts", 0)
        file.write(f'\n], "finish_ts": {finish}}}\n')
    out["et_pid"] = text.head.get("pid")
    out["et_records"] = records
    out["et_nodes"] = real
    if text.repaired:
        out["notes"].append(
            plural(
                text.repaired,
                "node of the execution trace was not valid JSON and was repaired",
                "nodes of the execution trace were not valid JSON and were repaired",
            )
        )
    if text.dropped:
        out["notes"].append(f"{plural(text.dropped, 'node')} of the execution trace could not be repaired")
    if not text.complete:
        out["notes"].append("the execution trace was cut off; what was written is kept")
    return names


def _finish_kineto(
    source: str, target: str, compress: bool, out: dict[str, Any], names: dict[int, str] | None
) -> None:
    matched = joined = renamed = events = 0
    comm: list[list[Any]] = []
    first_us, last_us = float("inf"), 0.0
    with _open_in(source) as lines, _open_out(target, compress) as file:
        text = KinetoText(lines)
        separator = None
        for text_of_event, event in text.events():
            body = text_of_event
            if separator is None:
                file.write(text.head)
                separator = ""
            name = event.get("name", "")
            args = event.get("args")
            rf_id = args.get("Record function id", 0) if isinstance(args, dict) else 0
            if rf_id and names is not None and rf_id in names and event.get("cat") in _HOST:
                matched += 1
                told = names.pop(rf_id)
                if name != told and name == as_kineto_writes(told):
                    event["name"] = name = told
                    body = json.dumps(event)
                    renamed += 1
                joined += plain_name(name) == plain_name(told)
            if event.get("ph") == "X":
                events += 1
                first_us = min(first_us, event["ts"])
                last_us = max(last_us, event["ts"] + event.get("dur", 0))
                if isinstance(name, str) and name.startswith(_COMM):
                    comm.append([name, event["ts"], event.get("dur", 0), event.get("tid"), event.get("cat")])
            file.write(separator + body)
            separator = ",\n"
        file.write(text.head if separator is None else "\n")
        file.write(text.tail or '], "dftracer": "cut off"}')
    out["kineto_events"] = events
    out["base_ns"] = text.base_ns
    out["comm"] = comm
    if events:
        out["kineto_us"] = [text.base_ns / 1000 + first_us, text.base_ns / 1000 + last_us]
    if names is not None:
        out["matched"], out["joined"] = matched, joined
    if text.repaired:
        out["notes"].append(
            plural(
                text.repaired,
                "event of Kineto's file was not valid JSON and was repaired",
                "events of Kineto's file were not valid JSON and were repaired",
            )
        )
    if renamed:
        changed = plural(renamed, "name that Kineto had changed was", "names that Kineto had changed were")
        out["notes"].append(f"{changed} taken from the execution trace")
    if text.dropped:
        out["notes"].append(f"{plural(text.dropped, 'event')} of Kineto's file could not be repaired")
    if not text.complete:
        out["notes"].append("Kineto's file was cut off; what was written is kept")


def finish(job: dict[str, Any]) -> dict[str, Any]:
    """Make the final files of a window; gives counts, notes and what it cost."""
    began, cpu = time.monotonic(), time.process_time()
    out: dict[str, Any] = {"notes": [], "files": []}
    compress = bool(job["compress"])
    names: dict[int, str] | None = None
    for kind in ("et", "kineto"):
        source, target = job.get(kind), str(job.get(f"{kind}_out"))
        if not source or not os.path.exists(source):
            continue
        part = f"{source}.part"
        try:
            if kind == "et":
                names = _finish_et(source, part, compress, out)
            else:
                _finish_kineto(source, part, compress, out, names)
            os.replace(part, target)
            os.unlink(source)
            out["files"].append(target)
        except Exception as error:
            out["notes"].append(f"{kind}: {type(error).__name__}: {error}; the file torch wrote is kept")
            plain = target.removesuffix(".gz")
            os.replace(source, plain)
            out["files"].append(plain)
    out["seconds"] = time.monotonic() - began
    out["cpu_seconds"] = time.process_time() - cpu
    return out


def main(path: str) -> None:
    """Do the job described in a file and leave the result beside it."""
    os.nice(19)
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    result = finish(job)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(result, file)
    os.replace(path + ".part", path + ".done")


if __name__ == "__main__":
    main(sys.argv[1])
