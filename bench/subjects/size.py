"""Bytes per event in the compressed file, the same events written by both.

`log_event` takes times from the caller, so both tracers are handed identical events: once all alike, once
a synthetic training run with the names, nesting, spread of durations and arguments of a real one.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import trace_files, tracing
from bench.results import Goal, Row
from bench.rounds import Bench, environment

__all__ = ["rows", "training_run"]

_EPOCH_US = 1_753_123_213_646_764


class Event(NamedTuple):
    depth: int
    name: str
    cat: str
    ts: int
    dur: int
    ints: dict[str, int]
    strings: dict[str, str]


def alike(events: int) -> Iterator[Event]:
    args = {"epoch": 1, "step": 100}
    for index in range(events):
        yield Event(1, "forward", "compute", _EPOCH_US + 10 * index, 8, args, {})


def training_run(events: int) -> Iterator[Event]:
    """Batches of item reads with file names and sizes, then transfer, forward, backward, step."""
    draw = random.Random(20261115)
    now = _EPOCH_US
    written = 0
    step = 0

    def lasting(median: float) -> int:
        return max(1, int(median * draw.lognormvariate(0.0, 0.35)))

    while written < events:
        epoch, within = divmod(step, 200)
        where = {"epoch": epoch, "step": within}
        batch_start = now
        for item in range(8):
            start = now
            now += lasting(40)
            read = lasting(350)
            strings = {"path": f"/data/train/img_{draw.randrange(50_000)}.npz"}
            size = {"image_size": draw.randrange(60_000, 180_000), "image_idx": within * 8 + item}
            yield Event(3, "data.io.read", "data", now, read, where | size, strings)
            now += read + lasting(15)
            yield Event(2, "item", "data", start, now - start, where | {"image_idx": within * 8 + item}, {})
            start = now
            now += lasting(220)
            yield Event(2, "preprocess", "data", start, now - start, where, {})
            written += 3
        count = {"count": within + 1}
        yield Event(1, "fetch.iter", "dataloader", batch_start, now - batch_start, where | count, {})
        block = now
        for name, cat, median in (
            ("transfer", "device", 180),
            ("forward", "compute", 5200),
            ("backward", "compute", 9800),
            ("all_reduce", "comm", 1300),
            ("step", "compute", 900),
        ):
            start = now
            now += lasting(median)
            yield Event(2, name, cat, start, now - start, where, {})
            now += lasting(20)
        yield Event(1, "fetch.block", "dataloader", block, now - block, where | count, {})
        written += 7
        step += 1


_KINDS = {"alike": alike, "training": training_run}


def _replay(kind: str, events: int, settle: Callable[[], object]) -> int:
    """Events come in the order of their ends; a level is entered when its first child is."""
    from dftracer.python import dftracer  # noqa: PLC0415

    log = dftracer.get_instance()
    depth = written = 0
    for event in _KINDS[kind](events):
        while depth < event.depth:
            log.enter_event()
            depth += 1
        log.log_event(
            event.name,
            event.cat,
            event.ts,
            event.dur,
            int_args={key: (0, value) for key, value in event.ints.items()},
            string_args={key: (0, value) for key, value in event.strings.items()},
        )
        log.exit_event()
        depth -= 1
        written += 1
        if written % 2000 == 0:
            settle()
    return written


def _spans(events: int, settle: Callable[[], object]) -> int:
    from dftracer.python import ai  # noqa: PLC0415

    ai.update(epoch=1, step=100)
    node = ai.compute.forward
    for index in range(events):
        with node:
            pass
        if index % 2000 == 0:
            settle()
    return events


def worker(kind: str, events: int) -> dict[str, Any]:
    trace = tracing.start(pinned=False)
    written = _spans(events, trace.settle) if kind == "spans" else _replay(kind, events, trace.settle)
    files = trace.finish()
    name = "item" if kind == "training" else "forward"
    result = {"events": written, "bytes": trace_files.size(files), "named": trace_files.count(files, name)}
    for directory in {file.parent for file in files}:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def _run(bench: Bench, python: Path, kind: str, events: int) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", "bench.subjects.size", kind, str(events)],
        env=environment(bench, traced=True),
        cwd=bench.directory,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows(bench: Bench) -> list[Row]:
    events = 20_000 if bench.quick else 200_000
    result = []
    for kind, what in (
        ("alike", "bytes per event, all events alike"),
        ("training", "bytes per event, a training run"),
        ("spans", "bytes per event, `with ai.compute.forward:` in a loop, each with its own times"),
    ):
        runs = {who: _run(bench, python, kind, events) for who, python in bench.interpreters().items()}
        ours = runs["ours"]["bytes"] / runs["ours"]["events"]
        row = Row("size", what, "bytes/event", ours, detail=runs)
        if "rival" in runs:
            if runs["rival"]["named"] != runs["ours"]["named"]:
                row.notes.append("the files do not hold the same number of events")
            row.rival = runs["rival"]["bytes"] / runs["rival"]["events"]
            row.ratio = row.rival / ours
            row.goals.append(Goal("at most the rival's, though ours carry parent and level", ours, row.rival))
        result.append(row)
    return result


if __name__ == "__main__":
    sys.stdout.write(json.dumps(worker(sys.argv[1], int(sys.argv[2]))) + "\n")
