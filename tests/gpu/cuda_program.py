"""Profiler windows and compiled graphs on a CUDA device: runs them, reads its own trace, prints what holds.

Needs no test runner: `python tests/gpu/cuda_program.py` prints one line of JSON, check -> true or the error.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("DFTRACER_ENABLE", "1")
os.environ.setdefault("DFTRACER_DISABLE_IO", "1")

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from dftracer.python import ai, dftracer, dynamo
from dftracer.python.torch import trace_handler

Event = dict[str, Any]


class Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Trace:
    """The events of this process after `finalize()`."""

    def __init__(self, directory: Path) -> None:
        self.events: list[Event] = []
        for path in directory.glob("*.pfw*"):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for line in data.decode().splitlines():
                if line.startswith("{"):
                    record = json.loads(line)
                    if record["ph"] == "X":
                        self.events.append(record)
        self.profiler = [event for event in self.events if event["cat"] == "PP"]
        self.dynamo = [event for event in self.events if event["cat"] == "dynamo"]

    def kernels(self) -> list[Event]:
        return [event for event in self.profiler if event["args"]["type"] == "kernel"]


def profile_windows(exported: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def handler(prof: Any) -> None:
        trace_handler(prof)
        exported.append(f"kineto_{len(exported)}.json")
        prof.export_chrome_trace(exported[-1])

    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=handler,
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
    ) as prof:
        for _ in range(9):
            with ai.compute, record_function("step"):
                x = torch.randn(8, 16, 64).cuda(non_blocking=True)
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                torch.cuda.synchronize()
            prof.step()


def compiled_graphs() -> dict[str, bool]:
    """Whether compiled results equal eager ones."""
    torch.manual_seed(0)
    model = Block().cuda()
    x = torch.randn(8, 16, 64, device="cuda")
    expected = model(x)
    expected.sum().backward()
    gradient = model.fc1.weight.grad
    same: dict[str, bool] = {}
    for name, options in (
        ("op", {}),
        ("synchronized", {"synchronize": True, "granularity": "op"}),
        ("graph", {"backend": "aot_eager"}),
    ):
        torch._dynamo.reset()
        model.zero_grad()
        compiled = dynamo.compile(model, **options)
        for _ in range(2):
            model.zero_grad()
            found = compiled(x)
            found.sum().backward()
        # Single operations are those of eager; a real backend may choose others.
        equal = torch.equal if name != "graph" else torch.allclose
        same[name] = equal(found, expected) and equal(model.fc1.weight.grad, gradient)
    return same


def check_counts(trace: Trace, exported: list[str]) -> None:
    theirs: collections.Counter[str] = collections.Counter()
    for path in exported:
        for event in json.loads(Path(path).read_text())["traceEvents"]:
            if event.get("ph") in ("X", "i") and event.get("cat") not in (None, "Trace"):
                theirs[event["cat"]] += 1
    ours = collections.Counter(event["args"]["type"] for event in trace.profiler)
    missing = {
        kind: (count, ours.get(kind, 0)) for kind, count in theirs.items() if count != ours.get(kind, 0)
    }
    assert not missing, f"Kineto exported, we have: {missing}"
    assert all(
        ours[kind] for kind in ("cpu_op", "kernel", "gpu_memcpy", "cuda_runtime", "user_annotation")
    ), ours


def check_launches(trace: Trace, exported: list[str]) -> None:
    by_id: dict[int, set[str]] = collections.defaultdict(set)
    for event in trace.profiler:
        if event["args"]["type"] in ("cpu_op", "user_annotation"):
            by_id[event["args"]["external_id"]].add(event["name"])
    kernels = trace.kernels()
    assert kernels
    named = [kernel for kernel in kernels if "op" in kernel["args"]]
    assert len(named) == len(kernels), (
        f"{len(kernels) - len(named)} of {len(kernels)} kernels without their operator"
    )
    for kernel in named:
        assert kernel["args"]["op"] in by_id[kernel["args"]["external_id"]], kernel
    launches = {e["args"]["correlation"] for e in trace.profiler if e["args"]["type"].startswith("cuda_")}
    assert all(kernel["args"]["correlation"] in launches for kernel in kernels)


def check_lanes(trace: Trace, exported: list[str]) -> None:
    threads = {event["tid"] for event in trace.profiler if event["args"]["type"] == "cpu_op"}
    for kernel in trace.kernels():
        assert kernel["args"]["device"] == 1
        assert kernel["tid"] not in threads
        assert kernel["tid"] == (kernel["args"]["device_index"] + 1) * 2**24 + kernel["args"]["stream"]


def check_times(trace: Trace, exported: list[str]) -> None:
    blocks = [(e["ts"], e["ts"] + e["dur"]) for e in trace.events if e["cat"] == "compute"]
    for event in trace.kernels() + [
        e for e in trace.profiler if e["name"] == "step" and e["args"]["device"] == 0
    ]:
        start, end = event["ts"], event["ts"] + event["dur"]
        assert any(low - 100 <= start and end <= high + 100 for low, high in blocks), event


def check_device_numbers(trace: Trace, exported: list[str]) -> None:
    addmm = [e["args"] for e in trace.profiler if e["name"] == "aten::addmm"]
    assert addmm
    assert all(0 < args["total_device_percent"] < 100 for args in addmm), addmm[:2]
    launched = sum(
        kernel["args"]["dur_ns"] for kernel in trace.kernels() if kernel["args"]["op"] == "aten::addmm"
    )
    assert launched <= sum(args["device_ns"] for args in addmm)
    # What the step launched on its own thread contains what its operators launched there.
    steps = [e["args"] for e in trace.profiler if e["name"] == "step" and e["args"]["device"] == 0]
    assert sum(args["device_ns"] for args in steps) > sum(args["device_ns"] for args in addmm)
    memory = [e["args"] for e in trace.profiler if e["name"] == "[memory]" and e["args"]["device"] == 1]
    assert memory
    assert any(args["device_memory_usage"] > 0 for args in addmm)


def check_operations(trace: Trace, exported: list[str]) -> None:
    phases = {(event["name"], event["args"].get("phase")) for event in trace.dynamo}
    assert ("function.addmm.default", "forward") in phases
    assert ("function.threshold_backward.default", "backward") in phases


def check_device_time_of_graphs(trace: Trace, exported: list[str]) -> None:
    host = [e for e in trace.dynamo if e["name"] in ("graph.forward", "graph.backward")]
    device = [e for e in trace.dynamo if e["name"].endswith(".device")]
    assert len(device) == len(host) == 4, (len(device), len(host))
    assert all(event["args"]["dur_ns"] > 0 for event in device)
    first = min(event["ts"] for event in host)
    last = max(event["ts"] + event["dur"] for event in host)
    assert all(first - 200 <= event["ts"] <= last + 100_000 for event in device)


CHECKS = [
    check_counts,
    check_launches,
    check_lanes,
    check_times,
    check_device_numbers,
    check_operations,
    check_device_time_of_graphs,
]


def main() -> None:
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        log = dftracer.initialize_log("gpu.pfw", None, -1)
        exported: list[str] = []
        profile_windows(exported)
        same = compiled_graphs()
        log.finalize()
        trace = Trace(Path(directory))
        for check in CHECKS:
            try:
                check(trace, exported)
                results[check.__name__] = True
            except Exception:
                results[check.__name__] = traceback.format_exc(limit=-1)[-1500:]
        results["results equal eager"] = True if all(same.values()) else str(same)
        os.chdir("/")
    sys.stdout.write("\n" + json.dumps(results) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
