"""Synthetic traces with known answers: for tests, benchmarks, and trying out an analysis.

`Process` writes exactly the spans it is given; `training_run` builds a whole job with millions of events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer.format.members import gzip_member
from dftracer.format.records import (
    FILE_KEY,
    FIRST_LINE,
    LAST_LINE,
    TRACER,
    arguments,
    counter_line,
    event_line,
    event_text,
    metadata_line,
    string_hash,
)

__all__ = ["Process", "Run", "training_run"]

# --- A synthetic process: it writes exactly the spans it is given


@dataclass
class _Span:
    name: str
    cat: str
    start: int
    dur: int
    tid: int
    args: dict[str, Any]

    @property
    def end(self) -> int:
        return self.start + self.dur


@dataclass
class Process:
    """One process of a synthetic job. Times are microseconds from the start of the job."""

    pid: int
    ppid: int = 1
    rank: int | None = None
    world_size: int | None = None
    host: str = "node0"
    start: int = 0
    end: dict[str, Any] | None = field(default_factory=dict)  # None: the process never ended
    spans: list[_Span] = field(default_factory=list)
    metadata: list[tuple[str, str, str]] = field(default_factory=list)
    run: dict[str, Any] | None = None  # the args of its `run` record: `value` is the id of the run
    samples: list[tuple[int, str, dict[str, float]]] = field(default_factory=list)

    def span(self, cat: str, name: str, start: int, dur: int, tid: int | None = None, **args: Any) -> None:
        """Record a span; nesting follows from the times."""
        self.spans.append(_Span(name, cat, start, dur, self.pid if tid is None else tid, args))

    def counter(self, name: str, at: int, **values: float) -> None:
        """Record a sample of the machine."""
        self.samples.append((at, name, values))

    def step(self, count: int, start: int, wait: int, body: int, **args: Any) -> int:
        """One item of `ai.dataloader.fetch.iter`: waiting, then the body. Returns its end."""
        self.span("dataloader", "fetch.iter", start, wait, count=str(count), **args)
        self.span("dataloader", "fetch.block", start + wait, body, count=str(count), **args)
        return start + wait + body

    def io(self, name: str, start: int, dur: int, path: str, cat: str = "POSIX", **args: Any) -> None:
        """Record an I/O call on `path`."""
        self.span(cat, name, start, dur, fhash=path, **args)

    def write(
        self, directory: Path, name: str | None = None, gz: bool = True, member_text: int = 1 << 20
    ) -> Path:
        """Write the trace file of this process and return its path."""
        stem = name or f"trace-{self.pid:016x}-app"
        path = Path(directory) / f"{stem}.pfw{'.gz' if gz else ''}"
        out = MadeFile(path, self.pid, self.host, member_text)
        self._write_facts(out)
        out.own_event("start", EPOCH_US + self.start, version="synthetic", ppid=self.ppid)
        self._write_spans(out)
        if self.end is not None:
            out.end(EPOCH_US + max((s.end for s in self.spans), default=self.start), **self.end)
        out.close()
        return path

    def _write_facts(self, out: MadeFile) -> None:
        if self.rank is not None:
            out.meta("PR", "rank", str(self.rank))
        if self.world_size is not None:
            out.meta("PR", "world_size", str(self.world_size))
        if self.run is not None:
            out.meta("run", "run", **self.run)
        for kind, key, value in self.metadata:
            out.meta(kind, key, value)

    def _write_spans(self, out: MadeFile) -> None:
        """Numbered as they begin and written as they end, like a recorder's."""
        stacks: dict[int, list[tuple[int, int]]] = {}  # of each thread: end and id of what is open
        ended: list[tuple[int, int, str, int]] = []
        named: set[str] = set()
        for s in sorted(self.spans, key=lambda s: (s.start, -s.dur)):
            stack = stacks.setdefault(s.tid, [])
            while stack and stack[-1][0] <= s.start and not (s.dur == 0 and stack[-1][0] == s.start):
                stack.pop()
            out.ids += 1
            args = dict(s.args)
            if "fhash" in args:
                file = args["fhash"]
                args["fhash"] = string_hash(file)
                if file not in named:
                    named.add(file)
                    out.meta("FH", file, args["fhash"])
                    out.ids += 1
            above = stack[-1][1] if stack else -1
            full = arguments(out.hhash, above, args, len(stack) + 1)
            line = event_line(out.ids, s.name, s.cat, out.pid, s.tid, EPOCH_US + s.start, s.dur, full)
            stack.append((s.end, out.ids))
            ended.append((s.end, -out.ids, line, s.start))
        for at, name, values in self.samples:
            out.ids += 1
            line = counter_line(out.ids, name, out.pid, EPOCH_US + at, values)
            ended.append((at, -out.ids, line, at))
        for _, _, line, begin in sorted(ended):
            out.add(line, EPOCH_US + begin)


# --- A synthetic training job of any size: millions of lines, so they are written as text


_HOST = "node0"
_HHASH = string_hash(_HOST)
_STEP_EVENTS = 7  # of a main process


@dataclass(frozen=True)
class Run:
    """What `training_run` wrote, and the correct answers."""

    directory: Path
    files: list[Path]
    events: int
    steps: int
    ranks: int
    workers: int


@dataclass(frozen=True)
class _Job:
    directory: Path
    steps: int
    ranks: int
    workers: int
    reads: int
    batch: int
    steps_per_epoch: int
    paths: list[str]
    hashes: list[str]
    suffix: str
    member_text: int

    @property
    def step_us(self) -> int:
        return 5_000 + self.batch * 900 // max(1, self.workers)

    @property
    def item_events(self) -> int:
        return self.reads + 4  # item, open, reads, close, preprocess

    def labels(self, step: int) -> str:
        return f'"epoch":{step // self.steps_per_epoch},"step":{step}'


def training_run(
    directory: Path,
    *,
    events: int = 100_000,
    ranks: int = 2,
    workers: int = 2,
    reads: int = 6,
    batch: int = 8,
    steps_per_epoch: int = 100,
    files: int = 512,
    gz: bool = True,
    member_text: int = 1 << 20,
) -> Run:
    """Write a whole job of about `events` events: per rank a main process and its loader workers.

    Each worker item opens a file, reads it in `reads` calls, closes it and preprocesses; each step waits for
    the loader, moves the batch, runs forward, backward with an all-reduce, and the optimizer.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    per_step = _STEP_EVENTS + 1 + batch * (reads + 4) + 1
    steps = max(1, events // (per_step * ranks))
    paths = [f"/data/train/part-{i:05d}.npy" for i in range(files)]
    hashes = [string_hash(p) for p in paths]
    suffix = ".pfw.gz" if gz else ".pfw"
    job = _Job(
        directory, steps, ranks, workers, reads, batch, steps_per_epoch, paths, hashes, suffix, member_text
    )
    written: list[Path] = []
    total = 0
    for rank in range(ranks):
        main_pid = 1000 + rank * 100
        for number in range(workers):
            worker = _open(
                job, "fork", main_pid + 1 + number, main_pid, rank, zip(paths, hashes, strict=True)
            )
            total += _write_worker(job, worker, number) + _close(job, worker)
            written.append(worker.path)
        main = _open(job, "app", main_pid, 1, rank, ())
        total += _write_main(job, main) + _close(job, main)
        written.append(main.path)
    return Run(directory, written, total, steps, ranks, workers)


def _open(job: _Job, kind: str, pid: int, ppid: int, rank: int, files: Iterable[tuple[str, str]]) -> MadeFile:
    out = MadeFile(job.directory / f"trace-{pid:016x}-{kind}{job.suffix}", pid, _HOST, job.member_text)
    out.meta("PR", "rank", str(rank))
    out.meta("PR", "world_size", str(job.ranks))
    for path, hashed in files:
        out.meta("FH", path, hashed)
    out.own_event("start", EPOCH_US, version="synthetic", ppid=ppid)
    return out


def _close(job: _Job, out: MadeFile) -> int:
    """The last record; returns how many events a trace has besides what its process did."""
    out.end(EPOCH_US + job.steps * job.step_us)
    out.close()
    return 2


def _write_worker(job: _Job, out: MadeFile, number: int) -> int:
    """The batches of one loader worker; returns how many events they are."""
    count = 0
    for step in range(number, job.steps, job.workers):
        labels = job.labels(step)
        out.ids += 1
        batch_id = out.ids
        at = EPOCH_US + step * job.step_us
        for place in range(job.batch):
            at = _write_item(job, out, step, place, batch_id, at)
        collate = event_text(batch_id, "preprocess.collate", "data", out.pid, at, 150, _HHASH, -1, labels, 1)
        out.add(collate, at)
        count += job.batch * job.item_events + 1
    return count


def _write_item(job: _Job, out: MadeFile, step: int, place: int, batch_id: int, began: int) -> int:
    """One sample of a batch, from its file; returns when it is ready."""
    file = (step * job.batch + place) * 7919 % len(job.paths)
    item = out.ids + 1
    out.ids += job.item_events
    labels = job.labels(step)
    hashed = f'{FILE_KEY}"{job.hashes[file]}"'

    def line(ident: int, name: str, cat: str, ts: int, dur: int, args: str) -> str:
        return event_text(ident, name, cat, out.pid, ts, dur, _HHASH, item, args, 3)

    dur = 20 + file % 7
    opened = f'{hashed},"flags":0,"ret":{5 + place}'
    lines = [line(item + 1, "open", "POSIX", began + 2, dur, opened)]
    at = began + dur + 3
    for number in range(job.reads):
        dur = 40 + (file * 31 + number * 17 + step) % 60
        read = f'{hashed},"count":131072,"ret":131072'
        lines.append(line(item + 2 + number, "read", "POSIX", at, dur, read))
        at += dur + 1
    lines.append(line(item + 2 + job.reads, "close", "POSIX", at, 3, f'{hashed},"ret":0'))
    dur = 200 + (file * 13 + step) % 90
    lines.append(line(item + 3 + job.reads, "preprocess", "data", at + 4, dur, labels))
    at += 4 + dur
    item_began = at - dur - 400
    indexed = f'{labels},"image_idx":{file}'
    lines.append(
        event_text(item, "item", "data", out.pid, item_began, dur + 400, _HHASH, batch_id, indexed, 2)
    )
    out.add("".join(lines), min(began, item_began), at)
    return at


def _write_main(job: _Job, out: MadeFile) -> int:
    """The steps of one rank; returns how many events they are."""
    for step in range(job.steps):
        start = EPOCH_US + step * job.step_us
        wait = 600 + step * 7 % 200
        at = start + wait
        labels = job.labels(step)
        fetch, block, transfer, forward, backward, all_reduce, optimizer = range(
            out.ids + 1, out.ids + 1 + _STEP_EVENTS
        )
        out.ids += _STEP_EVENTS
        stages = (
            ("transfer", "device", at + 10, 190, transfer, block, 2),
            ("forward", "compute", at + 210, 1500, forward, block, 2),
            ("all_reduce", "comm", at + 3210, 600, all_reduce, backward, 3),
            ("backward", "compute", at + 1720, 2100, backward, block, 2),
            ("step", "compute", at + 3830, 300, optimizer, block, 2),
        )
        text = "".join(
            event_text(ident, name, cat, out.pid, ts, dur, _HHASH, above, labels, level)
            for name, cat, ts, dur, ident, above, level in stages
        )
        counted = f'"count":"{step + 1}",{labels}'
        for ident, name, ts, dur in (
            (fetch, "fetch.iter", start, wait),
            (block, "fetch.block", at, job.step_us - wait),
        ):
            text += event_text(ident, name, "dataloader", out.pid, ts, dur, _HHASH, -1, counted, 1)
        out.add(text, start, at + 3830)
    return _STEP_EVENTS * job.steps


# --- The text of synthetic records, in members like the recorder's


EPOCH_US = 1_760_000_000_000_000  # when every synthetic job starts


class MadeFile:
    """The trace file of one process: lines in, members out; numbers its records."""

    def __init__(self, path: Path, pid: int, host: str, member_text: int) -> None:
        self.path = path
        self.pid = pid
        self.hhash = string_hash(host)
        self.ids = 0  # of the last record
        self._gz = path.suffix == ".gz"
        self._file = path.open("wb")
        self._limit = member_text
        self._parts: list[str] = []
        self._size = 0
        self._first = 0
        self._last = 0
        self.add(FIRST_LINE)
        self.meta("HH", host, self.hhash)

    def add(self, lines: str, *begins: int) -> None:
        """Add lines, with the first and the last time at which an event in them begins."""
        self._parts.append(lines)
        self._size += len(lines)
        for ts in begins:
            self._first = min(self._first, ts) if self._first else ts
            self._last = max(self._last, ts)
        if self._size >= self._limit:
            self._cut()

    def meta(self, kind: str, key: str, value: str, **more: Any) -> None:
        """Add a metadata record."""
        self.ids += 1
        self.add(metadata_line(self.ids, kind, self.pid, self.hhash, key, value, more))

    def own_event(self, name: str, ts: int, **args: Any) -> None:
        """Add `start` or `end`, the tracer's own events."""
        self.ids += 1
        full = arguments(self.hhash, -1, args, 1)
        self.add(event_line(self.ids, name, TRACER, self.pid, self.pid, ts, 0, full), ts)

    def end(self, ts: int, **facts: Any) -> None:
        """Close the trace as the recorder does."""
        self.own_event("end", ts, **{"num_events": self.ids + 1, "dropped": 0, **facts})
        self.add(LAST_LINE)

    def close(self) -> None:
        self._cut()
        self._file.close()

    def _cut(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts).encode()
        member = gzip_member(text, text.count(b"\n"), self._first, self._last) if self._gz else text
        self._file.write(member)
        self._parts.clear()
        self._size = self._first = self._last = 0
