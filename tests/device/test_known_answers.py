"""Traces with kernels, copies and collectives in known places: each class of time comes out within 1 %."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.analyze.device.summary import device_document
from dftracer.testing.synthetic import Process

MS = 1000
GEMM = "nvjet_sm90_tst_64x16_64x16_2x1_v_bz_splitK_NNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float> >"


class Gpu:
    """Puts launches and device work into a process's trace."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.correlation = 100

    def work(
        self,
        start: int,
        dur: int,
        launched: int | None,
        name: str = GEMM,
        stream: int = 7,
        kind: str = "kernel",
        op: str = "aten::mm",
    ) -> None:
        self.correlation += 1
        if launched is not None:
            self.process.span(
                "PP",
                "cudaLaunchKernel",
                launched,
                4,
                type="cuda_runtime",
                correlation=self.correlation,
                op=op,
            )
        self.process.span(
            "PP",
            name,
            start,
            dur,
            tid=(1 << 24) + stream,
            type=kind,
            dur_ns=dur * 1000,
            device_index=0,
            stream=stream,
            correlation=self.correlation,
            op=op,
        )

    def window(self, first: int, step: int, count: int) -> None:
        for i in range(count):
            self.process.span(
                "PP", f"ProfilerStep#{i}", first + i * step, step, type="user_annotation", step=i
            )


def device(path: Path, **options: Any) -> dict[str, Any]:
    return device_document(analyze(path, **options).job)


def steps(p: Process, n: int, wait: int, *phases: tuple[str, str, int]) -> list[int]:
    """`n` steps with the given phases one after the other; returns where each body begins."""
    t, bodies = 0, []
    body = sum(d for _, _, d in phases)
    for i in range(n):
        bodies.append(t + wait)
        at = t + wait
        for cat, name, dur in phases:
            p.span(cat, name, at, dur, step=i)
            at += dur
        t = p.step(i + 1, t, wait, body, step=i)
    return bodies


def one_percent(seconds: float) -> Any:
    return pytest.approx(seconds, rel=0.01, abs=1e-6)


def test_waiting_for_data(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 10, 30 * MS, ("compute", "forward", 10 * MS)):
        gpu.work(body + 10, 9 * MS + 980, body + 5)
    gpu.window(0, 40 * MS, 10)
    p.write(tmp_path)
    found = device(tmp_path)
    rank = found["ranks"]["0"]
    assert found["source"] == "profiler"
    assert rank["observed_s"] == one_percent(0.4)
    assert rank["busy_s"] == one_percent(0.0998)
    assert rank["idle_s"] == one_percent(0.3002)
    assert rank["busy_share"] == one_percent(0.2495)
    assert rank["idle"]["input"] == one_percent(0.3)
    assert sum(rank["idle"].values()) == one_percent(rank["idle_s"])
    assert rank["kernels"]["gemm/conv"] == one_percent(0.0998)
    assert [s["busy_s"] for s in found["steps"]] == [pytest.approx(9.98e-3)] * 10


def test_python_between_launches_is_the_host_s(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 10, 50, ("compute", "forward", 10 * MS), ("compute", "backward", 10 * MS)):
        for k in range(40):  # each kernel 100 us, launched 5 us before it starts, 500 us apart
            gpu.work(body + k * 500, 100, body + k * 500 - 5)
    gpu.window(0, 20 * MS + 50, 10)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert rank["busy_s"] == one_percent(0.04)
    assert rank["idle"]["host"] == one_percent(10 * 40 * 395e-6)
    assert rank["idle"]["launch"] == one_percent(10 * 40 * 5e-6)
    assert rank["host_phases"]["forward"] == one_percent(rank["host_phases"]["backward"])
    assert rank["launches"] == 400
    assert rank["launch_delay_us"] == pytest.approx(5)


def test_gaps_shorter_than_a_launch(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 5, 100, ("compute", "forward", 10 * MS)):
        for k in range(100):  # queued long before: the device takes 5 us from one to the next
            gpu.work(body + 100 + k * 99, 94, body + k)
    gpu.window(0, 10 * MS + 100, 5)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert rank["busy_s"] == one_percent(5 * 100 * 94e-6)
    assert rank["idle"]["launch"] == one_percent(5 * (99 * 5e-6 + 10e-6))


def test_queued_and_waiting_for_another_stream(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 5, 10, ("compute", "forward", 10 * MS)):
        gpu.work(body + 10, 2 * MS, body, stream=7)
        gpu.work(body + 6 * MS, 4 * MS, body + 20, stream=13)  # launched at once, starts 4 ms after the other
    gpu.window(0, 10 * MS + 10, 5)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert rank["idle"]["dependency"] == one_percent(5 * 3.99e-3)
    assert {s["stream"]: s["busy_s"] for s in rank["streams"]} == {
        7: one_percent(0.01),
        13: one_percent(0.02),
    }


def test_waiting_while_the_host_communicates_or_checkpoints(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    phases = (
        ("compute", "forward", 10 * MS),
        ("comm", "all_reduce", 7 * MS),
        ("checkpoint", "capture", 5 * MS),
    )
    for body in steps(p, 5, 10, *phases):
        gpu.work(body + 5, 10 * MS - 5, body)
    gpu.window(0, 22 * MS + 10, 5)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert rank["idle"]["comm"] == one_percent(0.035)
    assert rank["idle"]["checkpoint"] == one_percent(0.025)


def test_what_cannot_be_told_is_unknown(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    gpu.window(0, 10 * MS, 5)  # no loader in sight: Python and waiting for data look alike
    for i in range(5):
        gpu.work(i * 10 * MS, 2 * MS, max(i * 10 * MS - 5, 0))
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert rank["idle"]["unknown"] == one_percent(0.04 - 4 * 5e-6)
    assert rank["idle"]["host"] == 0


def test_copies_and_collectives_beside_computation(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 4, 10, ("compute", "forward", 10 * MS)):
        gpu.work(body, 6 * MS, body - 5)
        gpu.work(body + 4 * MS, 4 * MS, body, NCCL, stream=20)  # 2 of 4 ms beside the kernel
        gpu.work(body + 1 * MS, 1 * MS, body, "Memcpy HtoD (Pinned -> Device)", stream=21, kind="gpu_memcpy")
        gpu.work(body + 9 * MS, 500, body, "Memset (Device)", kind="gpu_memset")
    gpu.window(0, 10 * MS + 10, 4)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert rank["busy_s"] == one_percent(4 * 8.5e-3)
    assert rank["exposed_comm_s"] == one_percent(4 * 2e-3)
    assert rank["copy_s"] == one_percent(4 * 1e-3)
    assert rank["overlap_share"] == one_percent(3 / 5)
    assert rank["kernels"]["communication"] == one_percent(16e-3)


def test_top_kernels_have_their_phase_and_operator(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 4, 10, ("compute", "forward", 4 * MS), ("compute", "backward", 6 * MS)):
        gpu.work(body + 20, 3 * MS, body + 5, op="aten::addmm")
        # Launched in backward though it runs later.
        gpu.work(body + 5 * MS, 5 * MS, body + 4 * MS + 5, ADD, op="aten::add_")
    gpu.window(0, 10 * MS + 10, 4)
    p.write(tmp_path)
    first, second = device(tmp_path)["top_kernels"]
    assert (first["name"], first["kind"], first["phase"], first["operator"], first["count"]) == (
        ADD,
        "elementwise",
        "backward",
        "aten::add_",
        4,
    )
    assert first["seconds"] == pytest.approx(0.02)
    assert (second["kind"], second["phase"], second["operator"]) == ("gemm/conv", "forward", "aten::addmm")
    assert first["share"] == pytest.approx(20 / 32, rel=1e-3)


def test_two_windows_are_two_windows(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    bodies = steps(p, 40, 10, ("compute", "forward", 10 * MS))
    for i in (5, 6, 30, 31):
        gpu.work(bodies[i], 5 * MS, bodies[i] - 5)
        p.span("PP", f"ProfilerStep#{i}", bodies[i] - 10, 10 * MS + 10, type="user_annotation", step=i)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert len(rank["windows"]) == 2
    assert rank["observed_s"] == one_percent(0.04004)
    assert rank["busy_share"] == one_percent(0.4995)


def test_the_launches_of_a_replayed_graph_are_one(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 4, 10, ("compute", "forward", 10 * MS)):
        gpu.correlation += 1
        p.span(
            "PP", "cudaGraphLaunch", body, 20, type="cuda_runtime", correlation=gpu.correlation, op="replay"
        )
        for k in range(10):
            p.span(
                "PP",
                GEMM,
                body + 30 + k * 900,
                895,
                tid=(1 << 24) + 7,
                type="kernel",
                dur_ns=895_000,
                device_index=0,
                stream=7,
                correlation=gpu.correlation,
            )
    gpu.window(0, 10 * MS + 10, 4)
    p.write(tmp_path)
    rank = device(tmp_path)["ranks"]["0"]
    assert (rank["launches"], rank["graph_replays"]) == (4, 4)
    assert rank["idle"]["launch"] == one_percent(4 * (9 * 5e-6 + 10e-6))
    assert rank["kernels"]["gemm/conv"] == one_percent(4 * 10 * 895e-6)


def test_a_run_without_a_device_says_so(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    steps(p, 5, 10, ("compute", "forward", 10 * MS))
    p.write(tmp_path)
    found = device(tmp_path)
    assert found["source"] is None
    assert not any(found[k] for k in ("ranks", "steps", "top_kernels", "names", "notes"))
    json.dumps(device(tmp_path))
