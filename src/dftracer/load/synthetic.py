"""Made-up traces whose truth is known: for tests, for benchmarks, and for trying out an analysis.

`Process` writes the spans it is given, exactly; `training_run` builds a whole job from them by the million.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer.format.hashes import string_hash
from dftracer.format.members import gzip_member

__all__ = ["Process", "Run", "training_run"]

_EPOCH_US = 1_760_000_000_000_000


class _MemberFile:
    """Text in, members out."""

    def __init__(self, path: Path, member_text: int = 1 << 20) -> None:
        self.path = path
        self._gz = path.suffix == ".gz"
        self._file = path.open("wb")
        self._limit = member_text
        self._parts: list[str] = []
        self._size = 0
        self._first = 0
        self._last = 0

    def add(self, line: str, *begins: int) -> None:
        """Add lines, with the first and the last time at which an event in them begins."""
        self._parts.append(line)
        self._size += len(line)
        for ts in begins:
            self._first = min(self._first, ts) if self._first else ts
            self._last = max(self._last, ts)
        if self._size >= self._limit:
            self.cut()

    def cut(self) -> None:
        if not self._parts:
            return
        text = "".join(self._parts).encode()
        member = gzip_member(text, text.count(b"\n"), self._first, self._last) if self._gz else text
        self._file.write(member)
        self._parts.clear()
        self._size = self._first = self._last = 0

    def close(self) -> None:
        self.cut()
        self._file.close()


@dataclass
class _Span:
    name: str
    cat: str
    start: int
    dur: int
    tid: int
    args: dict[str, Any]


@dataclass
class Process:
    """One process of a made-up job. Times are microseconds from the start of the job."""

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

    def span(self, cat: str, name: str, start: int, dur: int, tid: int | None = None, **args: Any) -> None:
        """Record a span; nesting follows from the times."""
        self.spans.append(_Span(name, cat, start, dur, self.pid if tid is None else tid, args))

    def step(self, count: int, start: int, wait: int, body: int, **args: Any) -> int:
        """One item of `ai.dataloader.fetch.iter`: waiting, then the body. Returns its end."""
        self.span("dataloader", "fetch.iter", start, wait, count=str(count), **args)
        self.span("dataloader", "fetch.block", start + wait, body, count=str(count), **args)
        return start + wait + body

    def io(self, name: str, start: int, dur: int, path: str, cat: str = "POSIX", **args: Any) -> None:
        """Record an I/O call on `path`."""
        self.span(cat, name, start, dur, fhash=path, **args)

    def write(  # noqa: PLR0915 - the records of a file, top to bottom
        self, directory: Path, name: str | None = None, gz: bool = True, member_text: int = 1 << 20
    ) -> Path:
        """Write the trace file of this process and return its path."""
        stem = name or f"trace-{self.pid:016x}-app"
        path = Path(directory) / f"{stem}.pfw{'.gz' if gz else ''}"
        out = _MemberFile(path, member_text)
        hhash = string_hash(self.host)
        ids = 0
        pid = self.pid

        def meta(kind: str, key: str, value: str) -> None:
            nonlocal ids
            ids += 1
            args = {"hhash": hhash, "name": key, "value": value}
            record = {
                "id": ids,
                "name": kind,
                "cat": "dftracer",
                "pid": pid,
                "tid": pid,
                "ph": "M",
                "args": args,
            }
            out.add(_dump(record))

        out.add("[\n")
        meta("HH", self.host, hhash)
        if self.rank is not None:
            meta("PR", "rank", str(self.rank))
        if self.world_size is not None:
            meta("PR", "world_size", str(self.world_size))
        if self.run is not None:
            ids += 1
            args = {"hhash": hhash, "name": "run", **self.run}
            head = {"id": ids, "name": "run", "cat": "dftracer", "pid": pid, "tid": pid}
            out.add(_dump({**head, "ph": "M", "args": args}))
        for kind, key, value in self.metadata:
            meta(kind, key, value)
        first = _EPOCH_US + self.start
        ids += 1
        start_args = {"hhash": hhash, "p_idx": -1, "version": "synthetic", "ppid": self.ppid, "level": 1}
        out.add(_event_line(ids, "start", "dftracer", pid, pid, first, 0, start_args), first)

        order = sorted(range(len(self.spans)), key=lambda i: (self.spans[i].start, -self.spans[i].dur, i))
        stacks: dict[int, list[tuple[int, int]]] = {}
        placed: list[tuple[int, int, str, int]] = []
        seen: set[str] = set()
        for i in order:
            s = self.spans[i]
            stack = stacks.setdefault(s.tid, [])
            while stack and stack[-1][0] <= s.start and not (s.dur == 0 and stack[-1][0] == s.start):
                stack.pop()
            ids += 1
            args = dict(s.args)
            if "fhash" in args:
                file = args["fhash"]
                args["fhash"] = string_hash(file)
                if file not in seen:
                    seen.add(file)
                    meta("FH", file, args["fhash"])
                    ids += 1
            full = {"hhash": hhash, "p_idx": stack[-1][1] if stack else -1, **args, "level": len(stack) + 1}
            line = _event_line(ids, s.name, s.cat, pid, s.tid, _EPOCH_US + s.start, s.dur, full)
            stack.append((s.start + s.dur, ids))
            placed.append((s.start + s.dur, -ids, line, s.start))
        for _, _, line, begin in sorted(placed):
            out.add(line, _EPOCH_US + begin)
        if self.end is not None:
            last = max((s.start + s.dur for s in self.spans), default=self.start)
            ids += 1
            end_args = {"hhash": hhash, "p_idx": -1, "num_events": ids, "dropped": 0, **self.end, "level": 1}
            out.add(
                _event_line(ids, "end", "dftracer", pid, pid, _EPOCH_US + last, 0, end_args), _EPOCH_US + last
            )
            out.add("]\n")
        out.close()
        return path


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"


def _event_line(
    ident: int, name: str, cat: str, pid: int, tid: int, ts: int, dur: int, args: dict[str, Any]
) -> str:
    return _dump(
        {
            "id": ident,
            "name": name,
            "cat": cat,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "dur": dur,
            "ph": "X",
            "args": args,
        }
    )


@dataclass(frozen=True)
class Run:
    """What `training_run` wrote, and the truth about it."""

    directory: Path
    files: list[Path]
    events: int
    steps: int
    ranks: int
    workers: int


def training_run(  # noqa: PLR0915 - one flat loop: it writes lines by the million
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
    per_item = reads + 4  # item, open, reads, close, preprocess
    per_step = 8 + batch * per_item + 1
    steps = max(1, events // (per_step * ranks))
    written: list[Path] = []
    total = 0
    hhash = string_hash("node0")
    paths = [f"/data/train/part-{i:05d}.npy" for i in range(files)]
    hashes = [string_hash(p) for p in paths]
    tail = ',"level":'
    for rank in range(ranks):
        main_pid = 1000 + rank * 100
        step_us = 5_000 + batch * 900 // max(1, workers)
        for w in range(workers):
            pid = main_pid + 1 + w
            path = directory / f"trace-{pid:016x}-fork.pfw{'.gz' if gz else ''}"
            out = _MemberFile(path, member_text)
            ids = _preamble(out, pid, main_pid, rank, ranks, hhash, paths, hashes)
            common = f'"pid":{pid},"tid":{pid},"ts":'
            count = 0
            for step in range(w, steps, workers):
                t = _EPOCH_US + step * step_us
                epoch = step // steps_per_epoch
                batch_id = ids + 1
                ids += 1
                at = t
                for b in range(batch):
                    f = (step * batch + b) * 7919 % files
                    item = ids + 1
                    ids += per_item
                    began = at
                    a = f',"ph":"X","args":{{"hhash":"{hhash}","p_idx":{item},"fhash":"{hashes[f]}"'
                    d = 20 + f % 7
                    lines = [
                        f'{{"id":{item + 1},"name":"open","cat":"POSIX",{common}{at + 2},"dur":{d}{a},'
                        f'"flags":0,"ret":{5 + b}{tail}3}}}}\n'
                    ]
                    at += d + 3
                    for r in range(reads):
                        d = 40 + (f * 31 + r * 17 + step) % 60
                        lines.append(
                            f'{{"id":{item + 2 + r},"name":"read","cat":"POSIX",{common}{at},"dur":{d}{a},'
                            f'"count":131072,"ret":131072{tail}3}}}}\n'
                        )
                        at += d + 1
                    lines.append(
                        f'{{"id":{item + 2 + reads},"name":"close","cat":"POSIX",{common}{at},"dur":3{a},'
                        f'"ret":0{tail}3}}}}\n'
                    )
                    p = 200 + (f * 13 + step) % 90
                    x = f',"ph":"X","args":{{"hhash":"{hhash}","p_idx":'
                    lines.append(
                        f'{{"id":{item + 3 + reads},"name":"preprocess","cat":"data",{common}{at + 4},'
                        f'"dur":{p}{x}'
                        f'{item},"epoch":{epoch},"step":{step}{tail}3}}}}\n'
                    )
                    at += 4 + p
                    lines.append(
                        f'{{"id":{item},"name":"item","cat":"data",{common}{at - p - 400},"dur":{p + 400}{x}'
                        f'{batch_id},"epoch":{epoch},"step":{step},"image_idx":{f}{tail}2}}}}\n'
                    )
                    out.add("".join(lines), min(began, at - p - 400), at)
                    count += per_item
                out.add(
                    f'{{"id":{batch_id},"name":"preprocess.collate","cat":"data",{common}{at},"dur":150{x}-1,'
                    f'"epoch":{epoch},"step":{step}{tail}1}}}}\n',
                    at,
                )
                count += 1
            total += count + _finish(out, ids, pid, hhash, _EPOCH_US + steps * step_us)
            written.append(path)
        path = directory / f"trace-{main_pid:016x}-app.pfw{'.gz' if gz else ''}"
        out = _MemberFile(path, member_text)
        ids = _preamble(out, main_pid, 1, rank, ranks, hhash, [], [])
        common = f'"pid":{main_pid},"tid":{main_pid},"ts":'
        count = 0
        for step in range(steps):
            epoch = step // steps_per_epoch
            t = _EPOCH_US + step * step_us
            wait = 600 + step * 7 % 200
            x = f',"ph":"X","args":{{"hhash":"{hhash}","p_idx":'
            e = f',"epoch":{epoch},"step":{step}'
            block = ids + 2
            parts: list[tuple[str, str, int, int, int, int, int]] = []
            at = t + wait
            parts.append(("transfer", "device", at + 10, 190, ids + 3, block, 2))
            parts.append(("forward", "compute", at + 210, 1500, ids + 4, block, 2))
            parts.append(("all_reduce", "comm", at + 3210, 600, ids + 6, ids + 5, 3))
            parts.append(("backward", "compute", at + 1720, 2100, ids + 5, block, 2))
            parts.append(("step", "compute", at + 3830, 300, ids + 7, block, 2))
            text = "".join(
                f'{{"id":{i},"name":"{n}","cat":"{c}",{common}{ts},"dur":{d}{x}{up}{e}{tail}{lv}}}}}\n'
                for n, c, ts, d, i, up, lv in parts
            )
            text += (
                f'{{"id":{ids + 1},"name":"fetch.iter","cat":"dataloader",{common}{t},"dur":{wait}{x}-1'
                f',"count":"{step + 1}"{e}{tail}1}}}}\n'
                f'{{"id":{block},"name":"fetch.block","cat":"dataloader",{common}{at},'
                f'"dur":{step_us - wait}{x}-1'
                f',"count":"{step + 1}"{e}{tail}1}}}}\n'
            )
            ids += 7
            count += 7
            out.add(text, t, at + 3830)
        total += count + _finish(out, ids, main_pid, hhash, _EPOCH_US + steps * step_us)
        written.append(path)
    return Run(directory, written, total, steps, ranks, workers)


def _preamble(
    out: _MemberFile,
    pid: int,
    ppid: int,
    rank: int,
    world: int,
    hhash: str,
    paths: Iterable[str],
    hashes: Iterable[str],
) -> int:
    out.add("[\n")
    ids = 0
    facts = [("HH", "node0", hhash), ("PR", "rank", str(rank)), ("PR", "world_size", str(world))]
    for kind, key, value in [*facts, *(("FH", p, h) for p, h in zip(paths, hashes, strict=True))]:
        ids += 1
        args = {"hhash": hhash, "name": key, "value": value}
        out.add(
            _dump(
                {"id": ids, "name": kind, "cat": "dftracer", "pid": pid, "tid": pid, "ph": "M", "args": args}
            )
        )
    ids += 1
    start_args = {"hhash": hhash, "p_idx": -1, "version": "synthetic", "ppid": ppid, "level": 1}
    out.add(_event_line(ids, "start", "dftracer", pid, pid, _EPOCH_US, 0, start_args), _EPOCH_US)
    return ids


def _finish(out: _MemberFile, ids: int, pid: int, hhash: str, ts: int) -> int:
    args = {"hhash": hhash, "p_idx": -1, "num_events": ids + 1, "dropped": 0, "level": 1}
    out.add(_event_line(ids + 1, "end", "dftracer", pid, pid, ts, 0, args), ts)
    out.add("]\n")
    out.close()
    return 2
