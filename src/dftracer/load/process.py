"""Who wrote a trace file, what the process says about itself, the state of the file, and which files
belong to one run.

Without NumPy: some commands work without any extra.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.format.members import last_time
from dftracer.format.records import AGGREGATION_INTERVAL_US, INTEGER_ARGS, MAX_RANKS, TIME_UNITS
from dftracer.format.trace_names import Paths, of_one_process
from dftracer.format.writer import DAMAGED, MADE_BY
from dftracer.load._scan import MISSING, Scanner, extent
from dftracer.load.find import find_files

_LARGEST = (1 << 63) - 1
_CLOCKS_AGREE_S = 5.0
_LONGEST_INTERVAL_MS = 86_400_000
_MAX_METADATA = 100_000  # if a process repeats the same thing millions of times, the first are enough

MetaRow = tuple[str, str, str, str, int, int, int]


@dataclass
class ProcessInfo:
    """The facts of one process, gathered from its metadata, `start` and `end` records."""

    file: Path
    pid: int = -1
    ppid: int | None = None
    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    start_us: int | None = None
    born_us: int | None = None  # when the process began; it may have begun to record much later
    end_us: int | None = None
    end: dict[str, Any] | None = None  # what `end` says; None: the process never reported its end
    facts: dict[str, str] = field(default_factory=dict)
    user_metadata: list[tuple[str, str]] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    strings: dict[str, str] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    command: str = ""
    run: dict[str, Any] | None = None  # the run it belongs to, as its `run` record says
    counts: dict[str, Any] = field(default_factory=dict)
    time_unit: tuple[int, int] = (1, 1)  # (multiply, divide) to get microseconds
    others: dict[int, ProcessInfo] = field(default_factory=dict)  # other processes, in a merged file
    copied_with_damage: list[str] = field(default_factory=list)  # what a copy lacks of its original

    @property
    def alone(self) -> bool:
        """Whether no other process can be in the file; merged files and other tracers' may have more."""
        return of_one_process(self.file.name)

    def ranks(self) -> dict[int, int | None]:
        """The rank of every process of the file that is known so far, by pid."""
        everyone = [self, *self.others.values()]
        if self.others:
            assign_ranks(everyone)
        return {p.pid: p.rank for p in everyone}

    @property
    def key(self) -> tuple[str, int]:
        """Processes of different hosts may share a pid."""
        return (self.host, self.pid)

    def take(self, rows: Iterable[MetaRow]) -> None:  # noqa: PLR0912 - one branch per kind of record
        """Learn from metadata rows."""
        for row in rows:
            kind, key, value, rest, pid, tid, ts = row
            if self.time_unit != (1, 1) and ts != MISSING:
                ts = ts * self.time_unit[0] // self.time_unit[1]
            if self.pid < 0 and pid != MISSING:
                self.pid = pid
            if kind == DAMAGED:
                if value not in self.copied_with_damage:
                    self.copied_with_damage.append(value)
                continue
            if pid not in (self.pid, MISSING):
                self.others.setdefault(pid, ProcessInfo(self.file, pid=pid)).take([row])
                continue
            if kind == "FH":
                self.paths[value] = key
            elif kind == "HH":
                self.hosts[value] = key
                self.host = self.host or key
                if '"run"' in rest:
                    about = _object(rest)
                    self._name_run(about.pop("run", None), {**about, "host": key})
            elif kind == "SH":
                self.strings[value] = key
            elif kind == "PR":
                self._fact(key, value)
            elif kind == "CM":
                if len(self.user_metadata) < _MAX_METADATA:
                    self.user_metadata.append((key, value))
                if key == "time_metric":
                    self.time_unit = TIME_UNITS.get(value.upper(), self.time_unit)
            elif kind == MADE_BY:
                self.facts[MADE_BY] = value
            elif kind == "thread_name":
                self.threads[tid] = key
            elif kind == "run" and key == "run":  # of earlier versions
                self._name_run(value, _object(rest))
            elif kind == "start":
                args = _object(rest)
                self.start_us = ts if self.start_us is None else min(self.start_us, ts)
                self.ppid = as_integer(args.get("ppid"), self.ppid)
                self.born_us = as_integer(args.get("process_start_us"), self.born_us)
                self.command = self.strings.get(str(args.get("cmd_hash")), self.command)
                for name in ("rank", "world_size"):
                    if name in args:
                        self._fact(name, str(args[name]))
            elif kind == "end":
                self.end = _statement(_object(rest))
                self.end_us = ts

    def _name_run(self, ident: Any, about: dict[str, Any]) -> None:
        if self.run is None and isinstance(ident, str):
            self.run = {"id": ident, **{k: v for k, v in about.items() if k not in {"hhash", "id"}}}

    def _fact(self, key: str, value: str) -> None:
        self.facts[key] = value
        number = as_integer(value, None)
        if number is None or not 0 <= number <= MAX_RANKS:
            return
        if key == "rank":
            self.rank = number
        elif key == "world_size":
            self.world_size = number

    def path_of(self, fhash: str) -> str:
        """The path behind a hash; older dialects write the path itself."""
        known = self.paths.get(fhash)
        return known if known is not None else fhash


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _statement(end: dict[str, Any]) -> dict[str, Any]:
    """What `end` says, without counts that are not numbers."""
    return {k: v for k, v in end.items() if as_integer(v, None) is not None or not _counts(k)}


def _counts(key: str) -> bool:
    return key in INTEGER_ARGS or key.startswith("dropped")


def as_integer(value: Any, default: int | None = None) -> int | None:
    """A number from a trace, if it fits a column."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -_LARGEST <= number <= _LARGEST else default


def peek(file: Path) -> ProcessInfo:
    """The facts from the head of a file, without reading the rest."""
    info = ProcessInfo(file)
    scanner = Scanner(file, 1, 1 << 16)
    for raw in scanner:
        info.take(raw["meta"])
        take_first_pid(info, raw)
        if raw["rows"] or info.start_us is not None:
            break
    return info


def read_through(file: Path) -> ProcessInfo:
    """Everything the records of one file say about its process, with counts of what was found."""
    info = ProcessInfo(file)
    scanner = Scanner(file, 1, 1 << 20)
    for raw in scanner:
        info.take(raw["meta"])
        take_first_pid(info, raw)
    info.counts = scanner.counts()
    return info


def aggregation_interval_us(process: ProcessInfo, pid: int | None) -> int:
    """How long an aggregated record of a process in this file stands for if it does not say so itself.

    The `end` of DFTracer's traces does. It comes last, so that the whole file is read, once.
    """
    stated = _stated_intervals(process.file, process.file.stat().st_mtime_ns)
    return stated.get(pid, AGGREGATION_INTERVAL_US)


@lru_cache(maxsize=64)
def _stated_intervals(file: Path, modified: int) -> dict[int | None, int]:
    info = read_through(file)
    out: dict[int | None, int] = {}
    for process in (info, *info.others.values()):
        settings = (process.end or {}).get("cfg")
        ms = as_integer(settings.get("trace_interval_ms")) if isinstance(settings, dict) else None
        if ms is not None and 0 < ms <= _LONGEST_INTERVAL_MS:
            out[process.pid] = ms * 1000
    return out


def take_first_pid(info: ProcessInfo, raw: dict[str, Any]) -> None:
    """In a file without metadata, the first event says whose it is."""
    if info.pid < 0 and raw["rows"] and "pid" in raw:
        info.pid = int.from_bytes(bytes(memoryview(raw["pid"])[:8]), "little", signed=True)


def assign_ranks(processes: list[ProcessInfo]) -> None:
    """Give children without their own rank the rank of the process that started them."""
    by_key = {p.key: p for p in processes}
    for process in processes:
        seen: set[tuple[str, int]] = set()
        at: ProcessInfo | None = process
        while at is not None and at.rank is None and at.key not in seen:
            seen.add(at.key)
            at = by_key.get((at.host, at.ppid)) if at.ppid is not None else None
        if process.rank is None and at is not None and at.rank is not None:
            process.rank = at.rank


def processes_of(paths: Paths) -> list[ProcessInfo]:
    """The processes of all files in `paths`, from the head of each file."""
    processes = [peek(f) for f in find_files(paths)]
    assign_ranks(processes)
    return processes


# --- Whether a file is still being written


def is_live(process: ProcessInfo) -> bool:
    """Whether the file is known to be in use: its lock is held, or its process runs on this host."""
    if process.end is not None:
        return False
    return _is_locked(process.file) or (process.host == os.uname().nodename and _is_running(process))


def _is_locked(file: Path) -> bool:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks says nothing
        return False
    finally:
        os.close(handle)
    return False


def _is_running(process: ProcessInfo) -> bool:
    """Whether the process of the trace is running, and not a later one with the same pid."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        born = time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False
    return process.start_us is None or born <= process.start_us / 1e6 + _CLOCKS_AGREE_S


# --- The state of a file: how much is in it, and what is wrong with it


def file_facts(process: ProcessInfo) -> dict[str, Any]:
    """Read a whole file and report what was found; of a remote one only its first and last member."""
    copy = _part_of_remote(process)
    first: int | None = None
    last: int | None = None
    dangling = 0
    scanner = Scanner(process.file, 2, 16 << 20)
    for raw in scanner:
        process.take(raw["meta"])
        if raw["rows"] == 0:
            continue
        low, high, backwards = extent(raw["ts"], raw["dur"])
        multiply, divide = process.time_unit
        low, high = low * multiply // divide, high * multiply // divide
        first = low if first is None else min(first, low)
        last = high if last is None else max(last, high)
        dangling += backwards
    process.counts = scanner.counts()
    c = process.counts
    end = process.end
    problems = []
    if c["members_cut"]:
        problems.append(f"{plural(c['members_cut'], 'gzip member')} truncated or damaged")
    if c["cut_lines"]:
        problems.append("the last line is incomplete")
    if c["bad_lines"]:
        problems.append(plural(c["bad_lines"], "line is not a record", "lines are not records"))
    problems += [f"the file it was copied from had {words}" for words in process.copied_with_damage]
    if dangling:
        problems.append(plural(dangling, "event ends before it begins", "events end before they begin"))
    if end is None:
        problems.append("no end record: killed, or still running")
    elif end.get("recovered"):
        problems.append("completed after the process had died")
    dropped = as_integer(end.get("dropped"), 0) or 0 if end else 0
    if dropped:
        problems.append(f"{plural(dropped, 'event')} dropped by the tracer")
    facts = {
        "file": str(process.file),
        "rank": process.rank,
        "pid": process.pid,
        "ppid": process.ppid,
        "host": process.host,
        "command": process.command,
        "events": c["events"] - c["counters"],  # as everywhere: a sample of the machine is none
        "records": c["events"] + c["meta"],
        "bytes": c["file_bytes"],
        "text_bytes": c["text_bytes"],
        "members": c["members"],
        "span_s": None if first is None or last is None else (last - first) / 1e6,
        "closed": c["closed"],
        "dropped": dropped,
        "end": end,
        "problems": problems,
    }
    return facts if copy is None else _from_end_record(facts, copy)


def _part_of_remote(process: ProcessInfo) -> Any:
    """What this file is a copy of, if it is one."""
    if "dftracer-remote" not in process.file.parts:
        return None
    from dftracer.load.remote import origin  # noqa: PLC0415

    return origin(process.file)


def _from_end_record(facts: dict[str, Any], copy: Any) -> dict[str, Any]:
    """The figures of a remote file; those of which only the ends were read are what its `end` record says."""
    facts["file"], facts["bytes"] = copy.url, copy.size
    if not copy.whole:
        end = facts["end"] or {}
        facts["records"] = as_integer(end.get("num_events"), None)
        facts["members"] = as_integer(end.get("members"), None)
        facts["events"] = facts["text_bytes"] = None
    return facts


# --- Runs: a directory may contain several, and they are never mixed

RUN_KEYS = ("id", "start", "command", "host", "launcher", "world_size", "attempt", "version", "python")


@dataclass
class Run:
    """The processes of one run."""

    id: str | None  # None: its files carry no run record
    processes: list[ProcessInfo] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        return [p.file for p in self.processes]

    @property
    def start_us(self) -> int:
        """When it began, from its record, otherwise from its first process."""
        starts = [p.run["start"] for p in self.processes if p.run and isinstance(p.run.get("start"), int)]
        return min(starts or [p.start_us for p in self.processes if p.start_us is not None], default=0)

    @property
    def end_us(self) -> int:
        return max(p.end_us if p.end_us is not None else last_time(p.file) for p in self.processes)

    @property
    def ranks(self) -> set[int]:
        return {p.rank for p in self.processes if p.rank is not None}

    @property
    def world_sizes(self) -> set[int]:
        return {p.world_size for p in self.processes if p.world_size is not None}

    def identity(self) -> dict[str, Any]:
        return run_identity(self.processes)


def run_identity(processes: list[ProcessInfo]) -> dict[str, Any]:
    """What the run says about itself; the earliest of several records. Null if nothing is known."""
    records = [p.run for p in processes if p.run]
    records.sort(key=_by_start)
    first = records[0] if records else {}
    out = {key: first.get(key) for key in RUN_KEYS}
    for key in ("launcher", "world_size"):  # the launcher's own process comes first, and knows neither
        out[key] = next((r[key] for r in records if r.get(key)), out[key])
    starts = [p.start_us for p in processes if p.start_us is not None]
    out["start"] = out["start"] if out["start"] is not None else min(starts, default=None)
    if out["command"] is None:
        out["command"] = next((p.command for p in processes if p.command), None)
    if out["host"] is None:
        out["host"] = next((p.host for p in processes if p.host), None)
    out["files"] = len(processes)
    return out


def _by_start(record: dict[str, Any]) -> tuple[int, str]:
    start = record.get("start")
    return (start if isinstance(start, int) else 1 << 62, str(record.get("id")))


def find_runs(processes: list[ProcessInfo]) -> list[Run]:
    """The runs among the files, the newest first. Files without a run record are one run."""
    groups: dict[str | None, Run] = {}
    for p in processes:
        ident = p.run["id"] if p.run else None
        groups.setdefault(ident, Run(ident)).processes.append(p)
    runs = sorted(groups.values(), key=lambda r: (r.start_us, r.id or ""))
    joined: list[Run] = []
    for run in runs:
        same = next((j for j in joined if _one_job(j, run)), None)
        if same is None:
            joined.append(run)
        else:
            same.processes += run.processes
    joined.reverse()
    return joined


def _one_job(a: Run, b: Run) -> bool:
    """Ranks of one job may have been started separately and not know about each other's run.

    They overlap in time, have the same world size, and no rank appears twice.
    """
    if a.id is None or b.id is None or not a.ranks or not b.ranks or a.ranks & b.ranks:
        return False
    if a.world_sizes != b.world_sizes or len(a.world_sizes) != 1:
        return False
    return a.start_us < b.end_us and b.start_us < a.end_us
