"""python -m bench.io [--rounds N] [--calls N]: open + pread 4 KiB + close on tmpfs, all subjects in turn.

CPU time of the calling thread stands beside wall time: on a busy machine only the former is the tracer's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import rivals

HERE = Path(__file__).resolve().parent


class Sample(NamedTuple):
    """One run of the loop."""

    wall: float  # ns per call
    cpu: float
    longest: float  # ns, of one round of three calls
    bytes: float  # of trace per event
    lost: int


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


def rival_library() -> str | None:
    """The rival's, if it can be installed."""
    try:
        rivals.ensure()
    except (OSError, subprocess.CalledProcessError):
        return None
    found = sorted(rivals.ENVIRONMENT.glob("lib/python*/site-packages/dftracer/lib*/libdftracer_preload.so"))
    return str(found[0]) if found else None


def subjects(data: str) -> dict[str, dict[str, str]]:
    """Environments by name."""
    common = {"DFTRACER_ENABLE": "1", "DFTRACER_INIT": "PRELOAD", "DFTRACER_INC_METADATA": "1"}
    found = {
        "untraced": {},
        "ours": {**common, "LD_PRELOAD": own_library(), "DFTRACER_DATA_DIR": data},
        "ours, path not matching": {**common, "LD_PRELOAD": own_library(), "DFTRACER_DATA_DIR": "/nowhere"},
    }
    rival = rival_library()
    if rival:
        found["rival"] = {
            **common,
            "LD_PRELOAD": rival,
            "DFTRACER_DATA_DIR": data,
            "DFTRACER_TRACE_COMPRESSION": "1",
        }
    return found


def _events(traces: Path) -> tuple[int, int]:
    events = lost = 0
    for file in traces.iterdir():
        opener = gzip.open if file.suffix == ".gz" else open
        with opener(file, "rt", errors="replace") as lines:
            for line in lines:
                if '"pread' in line:
                    events += 3
                if '"name":"end"' in line and '"dropped"' in line:
                    lost += json.loads(line)["args"]["dropped"]
    return events, lost


def run(program: Path, env: dict[str, str], file: Path, rounds: int, threads: int, timed: bool) -> Sample:
    """One run of one subject, its trace weighed and thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        done = subprocess.run(
            [program, file, str(rounds), str(threads), str(int(timed))],
            env={**clean, **env, "DFTRACER_LOG_FILE": f"{folder}/t"},
            check=True,
            capture_output=True,
            text=True,
        )
        wall, calls, longest, cpu = map(int, done.stdout.split())
        size = sum(f.stat().st_size for f in Path(folder).iterdir())
        events, lost = _events(Path(folder))
    per_thread = calls / threads
    return Sample(wall / per_thread, cpu / per_thread, longest, size / events if events else 0.0, lost)


def report(name: str, samples: Sequence[Sample], base: Sequence[Sample], threads: int) -> str:
    """One line of the table."""
    wall, cpu = (statistics.median(getattr(s, f) for s in samples) for f in ("wall", "cpu"))
    wall0, cpu0 = (statistics.median(getattr(s, f) for s in base) for f in ("wall", "cpu"))
    return (
        f"{name:26} {threads} thread(s)  wall {wall:8.0f} ns/call ({wall / wall0:5.2f}x)  "
        f"cpu {cpu:7.0f} ns/call (+{cpu - cpu0:6.0f}, {cpu / cpu0:5.2f}x)  "
        f"{statistics.median(s.bytes for s in samples):5.1f} B/event  lost {sum(s.lost for s in samples)}  "
        f"longest round {max(s.longest for s in samples) / 1e6:.2f} ms"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.io", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=300_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        program = build(Path(folder))
        file = Path(folder) / "data.bin"
        file.write_bytes(bytes(65536))
        todo = subjects(folder)
        for threads in (1, 2):
            samples: dict[str, list[Sample]] = {name: [] for name in todo}
            for turn in range(given.rounds):
                for name, env in todo.items():
                    samples[name].append(
                        run(program, env, file, given.calls // 3, threads, timed=turn % 2 == 1)
                    )
            for name in todo:
                print(report(name, samples[name], samples["untraced"], threads), flush=True)


if __name__ == "__main__":
    main()
