"""Kernels, copies and runtime calls, as a profiler reports them: their operator, lane, step and time.

Where there is a device, tests/gpu checks the same on real ones.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dftracer.format.records import stream_lane, stream_of

# Two steps; in the first, an operator calls another one, which launches a kernel and a copy.
PROGRAM = """
    import json, time, types
    from dftracer.python import dftracer
    from dftracer.python.torch import trace_handler

    log = dftracer.initialize_log("device.pfw", None, -1)
    base = time.time_ns() - 10**9

    activity_getters = (
        "type name timestamp duration resource_id device_id correlation_id linked_correlation_id".split()
    )

    class Activity:
        def __init__(self, type, name, start, duration, tid, device=0, correlation=0, linked=0, text=""):
            self.text = text
            self.values = dict(
                type=type, name=name, timestamp=base + start, duration=duration, resource_id=tid,
                device_id=device, correlation_id=correlation, linked_correlation_id=linked,
            )

        def metadata_json(self):
            return b"\\xff".decode() if self.text is None else self.text

    for key in activity_getters:
        setattr(Activity, key, lambda self, key=key: self.values[key])

    KERNEL = (
        '"device": 0, "context": 1, "stream": 7, "correlation": 501, "grid": [2, 1, 1], '
        '"block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024'
    )
    FIRST = '"Record function id": 4, "Ev Idx": 0'
    SECOND = '"Sequence number": 9, "Ev Idx": 1'
    RANKS = '"Process Group Ranks": [0, 1], "Ev Idx": 5'
    activities = [
        Activity("cpu_op", "aten::outer", 1_000, 50_000, 77, correlation=11, text=FIRST),
        Activity("cpu_op", "aten::inner", 2_000, 30_000, 77, correlation=12, text=SECOND),
        Activity("cpu_op", "aten::other", 60_000, 5_000, 77, correlation=13, text=RANKS),
        Activity("cpu_op", "aten::elsewhere", 2_500, 20_000, 78, correlation=14),
        Activity("user_annotation", "ProfilerStep#3", 0, 70_000, 77, correlation=1),
        Activity("user_annotation", "ProfilerStep#4", 70_001, 29_999, 77, correlation=2),
        Activity("cuda_runtime", "cudaLaunchKernel", 3_000, 2_000, 77, correlation=501, linked=12,
                 text='"cbid": 211, "correlation": 501'),
        Activity("cuda_runtime", "cudaMemcpyAsync", 6_000, 2_000, 77, correlation=502, linked=12,
                 text='"cbid": 41, "correlation": 502'),
        # The device is late: the kernel runs in the next step.
        Activity("kernel", "gemm", 80_000, 10_000, 7, correlation=501, linked=12, text=KERNEL),
        Activity("gpu_memcpy", "Memcpy DtoH", 91_000, 1_000, 7, correlation=502, linked=12,
                 text='"stream": 7, "correlation": 502, "bytes": 4096, "memory bandwidth (GB/s)": 4.096'),
        Activity("kernel", "stray", 92_000, 500, 9, device=1, correlation=503, linked=999, text=None),
        Activity("gpu_user_annotation", "ProfilerStep#3", 80_000, 12_000, 7, correlation=1),
        Activity("overhead", "Buffer Flush", 95_000, 100, 0, device=-1),
    ]
    results = types.SimpleNamespace(trace_activities=lambda: list(activities), trace_start_ns=lambda: base)
    trace_handler(types.SimpleNamespace(profiler=types.SimpleNamespace(kineto_results=results)))
    log.finalize()
    print(json.dumps(len(activities)))
"""


@pytest.fixture(scope="module")
def run(run_program: Any) -> Any:
    return run_program(PROGRAM)


def one(run: Any, name: str, kind: str) -> dict[str, Any]:
    (event,) = [e for e in run.of("PP") if e["name"] == name and e["args"]["type"] == kind]
    found: dict[str, Any] = event
    return found


def test_every_activity_is_an_event(run: Any) -> None:
    assert len(run.of("PP")) == run.result


def test_a_kernel_names_the_operator_that_launched_it_and_its_step(run: Any) -> None:
    kernel = one(run, "gemm", "kernel")
    args = kernel["args"]
    assert (args["op"], args["external_id"], args["correlation"]) == ("aten::inner", 12, 501)
    assert args["step"] == 3
    assert (args["device"], args["device_index"], args["stream"]) == (1, 0, 7)
    assert (args["grid"], args["block"], args["registers"], args["shared_memory"]) == (
        "2,1,1",
        "128,1,1",
        32,
        1024,
    )
    assert args["total_device_percent"] == pytest.approx(10)
    assert args["total_cpu_percent"] == 0
    assert kernel["tid"] == 2**24 + 7 == stream_lane(0, 7)
    assert stream_of(kernel["tid"]) == (0, 7)


def test_a_runtime_call_has_the_correlation_of_its_kernel(run: Any) -> None:
    call = one(run, "cudaLaunchKernel", "cuda_runtime")
    assert call["tid"] == 77
    assert (call["args"]["correlation"], call["args"]["op"], call["args"]["cbid"]) == (
        501,
        "aten::inner",
        211,
    )
    assert call["args"]["device"] == 0


def test_device_time_of_an_operator_includes_what_it_calls_on_its_thread(run: Any) -> None:
    assert one(run, "aten::inner", "cpu_op")["args"]["device_ns"] == 11_000
    assert one(run, "aten::outer", "cpu_op")["args"]["device_ns"] == 11_000
    assert one(run, "aten::outer", "cpu_op")["args"]["total_device_percent"] == pytest.approx(11)
    assert one(run, "ProfilerStep#3", "user_annotation")["args"]["device_ns"] == 11_000
    for name in ("aten::other", "aten::elsewhere"):
        assert "device_ns" not in one(run, name, "cpu_op")["args"]


def test_a_copy_has_its_bytes(run: Any) -> None:
    args = one(run, "Memcpy DtoH", "gpu_memcpy")["args"]
    assert (args["bytes"], args["bandwidth_gb_s"], args["op"]) == (4096, 4.096, "aten::inner")


def test_what_cannot_be_read_or_joined_is_still_an_event(run: Any) -> None:
    stray = one(run, "stray", "kernel")
    assert (stray["args"]["external_id"], stray["args"]["step"]) == (999, 4)
    assert "op" not in stray["args"]
    assert stray["tid"] == 2 * 2**24 + 9 == stream_lane(1, 9)


def test_numbers_of_one_call_do_not_stick_to_the_next(run: Any) -> None:
    outer, inner, other = (
        one(run, f"aten::{name}", "cpu_op")["args"] for name in ("outer", "inner", "other")
    )
    assert (outer["rf_id"], inner["sequence"]) == (4, 9)
    assert "sequence" not in outer
    assert "rf_id" not in inner
    assert other["process_group_ranks"] == [0, 1]


def test_lanes_have_names(run: Any) -> None:
    lanes = {
        record["args"]["name"]: record["args"]["value"]
        for record in run.records
        if record["ph"] == "M" and str(record["args"].get("name", "")).startswith("lane.")
    }
    assert lanes == {f"lane.{2**24 + 7}": "GPU 0 stream 7", f"lane.{2 * 2**24 + 9}": "GPU 1 stream 9"}, (
        json.dumps([record for record in run.records if record["ph"] == "M"])
    )
