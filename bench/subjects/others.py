"""The side table: one span with other tools people reach for."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine
from bench.results import Row
from bench.rounds import Bench, environment

__all__ = ["rows", "versions"]


def _best(loop: Callable[[int], object], n: int, between: Callable[[], object] = lambda: None) -> float:
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter_ns()
        loop(n)
        best = min(best, (time.perf_counter_ns() - start) / n)
        between()
    return best


def _spans(make: Callable[[], Any], n: int, between: Callable[[], object] = lambda: None) -> float:
    def plain(count: int) -> None:
        for _ in range(count):
            pass

    def op(count: int) -> None:
        for _ in range(count):
            with make():
                pass

    return _best(op, n, between) - _best(plain, n)


def viztracer() -> dict[str, float]:
    make = importlib.import_module("viztracer").VizTracer
    quiet = make(verbose=0, max_stack_depth=0, tracer_entries=2_000_000)
    quiet.start()
    span = _spans(lambda: quiet.log_event("forward"), 2000)
    quiet.stop()

    def called() -> None:
        pass

    def calls(count: int) -> None:
        for _ in range(count):
            called()

    plain = _best(calls, 20_000)
    automatic = make(verbose=0, tracer_entries=2_000_000)
    automatic.start()
    traced = _best(calls, 20_000)
    automatic.stop()
    return {"viztracer `log_event`": span, "viztracer, a function call traced automatically": traced - plain}


def opentelemetry() -> dict[str, float]:
    trace = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")

    class Nowhere:
        def export(self, spans: object) -> Any:
            return export.SpanExportResult.SUCCESS

        def shutdown(self) -> None:
            pass

        def force_flush(self, timeout_millis: int = 0) -> bool:
            return True

    provider = trace.TracerProvider()
    provider.add_span_processor(export.BatchSpanProcessor(Nowhere(), max_queue_size=65536))
    tracer = provider.get_tracer("bench")
    span = _spans(lambda: tracer.start_as_current_span("forward"), 1000, provider.force_flush)
    provider.shutdown()
    return {"OpenTelemetry span, batch processor, exporter that discards": span}


def torch() -> dict[str, float]:
    import torch as library  # noqa: PLC0415

    record = library.profiler.record_function
    idle = _spans(lambda: record("forward"), 1000)
    with library.profiler.profile(activities=[library.profiler.ProfilerActivity.CPU]):
        active = _spans(lambda: record("forward"), 1000)
    return {
        "`torch.record_function`, no profiler running": idle,
        "`torch.record_function`, CPU profiler running": active,
    }


def ours() -> dict[str, float]:
    from bench import tracing  # noqa: PLC0415
    from dftracer.python import ai  # noqa: PLC0415

    trace = tracing.start()
    ai.update(epoch=1, step=100)
    span = _spans(lambda: ai.compute.forward, 8000, trace.settle)
    for directory in {file.parent for file in trace.finish()}:
        shutil.rmtree(directory, ignore_errors=True)
    return {"ours: `with ai.compute.forward:`, looked up in the tree each time": span}


_TOOLS: dict[str, Callable[[], dict[str, float]]] = {
    "ours": ours,
    "viztracer": viztracer,
    "opentelemetry": opentelemetry,
    "torch": torch,
}


def _run(bench: Bench, python: Path, tool: str) -> dict[str, float] | None:
    done = subprocess.run(
        [python, "-m", "bench.subjects.others", tool],
        env=environment(bench, traced=tool == "ours"),
        cwd=bench.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def versions(bench: Bench) -> dict[str, str]:
    """The versions of everything measured, from the environment it ran in."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "def v(n):\n"
        "    try: return m.version(n)\n"
        "    except m.PackageNotFoundError: return None\n"
        "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    )

    def ask(python: Path, names: list[str]) -> dict[str, str | None]:
        done = subprocess.run([python, "-c", program, *names], stdout=subprocess.PIPE, text=True, check=True)
        answer: dict[str, str | None] = json.loads(done.stdout)
        return answer

    found = {"ours: pydftracer": ask(bench.ours, ["pydftracer"])["pydftracer"]}
    found["torch"] = ask(bench.ours, ["torch"])["torch"]
    if bench.rival:
        names = ["dftracer", "pydftracer", "viztracer", "opentelemetry-sdk"]
        found |= {f"rival: {name}": value for name, value in ask(bench.rival, names).items()}
    return {name: value for name, value in found.items() if value}


def rows(bench: Bench) -> list[Row]:
    result: dict[str, list[float]] = {}
    for _ in range(2 if bench.quick else 5):
        for tool in _TOOLS:
            python = bench.ours if tool in {"ours", "torch"} else bench.rival
            if python is None:
                continue
            for what, cost in (_run(bench, python, tool) or {}).items():
                result.setdefault(what, []).append(cost)
    return [Row("others", what, "ns", min(costs)) for what, costs in result.items()]


if __name__ == "__main__":
    if sys.argv[1] != "ours":
        machine.pin_measuring_thread(machine.measuring_core())
    sys.stdout.write(json.dumps(_TOOLS[sys.argv[1]]()) + "\n")
    sys.stdout.flush()
    os._exit(0)
