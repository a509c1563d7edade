"""Instructions per operation, counted by callgrind on the recording thread alone.

One traced program runs every case twice with different lengths; a call of `getloadavg`, which nothing else
makes, cuts the count into sections. The difference of two lengths drops what does not grow with them, and
callgrind keeps threads apart, so the writer thread is not in the numbers.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["ROOT", "Unavailable", "begin_counting", "count", "find_valgrind", "flavour", "sections"]

ROOT = Path(__file__).resolve().parent.parent

TRACED = {
    "with_node": "bench.subjects.span:with_node",
    "with_arguments": "bench.subjects.span:with_arguments",
    "node_decorator": "bench.subjects.decorator:node_decorator",
    "logged_with_arguments": "bench.subjects.decorator:logged_with_arguments",
    "fetch_iter": "bench.subjects.loop:fetch_iter",
    "update_tree": "bench.subjects.update:update_tree",
}
OFF = {"off_with_node": "bench.subjects.off:with_node"}

_LENGTHS = (100, 600)
_WARM_UP = 50


class Unavailable(RuntimeError):
    """Callgrind cannot be run here; the message says why."""


def find_valgrind() -> str:
    """Where it is."""
    found = shutil.which("valgrind")
    if found is None or shutil.which("callgrind_control") is None:
        raise Unavailable("valgrind is not installed")
    return found


def begin_counting() -> None:
    """In a program started with `--instr-atstart=no`: what it did so far took a tenth of what it takes counted."""
    subprocess.run(
        ["callgrind_control", "--instr=on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL
    )


def flavour() -> str:
    """Counts hold for one interpreter and one architecture."""
    return f"{sys.implementation.cache_tag}-{platform.machine()}"


def _program(cases: dict[str, str], *, traced: bool) -> list[str]:
    """Runs under callgrind; the label of every section in the order of the marks that close them."""
    from bench import tracing  # noqa: PLC0415

    trace = tracing.start(pinned=False) if traced else None
    settle = trace.settle if trace else (lambda: None)
    labels = []
    made = {}
    for name, case in cases.items():
        module, _, factory = case.partition(":")
        made[name] = getattr(importlib.import_module(module), factory)()
    begin_counting()
    for name, loops in made.items():
        for kind, loop in {"op": loops.op, "plain": loops.plain, **loops.others}.items():
            loop(_WARM_UP)
            for length in _LENGTHS:
                settle()
                os.getloadavg()
                loop(length)
                os.getloadavg()
                labels += ["", f"{name}/{kind}/{length}"]
    if trace:
        trace.finish()
    return labels


def sections(directory: Path, labels: list[str]) -> dict[str, int]:
    """Instructions of the main thread by label; a section without one is not wanted."""
    found = {}
    for position, label in enumerate(labels, start=1):
        dump = directory / f"callgrind.{position}-01"
        if not dump.is_file():
            raise Unavailable("callgrind wrote no dump for a section: getloadavg was not recognised")
        if label:
            total = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
            if total is None:
                raise Unavailable(f"no total in {dump.name}")
            found[label] = int(total[1])
    return found


def _measure(python: Path, cases: dict[str, str], *, traced: bool) -> dict[str, dict[str, float]]:
    valgrind = find_valgrind()
    fixed_layout = [setarch, "-R"] if (setarch := shutil.which("setarch")) else []
    with tempfile.TemporaryDirectory(prefix="instructions-") as name:
        directory = Path(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")}
        environment |= {
            "DFTRACER_ENABLE": "1" if traced else "0",
            "DFTRACER_DISABLE_IO": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(ROOT),
            "BENCH_DIR": name,
        }
        command = [
            *fixed_layout,
            valgrind,
            "--quiet",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            "--fair-sched=try",
            "--dump-before=getloadavg",
            f"--callgrind-out-file={directory / 'callgrind'}",
            str(python),
            "-m",
            "bench.instructions",
            json.dumps(cases),
            json.dumps(traced),
        ]
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, check=False, timeout=240
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
        found = sections(directory, json.loads(done.stdout.splitlines()[-1]))
    short, long = _LENGTHS
    result: dict[str, dict[str, float]] = {}
    for label in found:
        case, kind, length = label.split("/")
        if int(length) == long:
            grown = found[label] - found[f"{case}/{kind}/{short}"]
            result.setdefault(case, {})[kind] = grown / (long - short)
    return result


def count(python: Path) -> dict[str, dict[str, float]]:
    """Per case: instructions of `op`, `plain` and the yardsticks, each per turn of its loop."""
    return _measure(python, TRACED, traced=True) | _measure(python, OFF, traced=False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(_program(json.loads(sys.argv[1]), traced=json.loads(sys.argv[2]))) + "\n")
    else:
        for case, kinds in count(Path(sys.executable)).items():
            shown = "  ".join(f"{kind} {value - kinds['plain']:.0f}" for kind, value in kinds.items())
            sys.stdout.write(f"{case}: over plain: {shown}\n")
