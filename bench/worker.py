"""A process that measures one case, a round each time it is asked; ours and the rival's are alike.

Started as `python -m bench.worker MODULE:FACTORY`, it answers every line on standard input with one line
of JSON and closes the trace at the end of the input. It runs in both environments: standard library only.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import machine, trace_files, tracing

__all__ = ["Loops", "main"]

Loop = Callable[[int], object]

# A ring must never fill while we look: between repeats the writer catches up, untimed.
_MOST_PER_REPEAT = 8_000
_REPEAT_NS = 3_000_000


@dataclass
class Loops:
    """`op` n times against `plain` n times; the difference is the cost. `others` are yardsticks."""

    op: Loop
    plain: Loop
    others: dict[str, Loop] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    traced: bool = True


def _time(loop: Loop, n: int) -> float:
    start = time.perf_counter_ns()
    loop(n)
    return (time.perf_counter_ns() - start) / n


def _repeat_length(loop: Loop) -> int:
    n = 64
    while n < _MOST_PER_REPEAT and _time(loop, n) * n < _REPEAT_NS:
        n *= 2
    return min(n, _MOST_PER_REPEAT)


def _round(
    loops: Loops, lengths: dict[str, int], repeats: int, settle: Callable[[], object]
) -> dict[str, float]:
    """The best of some repeats of each loop, taken in turn: what preempted us is not the code's cost."""
    named = {"op": loops.op, "plain": loops.plain, **loops.others}
    best = dict.fromkeys(named, float("inf"))
    for _ in range(repeats):
        for name, loop in named.items():
            settle()
            best[name] = min(best[name], _time(loop, lengths[name]))
    return best


def main(argv: list[str]) -> None:
    module, _, factory = argv[0].partition(":")
    make: Callable[[], Loops] = getattr(importlib.import_module(module), factory)
    traced = os.environ.get("DFTRACER_ENABLE") == "1"
    trace = tracing.start() if traced else None
    if trace is None:
        machine.pin_measuring_thread(machine.measuring_core())
    settle = trace.settle if trace else (lambda: None)
    loops = make()
    gc.disable()
    lengths = {}
    for name, loop in {"op": loops.op, "plain": loops.plain, **loops.others}.items():
        settle()
        lengths[name] = _repeat_length(loop)
    for line in sys.stdin:
        gc.collect()
        answer = _round(loops, lengths, int(line), settle)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    facts = dict(loops.facts)
    if trace is not None:
        files = trace.finish()
        facts["end"] = trace_files.end_record(files)
        for directory in {file.parent for file in files}:
            shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main(sys.argv[1:])
