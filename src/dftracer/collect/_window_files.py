"""The files of a window: what torch leaves is repaired, compared and compressed, beside the loop.

The process that does so needs neither torch nor the recorder.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from dftracer._text import plural
from dftracer.format.torch_files import EVENT_NAME, NODE_NAME, STRUCTURAL, plain_name, repaired_item

# --- The text of an execution trace
#
# The execution trace as torch writes it, node by node, with invalid JSON repaired. Its layout is fixed,
# so that a node is found by its first and last line.


_NODE_BEGIN, _NODE_END = "      {", ("      }", "      },")
_ARRAY_END = "  ],"


class EtText:
    """The header, then each node as (text that is JSON, the node), read from lines; counts repairs."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.head: dict[str, Any] = {}
        self.finish_ts: int | None = None
        self.repaired = 0
        self.dropped = 0
        self.complete = False

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every node, in the order of the file."""
        self._read_head()
        node: list[str] | None = None
        for line in self._lines:
            text = line.rstrip("\n")
            if node is None:
                if text == _NODE_BEGIN:
                    node = []
                elif text.startswith(_ARRAY_END):
                    self._read_tail()
                    return
            elif text in _NODE_END:
                found = self._node(node)
                node = None
                if found is not None:
                    yield found
            else:
                node.append(text)

    def _read_head(self) -> None:
        head: list[str] = []
        for line in self._lines:
            if line.strip() == '"nodes": [':
                break
            head.append(line)
        try:
            self.head = json.loads("".join(head).rstrip().rstrip(",") + "}")
        except ValueError:
            self.head = {}

    def _read_tail(self) -> None:
        tail = "".join(self._lines)
        found = re.search(r'"finish_ts": (\d+)', tail)
        self.finish_ts = int(found.group(1)) if found else None
        self.complete = found is not None

    def _node(self, lines: list[str]) -> tuple[str, dict[str, Any]] | None:
        text = "{" + "\n".join(lines) + "}"
        try:
            node: dict[str, Any] = json.loads(text)
            return text, node
        except ValueError:
            pass
        repaired = repaired_item(text, NODE_NAME, as_observed=True)
        if repaired is None:
            self.dropped += 1
            return None
        self.repaired += 1
        return json.dumps(repaired), repaired


# --- The text of Kineto's trace
#
# Kineto's file event by event, so that a large one is never in memory as a whole.


_EVENT_BEGIN, _EVENT_END = "  {", ("  }", "  },")
_BASE = re.compile(r'"baseTimeNanoseconds": (\d+)')


def as_kineto_writes(name: str) -> str:
    """What becomes of a name in Kineto's file: no newlines, no backslashes, nothing but ASCII."""
    flat = name.replace("\n", "").replace("\\", "/")
    return flat if flat.isascii() and flat.isprintable() else "unknown"


class KinetoText:
    """The text before the events, each event as (text, object), and the text after them."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.head = ""
        self.tail = ""
        self.base_ns = 0
        self.repaired = 0
        self.dropped = 0
        self.complete = False

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every event, in the order of the file; one that is not valid JSON is skipped and counted."""
        self._read_head()
        event: list[str] | None = None
        for line in self._lines:
            text = line.rstrip("\n")
            if event is None:
                if text == _EVENT_BEGIN:
                    event = []
                elif text.startswith("  ]"):
                    self.tail = text + "".join(self._lines)
                    self.complete = True
                    return
            elif text in _EVENT_END:
                found = self._event(event)
                event = None
                if found is not None:
                    yield found
            else:
                event.append(text)

    def _event(self, lines: list[str]) -> tuple[str, dict[str, Any]] | None:
        whole = "{" + "\n".join(lines) + "}"
        try:
            return whole, json.loads(whole)
        except ValueError:
            pass
        event = repaired_item(whole, EVENT_NAME)
        if event is None:
            self.dropped += 1
            return None
        self.repaired += 1
        return json.dumps(event), event

    def _read_head(self) -> None:
        head: list[str] = []
        for line in self._lines:
            head.append(line)
            if line.strip().endswith('"traceEvents": ['):
                break
        self.head = "".join(head)
        found = _BASE.search(self.head)
        self.base_ns = int(found.group(1)) if found else 0


# --- Finishing a pair of files
#
# Processing a window's files after it has ended: repair, join, compression, in a separate process.
# It runs at the lowest priority during training and does not hold the trainer's interpreter lock.
# Only the standard library is imported.


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
                full_name = names.pop(rf_id)
                if name != full_name and name == as_kineto_writes(full_name):
                    event["name"] = name = full_name
                    body = json.dumps(event)
                    renamed += 1
                joined += plain_name(name) == plain_name(full_name)
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
    """Make the final files of a window; returns counts, notes and what it cost."""
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


# --- The process beside the loop
#
# Starts the finishing of windows beside the training and gathers the results.


_RUN = (
    "import sys; sys.path.insert(0, sys.argv[1]);"
    " from dftracer.collect._window_files import main; main(sys.argv[2])"
)
_LIMIT_S = 600

_Job = tuple["subprocess.Popen[bytes] | None", str, Callable[[dict[str, Any]], None]]


class Finisher:
    """One job per window; without a child process the work is done where it is asked for."""

    def __init__(self, process: bool) -> None:
        self._process = process
        self._running: list[_Job] = []

    @property
    def pending(self) -> bool:
        """Whether a result is still to come."""
        return bool(self._running)

    def submit(self, job: dict[str, Any], job_path: str, done: Callable[[dict[str, Any]], None]) -> None:
        """Begin; `done` is called with the result by `collect_done`."""
        with open(job_path, "w", encoding="utf-8") as file:
            json.dump(job, file)
        child: subprocess.Popen[bytes] | None = None
        if self._process:
            with contextlib.suppress(OSError, ValueError):  # without a child the work is done here
                child = self._start(job_path)
        self._running.append((child, job_path, done))

    def _start(self, job_path: str) -> subprocess.Popen[bytes]:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        # Not traced, not preloaded, and not stopped by a Ctrl-C meant for the training.
        env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_") and k != "LD_PRELOAD"}
        env["DFTRACER_ENABLE"] = "0"
        return subprocess.Popen(
            [sys.executable, "-S", "-E", "-s", "-c", _RUN, root, job_path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )

    def collect_done(self, wait: bool = False) -> None:
        """Hand over the results that are there; with `wait`, all of them."""
        remaining: list[_Job] = []
        for child, path, done in self._running:
            if child is not None:
                if wait:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(_LIMIT_S)
                if child.poll() is None and not wait:
                    remaining.append((child, path, done))
                    continue
            elif not wait:
                remaining.append((child, path, done))
                continue
            done(self._result(path))
        self._running = remaining

    def _result(self, path: str) -> dict[str, Any]:
        try:
            with open(path + ".done", encoding="utf-8") as file:
                result: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            with open(path, encoding="utf-8") as file:
                result = finish(json.load(file))  # no child, or one that died
        for leftover in (path, path + ".done", path + ".part"):
            with contextlib.suppress(OSError):  # what is left is only in the way
                os.unlink(leftover)
        return result
