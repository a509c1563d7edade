"""The loop of the benchmark under every subject: which environments there are, and one run of one of them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import rivals

__all__ = ["HERE", "Sample", "Slow", "build", "own_library", "run", "subjects"]

HERE = Path(__file__).resolve().parent


class Slow(NamedTuple):
    """A call that took long, as the program saw it."""

    tid: int
    number: int  # of the thread's calls
    wall: int  # ns
    cpu: int
    preempted: int
    inside: int | None  # ns of it in the call itself, as the trace says


class Sample(NamedTuple):
    """One run of the loop."""

    wall: float  # ns per call
    cpu: float
    bytes: float  # of trace per event
    lost: int
    writer: float  # ns of the writer per event
    slow: tuple[Slow, ...]


class Subject(NamedTuple):
    """What the loop runs under."""

    env: dict[str, str]
    company: bool = False  # a second thread, asleep


def build(folder: Path) -> Path:
    """The loop, compiled."""
    program = folder / "loop"
    subprocess.run(["cc", "-O2", "-o", str(program), str(HERE / "loop.c"), "-lpthread"], check=True)
    return program


def own_library() -> str:
    """Our preload library."""
    done = subprocess.run(
        [sys.executable, "-m", "dftracer.preload"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _rival_library() -> str | None:
    try:
        rivals.ensure()
    except (OSError, subprocess.CalledProcessError):
        return None
    found = sorted(rivals.ENVIRONMENT.glob("lib/python*/site-packages/dftracer/lib*/libdftracer_preload.so"))
    return str(found[0]) if found else None


def _floor(folder: Path, *flags: str) -> str:
    library = folder / f"floor{len(flags)}.so"
    source = str(HERE / "floor.c")
    command = ["cc", "-O2", "-w", "-shared", "-fPIC", *flags, "-o", str(library), source, "-ldl"]
    subprocess.run(command, check=True)
    return str(library)


def subjects(data: str, rival: bool) -> dict[str, Subject]:
    """By name, those without a tracer first. `data` holds the traced file, and gets what is compiled here."""
    common = {"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "PRELOAD", "DFTRACER_INC_METADATA": "1"}
    ours = {**common, "LD_PRELOAD": own_library()}
    found = {
        "untraced": Subject({}),
        "untraced, second thread": Subject({}, company=True),
        "empty wrapper": Subject({"LD_PRELOAD": _floor(Path(data))}, company=True),
        "two clock readings": Subject({"LD_PRELOAD": _floor(Path(data), "-DCLOCK")}, company=True),
        "ours": Subject({**ours, "DFTRACER_DATA_DIR": data}),
        "ours, path not matching": Subject({**ours, "DFTRACER_DATA_DIR": "/nowhere"}),
    }
    library = _rival_library() if rival else None
    if library:
        theirs = {"LD_PRELOAD": library, "DFTRACER_DATA_DIR": data, "DFTRACER_TRACE_COMPRESSION": "1"}
        found["rival"] = Subject({**common, **theirs})
    return found


def _lines(traces: Path) -> Iterator[dict[str, Any]]:
    for file in traces.iterdir():
        opener = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rt", errors="replace") as lines:
            for line in lines:
                text = line.strip().rstrip(",")
                if text.startswith("{"):
                    yield json.loads(text)


def _slow_calls(text: str, durations: dict[int, list[int]]) -> Iterator[Slow]:
    for line in text.splitlines():
        tid, number, wall, cpu, preempted = map(int, line.split())
        known = durations.get(tid, [])
        inside = known[number] * 1000 if number < len(known) else None
        yield Slow(tid, number, wall, cpu, preempted, inside)


def run(
    program: Path, subject: Subject, file: Path, rounds: int, threads: int, *, timed: bool = False
) -> Sample:
    """One run of one subject, its trace weighed and thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        done = subprocess.run(
            [program, file, str(rounds), str(threads), str(int(timed)), str(int(subject.company))],
            env={**clean, **subject.env, "DFTRACER_LOG_FILE": f"{folder}/t"},
            check=True,
            capture_output=True,
            text=True,
        )
        first, _, rest = done.stdout.partition("\n")
        wall, calls, cpu = map(int, first.split())
        size = sum(f.stat().st_size for f in Path(folder).iterdir())
        events = lost = writer = 0
        durations: dict[int, list[int]] = {}
        for record in _lines(Path(folder)):
            if record.get("cat") == "POSIX":
                events += 1
                durations.setdefault(record["tid"], []).append(record["dur"])
            elif record.get("name") == "end":
                lost += record["args"].get("dropped", 0)
                writer += record["args"].get("writer_cpu_us", 0)
        slow = tuple(_slow_calls(rest, durations))
    per_thread = calls / threads
    each = max(events, 1)
    return Sample(wall / per_thread, cpu / per_thread, size / each, lost, writer * 1000 / each, slow)
