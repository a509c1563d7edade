"""The verdict where the device is in sight: by events or a profiler, it names what the device waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.analyze.device.summary import device_document
from dftracer.report import document
from dftracer.testing.synthetic import Process

MS = 1000
LANE = (1 << 30) + 1
GEMM = "nvjet_sm90_tst_64x16_64x16_2x1_v_bz_splitK_NNT"


class Run:
    """Simulates a host that launches and a device that works, and writes what both sides would."""

    def __init__(self, events: bool, profiler: bool) -> None:
        self.process = Process(10, rank=0)
        self.process.metadata.append(("CM", "device.0.name", "NVIDIA H200"))
        self.events, self.profiler = events, profiler
        self.now = self.free = 0
        self.begun: dict[str, tuple[int, int]] = {}
        self.correlation = 0

    def boundary(self) -> tuple[int, int]:
        self.free = max(self.free, self.now + 5)
        return self.now, self.free

    def wrote(self, name: str, begin: tuple[int, int], end: tuple[int, int]) -> None:
        if self.events:
            args = {"lag_us": begin[1] - begin[0], "end_lag_us": end[1] - end[0], "error_us": 10.0}
            self.process.span("device_time", name, begin[1], end[1] - begin[1], tid=LANE, **args)

    def launch(self, host: int, work: int) -> None:
        call = self.now
        self.now += host
        start = max(self.free, call + 5)
        self.free = start + work
        if self.profiler:
            self.correlation += 1
            self.process.span(
                "PP",
                "cudaLaunchKernel",
                call,
                max(host, 1),
                type="cuda_runtime",
                correlation=self.correlation,
            )
            self.process.span(
                "PP",
                GEMM,
                start,
                work,
                tid=(1 << 24) + 7,
                type="kernel",
                dur_ns=work * 1000,
                device_index=0,
                stream=7,
                correlation=self.correlation,
                op="aten::mm",
            )

    def train(
        self,
        steps: int,
        wait: int,
        host: int,
        work: int,
        checkpoint: int = 0,
        copies: int = 0,
        sync: bool = False,
    ) -> Run:
        """Each of three phases launches 20 kernels, `host` us each, `work` us each on the device."""
        p = self.process
        step_end = None
        for i in range(steps):
            start = self.now
            self.now += wait
            ready = self.boundary()
            if step_end is not None:
                self.wrote("fetch", step_end, ready)
            for name, phase in (("forward", "forward"), ("backward", "backward"), ("step", "optimizer")):
                begin, began = self.boundary(), self.now
                for _ in range(20):
                    self.launch(host, work)
                p.span("compute", name, began, self.now - began, step=i)
                self.wrote(phase, begin, self.boundary())
            if sync:
                self.now = max(self.now, self.free)
            if checkpoint and i % 2:
                self.now = max(self.now, self.free)
                begin, began = self.boundary(), self.now
                if copies:
                    self.launch(5, copies)
                self.now = began + checkpoint
                p.span("checkpoint", "capture", began, checkpoint, step=i)
                self.wrote("checkpoint", begin, self.boundary())
            # The queue is finite: a host far ahead waits.
            self.now = max(self.now, self.free - 100 * MS)
            step_end = self.boundary()
            self.wrote("step", ready, step_end)
            p.step(i + 1, start, wait, self.now - start - wait, step=i)
            if self.profiler:
                p.span("PP", f"ProfilerStep#{i}", start, self.now - start, type="user_annotation", step=i)
        return self

    def analysis(self, folder: Path) -> Analysis:
        self.process.write(folder)
        return analyze(folder)


CASES: dict[str, Any] = {
    "input": {"wait": 60 * MS, "host": 20, "work": 15},
    "host": {"wait": 20, "host": 100, "work": 5},
    "device": {"wait": 20, "host": 5, "work": 500},
    "checkpoint": {"wait": 20, "host": 20, "work": 15, "checkpoint": 200 * MS, "copies": 70 * MS},
}


@pytest.mark.parametrize("source", ["events", "profiler"])
@pytest.mark.parametrize("case", [*CASES])
def test_the_bottleneck_is_named(case: str, source: str, tmp_path: Path) -> None:
    run = Run(source == "events", source == "profiler")
    a = run.train(30, **CASES[case]).analysis(tmp_path)
    result: dict[str, Any] = document(a)
    assert result["device"]["source"] == source
    assert result["bound"]["id"] == case, a.head
    assert result["bound"]["share"] > 0.4
    assert "GPU" in a.verdict
    rank = result["device"]["ranks"]["0"]
    assert rank["busy_s"] + sum(rank["idle"].values()) == pytest.approx(rank["observed_s"], rel=0.01)


@pytest.mark.parametrize("case", [*CASES])
def test_busy_time_by_events_is_an_upper_bound(case: str, tmp_path: Path) -> None:
    run = Run(True, True).train(30, **CASES[case])
    found = device_document(run.analysis(tmp_path).job)
    exact, coarse = found["ranks"]["0"]["busy_share"], found["events"]["0"]["busy_share"]
    assert coarse >= exact - 0.001
    if case in ("input", "device"):
        assert coarse == pytest.approx(exact, abs=0.05)


def test_what_events_cannot_tell_of_a_checkpoint_is_told_apart(tmp_path: Path) -> None:
    a = Run(True, False).train(30, **CASES["checkpoint"]).analysis(tmp_path)
    rank = document(a)["device"]["ranks"]["0"]
    assert rank["in_checkpoints_s"] == pytest.approx(15 * 0.2, rel=0.01)
    assert rank["busy_s"] > rank["in_checkpoints_s"]
    assert rank["idle"]["checkpoint"] == 0
    assert a.verdict.startswith("The GPU waits for checkpoints: for 99 % of the time")


def test_a_device_kept_busy_by_a_host_that_waits_for_it_each_step(tmp_path: Path) -> None:
    a = Run(True, False).train(30, wait=20, host=5, work=500, sync=True).analysis(tmp_path)
    assert document(a)["bound"]["id"] == "device"


def test_lag_and_device_time_of_each_step(tmp_path: Path) -> None:
    a = Run(True, False).train(10, wait=20, host=5, work=500).analysis(tmp_path)
    steps = device_document(a.job)["steps"]
    assert [s["step"] for s in steps] == [*range(10)]
    assert all(s["busy_s"] == pytest.approx(0.03, rel=0.01) for s in steps[1:])
    assert [s["lag_us"] for s in steps] == sorted(s["lag_us"] for s in steps)


def test_without_figures_launching_is_not_called_compute(tmp_path: Path) -> None:
    a = Run(False, False).train(30, wait=20, host=100, work=5).analysis(tmp_path)
    result = document(a)
    assert result["device"]["source"] is None
    assert result["bound"]["id"] == "host"
    assert a.verdict.startswith("GPU activity is unknown")
    assert "DFTRACER_DEVICE_EVENTS" in a.head[2]
    assert result["device"]["notes"]


def test_the_real_runs() -> None:
    data = Path(__file__).parents[1] / "data" / "h200" / "cases"
    for case in ("input", "device"):
        a = analyze(data / case)
        assert document(a)["bound"]["id"] == case
        assert a.verdict.startswith("The GPU")
