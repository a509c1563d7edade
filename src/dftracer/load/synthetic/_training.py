"""A synthetic training job of any size: millions of lines, so they are written as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dftracer.format.records import FILE_KEY, event_text, string_hash
from dftracer.load.synthetic._lines import EPOCH_US, MadeFile

__all__ = ["Run", "training_run"]

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
