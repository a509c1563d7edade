"""python -m bench.io {loop,stalls,patch,cuda,shell}: what interception costs.

loop    open + pread 4 KiB + close on tmpfs, all subjects in turn: the best turn of each, which other work on
        the machine disturbs least, and the medians of the turns' differences to the loops without a tracer
stalls  every call measured by itself: the longest ones, and what of them was not the call
patch   `initialize_log` in a process that has imported torch
cuda    a call of the CUDA runtime that is too short for a record, beside the same call not replaced
shell   a loop of 500 `cat`: each command untraced, with an empty library preloaded, and traced
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.io.loop import HERE, Sample, build, own_library, run, subjects

_PATCH = """
import sys, time
import torch
from dftracer.python import dftracer
begin = time.perf_counter()
log = dftracer.initialize_log(sys.argv[1], "/nowhere", -1)
print(1e3 * (time.perf_counter() - begin))
log.finalize()
"""


def _median(values: list[float]) -> float:
    return statistics.median(values)


def _paired(samples: list[Sample], base: list[Sample], of: Callable[[Sample, Sample], float]) -> float:
    return _median([of(mine, theirs) for mine, theirs in zip(samples, base, strict=True)])


def report(name: str, samples: list[Sample], bases: dict[str, list[Sample]], threads: int) -> str:
    """One line of the table."""
    best = min(s.wall for s in samples)
    text = f"{name:24} {threads} thr  best {best:5.0f} ns/call, cpu {_median([s.cpu for s in samples]):5.0f};"
    for base in bases.values():
        added = _paired(samples, base, lambda a, b: a.cpu - b.cpu)
        ratio = _paired(samples, base, lambda a, b: a.wall / b.wall)
        text += f"  {added:+6.0f} ns, wall {ratio:5.2f}x"
    events = f"{_median([s.bytes for s in samples]):4.1f} B/event  lost {sum(s.lost for s in samples)}"
    return f"{text}  {events}  writer {_median([s.writer for s in samples]):4.0f} ns/event"


def measure_loop(program: Path, file: Path, data: str, given: argparse.Namespace) -> None:
    """Print the table: over the loop untraced, and over it in a process with a second thread."""
    todo = subjects(data, given.rival)
    for threads in given.threads:
        samples: dict[str, list[Sample]] = {name: [] for name in todo}
        for turn in range(given.turns):
            names = list(todo)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                samples[name].append(run(program, todo[name], file, given.calls // 3, threads))
        bases = {name: samples[name] for name in todo if name.startswith("untraced")}
        for name in todo:
            print(report(name, samples[name], bases, threads), flush=True)


def measure_stalls(program: Path, file: Path, data: str, given: argparse.Namespace) -> None:
    """Print the longest calls, and which of them the scheduler has to answer for."""
    todo = subjects(data, given.rival)
    for threads in given.threads:
        for name in ("untraced, second thread", "ours", "rival"):
            if name not in todo:
                continue
            slow = [
                call
                for _ in range(given.turns)
                for call in run(program, todo[name], file, given.calls // 3, threads, timed=True).slow
            ]
            over = [c for c in slow if c.wall >= 1_000_000]
            own = [c.wall - (c.inside or 0) for c in slow if not c.preempted]
            calls = given.turns * (given.calls // 3 + 1000) * 3 * threads
            print(
                f"{name:24} {threads} thr  {calls} calls: {len(over)} of 1 ms and more, of them "
                f"{sum(not c.preempted for c in over)} not preempted; longest "
                f"{max((c.wall for c in slow), default=0) / 1e6:.2f} ms, "
                f"not preempted and less the call itself {max(own, default=0) / 1e6:.2f} ms",
                flush=True,
            )


def measure_patch(given: argparse.Namespace) -> None:
    """Print how long `initialize_log` takes in a process with torch."""
    with tempfile.TemporaryDirectory() as folder:
        took = [
            float(
                subprocess.run(
                    [sys.executable, "-c", _PATCH, f"{folder}/{i}"],
                    check=True,
                    capture_output=True,
                    text=True,
                    env={"DFTRACER_ENABLE": "1", "PATH": "/usr/bin:/bin"},
                ).stdout
            )
            for i in range(given.turns)
        ]
    spread = f"from {min(took):.1f} to {max(took):.1f}"
    print(f"initialize_log with torch loaded: median {_median(took):.1f} ms, {spread}")


def measure_cuda(given: argparse.Namespace) -> None:
    """Print what is added to a call: the turns of one process, replaced and not."""
    with tempfile.TemporaryDirectory() as folder:
        source, runtime, program = HERE / "cuda.c", Path(folder) / "libcudart.so", Path(folder) / "cuda"
        build = ["cc", "-O2", str(source)]
        flags = ["-shared", "-fPIC", "-DRUNTIME", "-Wl,-soname,libcudart.so"]
        subprocess.run([*build, *flags, "-o", str(runtime)], check=True)
        link = [str(runtime), f"-Wl,-rpath,{folder}", "-ldl"]
        subprocess.run([*build, "-o", str(program), *link], check=True)
        traced = {
            "LD_PRELOAD": own_library(),
            "DFTRACER_INIT": "PRELOAD",
            "DFTRACER_DISABLE_IO": "1",
            "DFTRACER_LOG_FILE": f"{folder}/t",
        }
        for name, env in {"untraced": {}, "traced": traced}.items():
            command = [str(program), str(given.calls), str(given.turns)]
            text = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
            turns = [[float(word) for word in line.split()] for line in text.splitlines()[1:]]
            added = sorted(replaced - plain for replaced, plain, _ in turns)
            middle = f"{_median(added):.1f} ns added to a call (from {added[0]:.1f} to {added[-1]:.1f})"
            clock = _median([twice for *_, twice in turns])
            print(f"{name:10} {middle}; two readings of the clock alone take {clock:.1f} ns")


_SHELL = "i=0; while [ $i -lt {n} ]; do cat {file} > /dev/null; i=$((i+1)); done"


def _shell_loop(commands: int, file: Path, env: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU time of each command of a loop, in ms."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(["sh", "-c", _SHELL.format(n=commands, file=file)], env=env, check=True)
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1e3 * (ended - began) / commands, 1e3 * cpu / commands


def measure_shell(given: argparse.Namespace) -> None:
    """Print what a short command costs, and the medians of the differences to the others of the same turn."""
    commands = 500
    with tempfile.TemporaryDirectory() as folder:
        file, empty = Path(folder) / "small", Path(folder) / "empty.so"
        file.write_bytes(b"small\n")
        flags = ["-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(empty)]
        subprocess.run(["cc", *flags], check=True)
        path = {"PATH": "/usr/bin:/bin"}
        traces = f"{folder}/traces"
        todo = {
            "untraced": path,
            "empty library": {**path, "LD_PRELOAD": str(empty)},
            "traced": {
                **path,
                "LD_PRELOAD": own_library(),
                "DFTRACER_ENABLE": "1",
                "DFTRACER_INIT": "PRELOAD",
                "DFTRACER_LOG_FILE": f"{traces}/t",
            },
        }
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in todo}
        for _ in range(given.turns):
            for name, env in todo.items():
                Path(traces).mkdir()
                took[name].append(_shell_loop(commands, file, env))
                shutil.rmtree(traces)
    for name, samples in took.items():
        best, cpu = min(wall for wall, _ in samples), _median([cpu for _, cpu in samples])
        text = f"{name:14} best {best:5.2f} ms a command, cpu {cpu:5.2f};"
        for base in ("untraced", "empty library"):
            wall = _median([mine[0] - its[0] for mine, its in zip(samples, took[base], strict=True)])
            cpu = _median([mine[1] - its[1] for mine, its in zip(samples, took[base], strict=True)])
            ratio = _median([mine[0] / its[0] for mine, its in zip(samples, took[base], strict=True)])
            text += f"  {wall:+5.2f} ms ({cpu:+5.2f} cpu), {ratio:4.2f}x {base};"
        print(text.rstrip(";"), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.io", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=("loop", "stalls", "patch", "cuda", "shell"), nargs="?", default="loop"
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--calls", type=int, default=150_000, help="per thread and turn")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--no-rival", dest="rival", action="store_false")
    given = parser.parse_args()
    if given.what == "patch":
        measure_patch(given)
        return
    if given.what == "cuda":
        measure_cuda(given)
        return
    if given.what == "shell":
        measure_shell(given)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        program = build(Path(folder))
        file = Path(folder) / "data.bin"
        file.write_bytes(bytes(65536))
        measure = measure_loop if given.what == "loop" else measure_stalls
        measure(program, file, folder, given)


if __name__ == "__main__":
    main()
