"""What is known of every rank: from its trace, from what it wrote when it stood still, from /proc if it is
alive on this host, from its launcher's trace, and from what TorchElastic and torch's flight recorder leave.

Each file is read by itself, the end of it only; then they are put together by rank.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import time
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer import _core
from dftracer.format.hang_file import hang_files, read_hang_file
from dftracer.format.io_calls import IO_CATEGORIES
from dftracer.format.members import member_index
from dftracer.format.reader import Problems, text_lines
from dftracer.format.records import PHASES, RANK_FACT, START_RECORD
from dftracer.format.trace_names import NoTraces, noted_failure, signal_name
from dftracer.live.look import LiveFile, look
from dftracer.postmortem.stacks import Process, seen_process

_HEAD_BYTES = 1 << 16
_TAIL_TEXT = 96 << 10  # of text at the end of a file
_TAIL_OF_LAUNCHER = 2 << 20
_THREADS = 8
_AT_ONCE_US = 5_000_000  # a failing rank ends its children as it exits


@dataclass
class LostWorker:
    """A child that did not end by itself."""

    pid: int
    signal: str | None = None
    exit_code: int | None = None  # neither: its trace breaks off, and nobody saw why


@dataclass
class RankEvidence:
    """One rank, as far as it is known."""

    rank: int
    pid: int = -1
    host: str = ""
    alive: bool = False
    born_us: int = 0
    last_us: int = 0  # its last sign of life, samples of the machine included
    moved_us: int = 0  # the last event of the program itself
    ended_us: int | None = None  # when it ended
    step: int | None = None
    steps: int = 0
    stage: str | None = None
    where: str | None = None
    closed: bool = False  # it finished its trace itself
    program_done: bool = False  # its program came to its end, whatever happened while it left
    exit_code: int | None = None
    signal: str | None = None
    exception: str | None = None  # "RuntimeError at train.py:88"
    exception_text: str = ""
    exception_us: int | None = None
    hang: dict[str, Any] | None = None  # its hang file, unless it went on
    collective: dict[str, Any] | None = None  # that it is in
    last_collective: dict[str, Any] | None = None  # that it has ended, of the trace
    groups: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)  # enqueued, completed
    open_file: str | None = None
    process: Process | None = None  # its threads
    workers: list[Process] = field(default_factory=list)
    lost: list[LostWorker] = field(default_factory=list)  # children that were killed before it ended
    sources: list[str] = field(default_factory=list)


@dataclass
class Evidence:
    """All of a run."""

    run: str | None
    ranks: list[RankEvidence]
    world_size: int | None
    attempt: int
    now_us: int
    noted: dict[str, Any] | None = None  # how the program of `dftracer run` ended
    ended_by: str | None = None  # the signal that its launcher got
    out_of_memory: bool = False  # the kernel has killed for want of memory in this cgroup
    unreadable: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        present = {r.rank for r in self.ranks}
        return [n for n in range(self.world_size or 0) if n not in present]

    @property
    def alive(self) -> list[RankEvidence]:
        return [r for r in self.ranks if r.alive]


@dataclass
class _File:
    """One process, by its trace file."""

    path: Path
    pid: int = -1
    ppid: int = -1
    host: str = ""
    run: str | None = None
    attempt: int = 0
    rank: int | None = None
    world_size: int | None = None
    start_us: int = 0
    last_us: int = 0
    moved_us: int = 0
    called_us: int = 0
    end_us: int | None = None
    exit_code: int | None = None
    recovered: bool = False
    alive: bool = False
    program_done: bool = False
    step: int | None = None
    steps: int = 0
    stage: str | None = None
    where: str | None = None
    collective: dict[str, Any] | None = None
    facts: dict[str, str] = field(default_factory=dict)
    left: dict[int, tuple[int, int]] = field(default_factory=dict)  # child -> wait status and when
    oom_kills: list[int] = field(
        default_factory=list
    )  # of its cgroup, as counted by the kernel: first and last


def gather(directory: Path) -> Evidence:
    """Everything about the newest run in a directory."""
    found = look(directory)
    with ThreadPoolExecutor(_THREADS) as pool:
        files = [f for f in pool.map(_read, found) if f is not None]
        hangs = [h for h in pool.map(read_hang_file, hang_files(directory)) if h is not None]
    if not files and not hangs:
        raise NoTraces(f"no trace and no hang file under {directory}")
    run = _newest_run(files, hangs)
    files = [f for f in files if f.run == run]
    hangs = [h for h in hangs if h.get("run") == run]
    ranked = [f for f in files if f.rank is not None and f.world_size is not None]
    attempt = max((f.attempt for f in ranked), default=max((h["attempt"] or 0 for h in hangs), default=0))
    evidence = Evidence(
        run,
        _ranks(files, [h for h in hangs if (h["attempt"] or 0) == attempt], attempt),
        max((f.world_size or 0 for f in ranked), default=0)
        or max((int(h.get("world_size") or 0) for h in hangs), default=0)
        or None,
        attempt,
        time.time_ns() // 1000,
        noted=noted_failure(directory, run) if run else None,
        unreadable=sorted(str(f.path) for f in found if f.state == "unknown" and not f.size),
    )
    for rank in evidence.ranks:
        if rank.alive:
            _look_now(rank)
    for number, error in elastic_errors(directory).items():
        _take_error(evidence, number, error)
    for number, dump in flight_recorder_dumps(directory).items():
        _take_dump(evidence, number, dump)
    evidence.ended_by = next((s for f in files if f.rank is None and (s := _signal_to(f))), None)
    killed = [n for f in files for n in f.oom_kills]
    evidence.out_of_memory = bool(killed) and max(killed) > min(killed)
    return evidence


def _newest_run(files: list[_File], hangs: list[dict[str, Any]]) -> str | None:
    begun: dict[str | None, int] = {}
    for f in files:
        begun[f.run] = max(begun.get(f.run, 0), f.start_us)
    for h in hangs:
        begun.setdefault(h.get("run"), h["moved_us"] or 0)
    return max(begun, key=lambda run: begun[run])


# --- One file


def _read(file: LiveFile) -> _File | None:
    out = _File(file.path, pid=file.pid or -1, alive=file.state == "running")
    try:
        head, tail = _ends_of(file)
    except OSError:
        return None
    for line in head.split(b"\n"):
        _take(out, line, is_head=True)
    for line in tail.split(b"\n"):
        _take(out, line)
    if out.pid < 0:
        return None
    return out


def _ends_of(file: LiveFile) -> tuple[bytes, bytes]:
    """The text of the beginning and the end."""
    if not file.path.exists():
        return file.text[:_HEAD_BYTES], file.text
    if not file.packed:
        with file.path.open("rb") as plain:
            head = plain.read(_HEAD_BYTES)
            plain.seek(max(0, file.size - _TAIL_OF_LAUNCHER))
            return head, plain.read() + file.text
    with file.path.open("rb", buffering=0) as f:
        members, at = [], 0
        while at < file.size:
            index = member_index(os.pread(f.fileno(), 64, at))
            if index is None or at + index.member_size > file.size:
                break
            members.append((at, index.member_size, index.text_size))
            at += index.member_size

        def text(span: tuple[int, int, int]) -> bytes:
            try:
                return zlib.decompress(os.pread(f.fileno(), span[1], span[0]), wbits=31)
            except zlib.error:
                return b""

        if not members:
            return _ends_of_foreign(file)
        head = b""
        for each in members[:4]:
            head += text(each)
            if START_RECORD in head:
                break
        # A launcher has no rank; what it waited for is all that it can tell.
        wanted = _TAIL_TEXT if RANK_FACT in head else _TAIL_OF_LAUNCHER
        tail: list[bytes] = []
        for each in reversed(members):
            if wanted <= 0:
                break
            tail.append(text(each))
            wanted -= each[2]
        return head, b"".join(reversed(tail)) + file.text


def _ends_of_foreign(file: LiveFile) -> tuple[bytes, bytes]:
    """The same of a file without our members, which must be read from its beginning."""
    head, tail = bytearray(), bytearray()
    for line, _ in text_lines(file.path, Problems()):
        if len(head) < _HEAD_BYTES:
            head += line + b"\n"
        tail += line + b"\n"
        if len(tail) > 2 * _TAIL_OF_LAUNCHER:
            del tail[:-_TAIL_OF_LAUNCHER]
    return bytes(head), bytes(tail) + file.text


_STAGES = {
    ("compute", "forward"): "forward",
    ("compute", "backward"): "backward",
    ("compute", "step"): "optimizer",
}


def _take(out: _File, line: bytes, is_head: bool = False) -> None:  # noqa: PLR0912 - one branch per record
    if not line.startswith(b"{"):
        return
    try:
        record = json.loads(line)
        name, cat, args = record["name"], record["cat"], record.get("args") or {}
        kind = PHASES.get(record["ph"])
    except (ValueError, KeyError, TypeError):
        return
    if kind == "M":
        _take_metadata(out, name, record.get("pid", -1), args)
        return
    at = _integer(record.get("ts"))
    if at is None:
        return
    end = at + (_integer(record.get("dur")) or 0)
    if kind == "C":
        out.last_us = max(out.last_us, at)
        if name == "cgroup" and "oom_kills" in args:
            out.oom_kills = [*out.oom_kills[:1], _integer(args["oom_kills"]) or 0]
    elif cat == "dftracer" and name == "start":
        out.start_us, out.ppid = at, _integer(args.get("ppid")) or -1
        out.pid = record.get("pid", out.pid)
        out.last_us = max(out.last_us, at)
    elif cat == "dftracer" and name == "end":
        out.end_us, out.recovered = at, bool(args.get("recovered"))
        out.exit_code = _integer(args.get("exit_code"))
        out.last_us = max(out.last_us, at)
    else:
        out.last_us = max(out.last_us, end)
        if cat == "sample":
            out.where = _place(str(args.get("where", ""))) or out.where
            out.stage = "own_code"
            return
        # A waiting loader polls its workers: where there are steps, calls are not progress.
        if str(cat).lower() in IO_CATEGORIES:
            out.called_us = max(out.called_us, end)
        else:
            out.moved_us = max(out.moved_us, end)
        if is_head:
            return
        if (cat, name) == ("pipeline", "train"):
            out.program_done = "error" not in args
        if cat == "comm" and args.get("seq") is not None:
            out.collective = {
                "group": args.get("group"),
                "seq": args.get("seq"),
                "op": name,
                "bytes": args.get("bytes"),
            }
        if name in ("waitpid", "wait4", "wait", "waitid") and (args.get("ret") or 0) > 0:
            out.left[args["ret"]] = (_integer(args.get("status")) or 0, end)
        step = _integer(args.get("step"))
        if step is not None:
            out.step, out.stage = step, _STAGES.get((cat, name), "own_code")
            out.steps = max(out.steps, step + (name == "fetch.block"))


def _take_metadata(out: _File, name: str, pid: int, args: dict[str, Any]) -> None:
    if out.pid < 0:
        out.pid = pid
    if name == "PR":
        out.facts[str(args.get("name"))] = str(args.get("value"))
        if args.get("name") in ("rank", "world_size"):
            number = _integer(args.get("value"))
            setattr(out, args["name"], number if number is not None else getattr(out, args["name"]))
    elif name == "HH":
        out.host = out.host or str(args.get("name", ""))
    if name in ("HH", "run") and (run := args.get("run" if name == "HH" else "value")) is not None:
        out.run = str(run)
        out.attempt = _integer(args.get("attempt")) or 0


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _place(sample: str) -> str:
    """`load data.py:7` as `data.py:7 load`."""
    function, _, at = sample.rpartition(" ")
    return f"{at} {function}" if function else ""


# --- Together


def _ranks(files: list[_File], hangs: list[dict[str, Any]], attempt: int) -> list[RankEvidence]:
    by_pid = {(f.host, f.pid): f for f in files}
    left = {(f.host, pid): status for f in files for pid, status in f.left.items()}
    found: dict[int, RankEvidence] = {}
    members: dict[int, list[_File]] = {}
    for f in files:
        if f.rank is not None and f.attempt == attempt:
            members.setdefault(f.rank, []).append(f)
    if not members:
        programs = [f for f in files if f.steps or f.step is not None] or [
            f for f in files if f.exit_code or "exception" in f.facts or f.alive
        ]
        if programs:
            first = min(programs, key=lambda f: f.start_us)
            members[0] = [first, *(f for f in files if f.ppid == first.pid)]
    for number, mine in members.items():
        # Children inherit the rank: the rank itself is the process that none of these started.
        tops = [f for f in mine if by_pid.get((f.host, f.ppid)) not in mine]
        main = max(tops or mine, key=lambda f: (f.steps, f.step or -1, -f.start_us))
        found[number] = _rank(number, main, left)
        found[number].lost = _lost_workers(main, [f for f in files if f.ppid == main.pid], found[number])
    _take_hangs(found, hangs)
    return sorted(found.values(), key=lambda r: r.rank)


def _take_hangs(found: dict[int, RankEvidence], hangs: list[dict[str, Any]]) -> None:
    over: list[tuple[RankEvidence, dict[str, Any]]] = []
    for hang in hangs:
        number = hang["rank"] if hang["rank"] is not None else 0
        rank = found.get(number)
        if rank is None:
            rank = found[number] = RankEvidence(number, hang["pid"] or -1, str(hang.get("host") or ""))
            rank.last_us = rank.moved_us = hang["moved_us"] or 0
            rank.alive = _runs(rank.pid, rank.host)
        if rank.pid not in (hang["pid"], -1):
            continue
        if _moved_on(rank, hang):
            over.append((rank, hang))
        else:
            _take_hang(rank, hang)
    # Whoever waits for a rank that never moved again leaves the collective only because it fails: somebody
    # has ended the job.
    if any(rank.hang is not None for rank in found.values()):
        for rank, hang in over:
            if not rank.alive and hang["collective"] is not None and (rank.step or 0) <= (hang["step"] or 0):
                _take_hang(rank, hang)


def _runs(pid: int, host: str) -> bool:
    return host == os.uname().nodename and pid > 0 and os.path.exists(f"/proc/{pid}")


def _rank(number: int, f: _File, left: dict[tuple[str, int], tuple[int, int]]) -> RankEvidence:
    out = RankEvidence(number, f.pid, f.host, alive=f.alive, born_us=f.start_us)
    out.last_us, out.moved_us = f.last_us, f.moved_us or f.called_us or f.start_us
    out.step, out.steps, out.stage, out.where = f.step, f.steps, f.stage, f.where
    out.last_collective = f.collective
    out.sources.append(f.path.name)
    out.exception = f.facts.get("exception")
    out.exception_text = f.facts.get("exception_text", "")
    out.exception_us = _integer(f.facts.get("exception_us"))
    if out.exception is not None and "exception_at" in f.facts:
        out.where = os.path.basename(f.facts["exception_at"])
        out.exception += f" at {out.where}"
    if f.alive:
        return out
    out.exit_code, out.ended_us = f.exit_code, f.last_us or f.end_us
    out.closed = f.end_us is not None and not f.recovered
    out.program_done = f.program_done
    status = left.get((f.host, f.pid))
    if status is not None:
        if status[0] & 0x7F:
            out.signal, out.exit_code = signal_name(status[0] & 0x7F), None
        elif out.exit_code is None:
            out.exit_code = status[0] >> 8
        out.ended_us = out.ended_us or status[1]
    if out.exit_code == 0:
        out.exception = None
    if out.exception_us:
        out.ended_us = out.exception_us
    return out


def _signal_to(launcher: _File) -> str | None:
    """Torchrun raises an exception where a signal reaches it."""
    name, text = launcher.facts.get("exception"), launcher.facts.get("exception_text", "")
    if name == "KeyboardInterrupt":
        return "SIGINT"
    number = re.search(r"got signal: (\d+)", text) if name == "SignalException" else None
    return signal_name(int(number[1])) if number is not None else None


def _lost_workers(main: _File, children: list[_File], rank: RankEvidence) -> list[LostWorker]:
    """By what the kernel told the rank of its children; otherwise by traces that break off before its end.

    Those that are terminated (SIGTERM) are so by the rank itself, while it leaves.
    """
    if rank.alive or rank.exception is None or rank.ended_us is None:
        return []
    out = []
    for pid, (status, at) in main.left.items():
        name = signal_name(status & 0x7F) if status & 0x7F else None
        if status and name != "SIGTERM" and at <= rank.ended_us + _AT_ONCE_US:
            out.append(LostWorker(pid, name, None if name else status >> 8))
    for f in children:
        ended = f.alive or f.exit_code is not None or (f.end_us is not None and not f.recovered)
        if f.host == main.host and f.pid not in main.left and not ended and f.last_us <= rank.ended_us:
            out.append(LostWorker(f.pid))
    return sorted(out, key=lambda w: (w.signal is None, w.exit_code is None, w.pid))


def _moved_on(rank: RankEvidence, hang: dict[str, Any]) -> bool:
    went_on = hang.get("went_on_after_s") is not None
    return went_on or (hang["moved_us"] or 0) + 1_000_000 < min(rank.moved_us, hang["written_us"] or 0)


def _take_hang(rank: RankEvidence, hang: dict[str, Any]) -> None:
    rank.hang = hang
    if not rank.alive:
        rank.ended_us = max(rank.ended_us or 0, hang["written_us"] or 0) or None
    rank.sources.append("hang file")
    rank.step = hang["step"] if hang["step"] is not None else rank.step
    rank.stage = hang.get("stage") or rank.stage
    rank.moved_us = hang["moved_us"] or rank.moved_us
    rank.collective = hang["collective"]
    rank.groups = {
        str(g.get("group")): (_integer(g.get("enqueued")), _integer(g.get("completed")))
        for g in hang["groups"]
    }
    rank.open_file = hang.get("open_file")
    if rank.exception is None:
        rank.where = hang.get("where") or rank.where
    rank.process = seen_process(hang)
    rank.workers = [seen_process(w) for w in hang["workers"]]
    call = rank.process.distributed_call
    if rank.collective is None and rank.step is not None and call not in (None, "init_process_group"):
        # What is sent from one rank to another has no number.
        rank.collective = {"group": None, "seq": None, "op": call, "bytes": None}


def _look_now(rank: RankEvidence) -> None:
    """What the kernel lets us see of a living process."""
    if rank.host != os.uname().nodename:
        return
    try:
        now = seen_process(json.loads(_core.stacks_of(rank.pid)))
    except ValueError:
        return
    if now.state == "?":
        return
    if rank.hang is None or now.state == "T" or not (rank.process and rank.process.threads):
        rank.workers = [
            seen_process(json.loads(_core.stacks_of(pid))) for pid in _children(rank.pid)
        ] or rank.workers
        if now.threads or rank.process is None:
            rank.process = now
        rank.sources.append("/proc")
        rank.where = now.where or rank.where
        rank.open_file = now.open_file or rank.open_file
        if rank.collective is None and now.operation is not None:
            rank.collective = {"group": None, "seq": None, "op": now.operation, "bytes": None}
    elif rank.process is not None:
        rank.process.state = now.state
        # Workers that have died since.
        alive = set(_children(rank.pid))
        for worker in rank.workers:
            if worker.pid not in alive:
                worker.state = "X"


def _children(pid: int) -> Iterable[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if len(fields) > 1 and int(fields[1]) == pid:
                found.append(int(entry.name))
    return sorted(found)


def _take_error(evidence: Evidence, number: int, error: dict[str, Any]) -> None:
    rank = next((r for r in evidence.ranks if r.rank == number), None)
    if rank is None:
        return
    rank.sources.append("TorchElastic")
    rank.exception_text = rank.exception_text or error["text"]
    rank.exception = rank.exception or error["exception"]
    if rank.exception_us is None and error["time_us"]:
        rank.exception_us = rank.ended_us = error["time_us"]


def _take_dump(evidence: Evidence, number: int, dump: dict[str, Any]) -> None:
    rank = next((r for r in evidence.ranks if r.rank == number), None)
    if rank is None:
        rank = RankEvidence(number)
        evidence.ranks.append(rank)
        evidence.ranks.sort(key=lambda r: r.rank)
    rank.sources.append("flight recorder")
    rank.groups = rank.groups or dump["groups"]
    rank.collective = rank.collective or dump["open"]


# --- Files of others beside the traces: TorchElastic's error files, and dumps of torch's flight recorder

_LARGEST = 256 << 20
# <log dir>/<run>/attempt_<n>/<local rank>/error.json
_ERROR = re.compile(r"(?:attempt_(\d+)/)?(\d+)/error\.json$")
# TORCH_FR_DUMP_TEMP_FILE and its older name end with the rank.
_DUMP = re.compile(r"(?:nccl_trace_rank_|fr_trace_rank_|comm_lib_trace_rank_)(\d+)$")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in ')


def elastic_errors(directory: Path) -> dict[int, dict[str, Any]]:
    """By rank, of the last attempt: what `torch.distributed.elastic`'s `@record` wrote."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for path in _files(directory):
        match = _ERROR.search(path.as_posix())
        if match is None:
            continue
        attempt, rank = int(match[1] or 0), int(match[2])
        error = _error(path)
        if error is not None and attempt >= found.get(rank, (-1,))[0]:
            found[rank] = attempt, error
    return {rank: error for rank, (_, error) in found.items()}


def _error(path: Path) -> dict[str, Any] | None:
    try:
        message = json.loads(path.read_text(encoding="utf-8", errors="replace"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(message, dict):
        return {"text": str(message), "exception": str(message).partition(":")[0], "time_us": None}
    text = str(message.get("message", ""))
    more = message.get("extraInfo")
    more = more if isinstance(more, dict) else {}
    try:
        time_us = int(more.get("timestamp", 0)) * 1_000_000
    except (TypeError, ValueError):
        time_us = 0
    lines = [m for m in _LINE.findall(str(more.get("py_callstack", ""))) if "-packages/" not in m[0]]
    exception = text.partition(":")[0]
    if lines:
        exception += f" at {os.path.basename(lines[-1][0])}:{lines[-1][1]}"
    return {"text": text.partition(":")[2].strip(), "exception": exception, "time_us": time_us or None}


class _Plain(pickle.Unpickler):
    """Lists, dicts, texts and numbers; a dump holds nothing else, and a pickle may call anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed in a dump")


def flight_recorder_dumps(directory: Path) -> dict[int, dict[str, Any]]:
    """By rank: how far its groups were, and the collective that was open."""
    found = {}
    for path in _files(directory):
        match = _DUMP.search(path.name)
        trace = _dump(path) if match is not None else None
        if match is None or trace is None:
            continue
        groups = {}
        for group, status in (trace.get("pg_status") or {}).items():
            if isinstance(status, dict):
                groups[str(group)] = (
                    _integer(status.get("last_enqueued_collective")),
                    _integer(status.get("last_completed_collective")),
                )
        entries = [e for e in trace.get("entries") or () if isinstance(e, dict)]
        waits = next((e for e in entries if not e.get("retired") and e.get("state") != "completed"), None)
        found[int(match[1])] = {"groups": groups, "open": None if waits is None else _collective(waits)}
    return found


def _dump(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        raw = path.read_bytes()
        trace = json.loads(raw) if raw[:1] == b"{" else _Plain(io.BytesIO(raw)).load()
    except (OSError, ValueError, EOFError, pickle.UnpicklingError, IndexError, AttributeError, KeyError):
        return None
    return trace if isinstance(trace, dict) and "entries" in trace else None


def _collective(entry: dict[str, Any]) -> dict[str, Any]:
    group = entry.get("process_group") or [""]
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    return {
        "group": str(group[0]),
        "seq": _integer(entry.get("collective_seq_id")),
        "op": name,
        "bytes": None,
    }


def _files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        for name in names:
            if name == "error.json" or "trace_rank_" in name:
                yield Path(folder, name)
