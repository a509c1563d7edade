"""Traces whose every second is known: the ledger and the account must say where it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.analyze.map.account import LINES
from dftracer.analyze.stages import STAGES
from dftracer.load.trace import Trace
from dftracer.report import document
from dftracer.testing.synthetic import Process
from dftracer.view.reading import ledger_between, read_files

MS = 1000


class Loop:
    """A loop as automatic tracing records it: every stage is an event, and what lies between is not."""

    def __init__(self, process: Process, start: int = 0) -> None:
        self.process, self.t, self.count = process, start, 0

    def pause(self, dur: int) -> None:
        self.t += dur

    def stage(self, cat: str, name: str, dur: int, **args: Any) -> None:
        self.process.span(cat, name, self.t, dur, auto=1, **args)
        self.t += dur

    def step(self, wait: int, *parts: tuple[str, int], **flags: Any) -> None:
        """`parts`: stage and duration, one after another; `own` is in no stage."""
        self.count += 1
        first = self.t
        if wait:
            self.process.span("dataloader", "fetch.iter", first, wait, count=str(self.count), auto=1)
        self.t += wait
        body = self.t
        for name, dur in parts:
            cat, event = _EVENTS.get(name, (None, name))
            if name == "own":
                self.t += dur
            elif cat is None:
                raise KeyError(name)
            else:
                self.process.span(cat, event, self.t, dur, auto=1)
                self.t += dur
        self.process.span(
            "dataloader", "fetch.block", body, self.t - body, count=str(self.count), auto=1, **flags
        )


_EVENTS = {
    "forward": ("compute", "forward"),
    "backward": ("compute", "backward"),
    "optimizer": ("compute", "step"),
    "transfer": ("device", "transfer"),
    "checkpoint": ("checkpoint", "save"),
    "evaluate": ("pipeline", "evaluate"),
    "comm": ("comm", "all_reduce"),
    "sync": ("CUDA", "cudaStreamSynchronize"),
    "own": ("", ""),
}
PLAIN = (("forward", 10 * MS), ("backward", 20 * MS), ("optimizer", 5 * MS))


def test_what_no_stage_covers_in_an_automatic_step_is_own_code(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(10):
        loop.step(1 * MS, ("own", 4 * MS), *PLAIN, ("own", 20 * MS))
    loop.process.write(tmp_path)
    total = analyze(tmp_path).ledger["total"]
    assert total["own_code"] == pytest.approx(0.24)
    assert total["unexplained"] == 0
    assert total["forward"] == pytest.approx(0.1)


@pytest.mark.parametrize("call", ["fsync", "write", "waitpid"])
def test_writing_and_waiting_for_processes_is_own_code_that_has_a_place(tmp_path: Path, call: str) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(30):
        loop.step(1 * MS, *PLAIN, ("own", 60 * MS))
        loop.process.span("POSIX", call, loop.t - 60 * MS, 55 * MS, fname="/logs/metrics")
        loop.process.span("sample", "own_code", loop.t - 50 * MS, 10 * MS, where="log_metrics train.py:81")
    loop.process.write(tmp_path)
    result = document(analyze(tmp_path))
    assert result["ledger"]["total"]["own_code"] == pytest.approx(1.8)
    assert result["ledger"]["total"]["other"] == 0
    assert (result["bound"]["id"], result["bound"]["stage"]) == ("own_code", "log_metrics train.py:81")
    assert "user_stage" not in {f["id"] for f in result["findings"]}


@pytest.mark.parametrize("unseen", [False, True])
def test_waits_of_an_evaluation_belong_to_no_step(tmp_path: Path, unseen: bool) -> None:
    """Batches of the training are in a list, those of the evaluation come from a loader."""
    loop = Loop(Process(10, rank=0))
    flags = {"forward_unseen": 1} if unseen else {}
    for _ in range(4):
        first = loop.t
        for _ in range(6):
            loop.stage("dataloader", "fetch.iter", 30 * MS)
            loop.pause(20 * MS)
        loop.process.span("pipeline", "evaluate", first, loop.t - first, auto=1)
        # The step begins where the one before ended, and has the evaluation in it.
        parts = PLAIN[1:] if unseen else PLAIN
        for name, dur in parts:
            loop.stage(*_EVENTS[name], dur)
        loop.process.span("dataloader", "fetch.block", first, loop.t - first, auto=1, **flags)
        for _ in range(9):
            loop.step(0, *PLAIN)
    loop.process.write(tmp_path)
    result = document(analyze(tmp_path))
    assert len(result["ledger"]["steps"]) == 40
    assert result["evaluation"]["seconds"] == pytest.approx(1.2)
    assert all((s or 0) >= 0 for step in result["ledger"]["steps"] for s in step["stages"].values())
    lines = {line: each["seconds"] for line, each in result["account"].items()}
    assert lines["evaluation"] == pytest.approx(0.9)
    assert sum(lines.values()) == pytest.approx(result["account_s"])
    assert lines["own_code"] + lines["unexplained"] + lines["peers"] + lines["input"] == 0


def test_inference_before_training_is_evaluation_and_no_step(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(5):
        loop.step(0, ("forward", 100 * MS), inference=1)
    loop.pause(2000 * MS)
    for _ in range(30):
        loop.step(0, *PLAIN)
    loop.process.write(tmp_path)
    result = document(analyze(tmp_path))
    assert len(result["ledger"]["steps"]) == 30
    assert result["evaluation"]["seconds"] == pytest.approx(0.5)
    assert result["outside"]["between_s"] == 0
    assert result["bound"]["id"] == "compute"


def test_the_time_between_steps_has_its_own_place(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(5):
        for _ in range(10):
            loop.step(1 * MS, *PLAIN, ("own", 2 * MS))
            loop.process.span("sample", "own_code", loop.t - 2 * MS, 2 * MS, where="log train.py:8")
        loop.count = 0
        loop.pause(900 * MS)
        loop.process.span("sample", "own_code", loop.t - 800 * MS, 10 * MS, where="plot train.py:30")
    loop.step(1 * MS, *PLAIN)
    loop.process.write(tmp_path)
    result = document(analyze(tmp_path))
    assert (result["bound"]["id"], result["bound"]["stage"]) == ("between_steps", "plot train.py:30")
    assert result["head"][0] == (
        "The time between steps is the largest part: 4.50 s, 70 % of the time, in no step,"
        " most of it in plot train.py:30."
    )
    assert "plot train.py:30" in result["head"][2]
    found = next(f for f in result["findings"] if f["id"] == "between_steps")
    assert "plot train.py:30" in found["title"]
    assert "plot train.py:30" in found["advice"]


def test_a_forward_pass_nobody_saw_is_own_code(tmp_path: Path) -> None:
    """A model that is no module is a function of the program, and named as such."""
    loop = Loop(Process(10, rank=0))
    for _ in range(10):
        parts = (("own", 30 * MS), ("backward", 20 * MS), ("own", 5 * MS))
        loop.step(1 * MS, *parts, forward_unseen=1)
        loop.process.span("sample", "own_code", loop.t - 50 * MS, 10 * MS, where="loss_of train.py:8")
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert a.ledger["total"]["own_code"] == pytest.approx(0.35)
    assert not a.ledger["total"]["unexplained"]
    assert _bound(a) == ("own_code", "loss_of train.py:8")
    assert a.head[2].startswith("Look at loss_of train.py:8.")
    assert "ai.compute.forward" in a.head[2]


def test_the_host_blocked_by_the_device_is_sync_and_samples_take_no_time(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(10):
        start = loop.t
        loop.step(1 * MS, *PLAIN, ("sync", 30 * MS), ("own", 3 * MS))
        loop.process.span("CUDA", "cudaMemcpyAsync", start + 2 * MS, 4 * MS, kind="HtoD", bytes=1 << 20)
        loop.process.span("sample", "own_code", loop.t - 3 * MS, 3 * MS, where="log train.py:8")
    loop.process.write(tmp_path)
    total = analyze(tmp_path).ledger["total"]
    assert total["sync"] == pytest.approx(0.3)
    assert total["transfer"] == pytest.approx(0.04)  # a copy that blocks, inside the forward pass
    assert total["forward"] == pytest.approx(0.06)
    assert total["own_code"] == pytest.approx(0.03)


def _account(a: Analysis) -> dict[str, float]:
    """The seconds of each line, after the checks that hold for every account."""
    result = document(a)
    assert tuple(result["account"]) == LINES
    assert sum(row["seconds"] for row in result["account"].values()) == pytest.approx(
        result["account_s"], rel=1e-3
    )
    assert sum(row["share"] for row in result["account"].values()) == pytest.approx(1.0, abs=1e-3)
    return {line: row["seconds"] for line, row in result["account"].items()}


def _bound(a: Analysis) -> tuple[str, str | None]:
    assert a.bound is not None
    return a.bound.part.id, a.bound.part.stage


def _loud(a: Analysis) -> list[str]:
    return [f.id for f in a.findings if f.severity != "info"]


def test_every_line_has_its_time_and_they_add_up(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    loop.step(40 * MS, *PLAIN)  # the first step is not steady
    began = loop.t
    for i in range(20):
        more = [("checkpoint", 30 * MS)] if i % 10 == 9 else []
        loop.step(3 * MS, ("transfer", 2 * MS), *PLAIN, ("comm", 4 * MS), ("own", 6 * MS), *more)
        if i % 5 == 4:
            loop.stage("pipeline", "evaluate", 50 * MS)
            loop.pause(5 * MS)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    found = _account(a)
    assert found["input"] == pytest.approx(0.06)
    assert found["transfer"] == pytest.approx(0.04)
    assert found["host"] == pytest.approx(0.7)
    assert found["comm"] == pytest.approx(0.08)
    assert found["checkpoint"] == pytest.approx(0.06)
    assert found["evaluation"] == pytest.approx(0.15)  # the last one lies after the last step
    assert found["own_code"] == pytest.approx(0.12 + 0.015)
    assert found["device"] == found["peers"] == found["unexplained"] == 0
    last = max(s.end for s in loop.process.spans if s.name == "fetch.block")
    assert document(a)["account_s"] == pytest.approx((last - began) / 1e6)
    assert _bound(a) == ("compute", "backward")


def test_without_steps_the_account_is_there_and_empty(tmp_path: Path) -> None:
    p = Process(10)
    p.io("read", 0, 5 * MS, "/data/a", ret=10, count=10)
    p.write(tmp_path)
    result = document(analyze(tmp_path))
    assert tuple(result["account"]) == LINES
    assert result["account_s"] == 0
    assert {row["seconds"] for row in result["account"].values()} == {0}


def test_own_code_is_named_by_function_and_line(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(20):
        loop.step(MS, ("forward", MS), ("backward", MS), ("optimizer", MS), ("own", 20 * MS))
        at = loop.t - 20 * MS
        stack = "main train.py:90;log_metrics train.py:81"
        loop.process.span("sample", "own_code", at, 15 * MS, where="log_metrics train.py:81", stack=stack)
        loop.process.span("sample", "own_code", at + 15 * MS, 5 * MS, where="show train.py:12", stack="")
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a) == ("own_code", "log_metrics train.py:81")
    assert a.verdict == (
        "The program's own code is the largest part: 83 % of the steady time, most of it in log_metrics"
        " train.py:81."
    )
    assert a.head[2].startswith("Look at log_metrics train.py:81: ")
    assert _loud(a) == ["own_code"]


@pytest.mark.parametrize(
    "innermost", ["Condition.wait threading.py:324", "Connection._recv connection.py:384"]
)
def test_who_waits_for_a_thread_is_not_told_to_use_one(tmp_path: Path, innermost: str) -> None:
    """A queue that another thread, or a process, fills too slowly."""
    loop = Loop(Process(10, rank=0))
    for _ in range(30):
        loop.step(MS, ("own", 60 * MS), *PLAIN)
        stack = f"main train.py:30;batches train.py:12;Queue.get queue.py:171;{innermost}"
        at = loop.t - 95 * MS
        loop.process.span("sample", "own_code", at, 55 * MS, where="batches train.py:12", stack=stack)
        own = "main train.py:30;batches train.py:12"
        loop.process.span("sample", "own_code", at + 55 * MS, 5 * MS, where="batches train.py:12", stack=own)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a) == ("own_code", "batches train.py:12")
    assert a.head[2].startswith("batches train.py:12 waits for another thread or process")
    (finding,) = (f for f in a.findings if f.id == "own_code")
    assert finding.advice == a.head[2]


def test_what_a_framework_does_is_not_said_of_its_caller(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    trainer = "<module> train.py:32;Trainer.train trainer.py:15;Trainer._run_epoch trainer.py:19"
    for _ in range(30):
        loop.step(MS, ("own", 60 * MS), *PLAIN)
        at = loop.t - 95 * MS
        for k, (where, stack) in enumerate(
            (
                (
                    "<module> train.py:32",
                    f"{trainer};Trainer._clip_grad_norm trainer.py:27;clip clip_grad.py:4",
                ),
                ("<module> train.py:32", trainer),
                (
                    "Log.on_step_end train.py:9",
                    f"{trainer};Handler.on_step_end call.py:2;Log.on_step_end train.py:9",
                ),
            )
        ):
            dur = (30, 10, 20)[k] * MS
            loop.process.span("sample", "own_code", at, dur, where=where, stack=stack)
            at += dur
    loop.process.write(tmp_path)
    (finding,) = (f for f in analyze(tmp_path).findings if f.id == "own_code")
    assert [*finding.evidence["where_s"]] == [
        "Trainer._clip_grad_norm trainer.py:27",
        "Log.on_step_end train.py:9",
        "Trainer._run_epoch trainer.py:19",
    ]


def test_a_function_of_many_lines_comes_before_a_longer_line(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(30):
        loop.step(MS, ("own", 60 * MS), *PLAIN)
        at = loop.t - 95 * MS
        for k, (where, dur) in enumerate(
            (("main train.py:9", 24), ("step env.py:4", 19), ("step env.py:5", 17))
        ):
            loop.process.span("sample", "own_code", at + 20 * k * MS, dur * MS, where=where)
    loop.process.write(tmp_path)
    assert _bound(analyze(tmp_path)) == ("own_code", "step env.py:4")


def test_own_code_is_not_where_something_else_takes_the_time(tmp_path: Path) -> None:
    """A function that saves is sampled while it saves: that time is the checkpoint's."""
    loop = Loop(Process(10, rank=0))
    for _ in range(20):
        loop.step(MS, ("forward", MS), ("backward", MS), ("own", 20 * MS), ("checkpoint", 60 * MS))
        at = loop.t - 80 * MS
        loop.process.span("sample", "own_code", at, 18 * MS, where="gather train.py:136")
        loop.process.span("sample", "own_code", at + 18 * MS, 60 * MS, where="save train.py:137")
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a)[0] == "checkpoint"
    (finding,) = (f for f in a.findings if f.id == "own_code")
    assert "especially in gather train.py:136" in finding.title
    places = finding.evidence["where_s"]
    assert places["gather train.py:136"] == pytest.approx(0.9 * finding.seconds, rel=0.01)
    assert sum(places.values()) <= finding.seconds + 1e-6


def test_what_runs_in_an_evaluation_is_not_named_as_own_code(tmp_path: Path) -> None:
    """Between its calls the program is sampled: what follows them may turn out to be no part of it."""
    loop = Loop(Process(10, rank=0))
    for i in range(40):
        loop.step(MS, *PLAIN, ("own", 60 * MS))
        loop.process.span("sample", "own_code", loop.t - 10 * MS, 10 * MS, where="log train.py:8")
        if i % 10 == 9:
            loop.process.span("sample", "own_code", loop.t + 100 * MS, 400 * MS, where="draw train.py:20")
            loop.stage("pipeline", "evaluate", 600 * MS)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a) == ("own_code", "log train.py:8")
    assert a.own_code is not None
    assert sum(p["seconds"] for p in a.own_code["places"]) == pytest.approx(40 * 0.01)


def test_the_largest_part_wins_whatever_it_is(tmp_path: Path) -> None:
    """Forward 17 %, and 44 % that nobody can name: the verdict is about what cannot be seen."""
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        t = p.step(i + 1, t, 4 * MS, 96 * MS)
        p.span("compute", "forward", t - 96 * MS, 17 * MS)
        p.span("compute", "backward", t - 79 * MS, 16 * MS)
        p.span("data", "item", t - 63 * MS, 19 * MS)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a)[0] == "unseen"
    assert a.verdict == (
        "The largest part of the step cannot be seen: 44 % of the steady time is in no annotated stage."
    )
    assert "dftracer run" in a.head[2]
    assert "bf16" not in " ".join(a.head)


def test_evaluation_beside_larger_steps_is_not_the_largest_part(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for i in range(40):
        loop.step(MS, *PLAIN)
        if i % 10 == 9:
            loop.stage("pipeline", "evaluate", 85 * MS)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a)[0] == "compute"
    assert "evaluation" in a.verdict
    loop = Loop(Process(11, rank=0))
    for i in range(40):
        loop.step(MS, *PLAIN)
        if i % 10 == 9:
            loop.stage("pipeline", "evaluate", 900 * MS)
    (tmp_path / "more").mkdir()
    loop.process.write(tmp_path / "more")
    a = analyze(tmp_path / "more")
    assert _bound(a)[0] == "evaluation"
    assert a.bound is not None


def test_a_checkpoint_thread_beside_logging_is_not_what_the_loop_waits_for(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(30):
        start = loop.t
        loop.step(MS, *PLAIN, ("own", 60 * MS))
        loop.process.span("checkpoint", "save", start + 36 * MS, 60 * MS, tid=99)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a)[0] == "own_code"
    assert _account(a)["checkpoint"] == 0


class Device:
    """Events of a device that is a queue: work begins when it was launched and the work before it is done."""

    def __init__(self, process: Process) -> None:
        self.process, self.free = process, 0
        process.metadata.append(("CM", "device.0.name", "H200"))

    def launch(self, at: int, work: int) -> None:
        self.free = max(self.free, at) + work

    def phase(self, name: str, start: int, before: int, end: int) -> None:
        """`before`: when the device was done with what was launched before `start`."""
        begin, over = max(start, before), max(end, self.free)
        lags = {"lag_us": begin - start, "end_lag_us": over - end, "error_us": 5}
        self.process.span("device_time", name, begin, over - begin, tid=7, **lags)


def _gpu_loop(
    tmp_path: Path,
    steps: int,
    launch: int,
    work: int,
    *,
    blocked: str = "",
    own: int = 0,
    wait: int = 0,
    every: int = 1,
    save: int = 0,
    queue: int = 60 * MS,
) -> Analysis:
    """A loop that launches for `launch` us in each pass what takes the device `work` us.

    `blocked`: the stage in which the host waits for the device each step. `every`: device events of every nth
    step. The queue is finite.
    """
    loop = Loop(Process(10, rank=0))
    gpu = Device(loop.process)
    for i in range(steps):
        began = loop.t
        if wait:
            loop.process.span("dataloader", "fetch.iter", loop.t, wait, count=str(i + 1), auto=1)
            loop.t += wait
        body = loop.t
        if blocked == "transfer":
            loop.stage("device", "transfer", max(0, gpu.free - loop.t) + MS)
        for cat, name, phase in (
            ("compute", "forward", "forward"),
            ("compute", "backward", "backward"),
            ("compute", "step", "optimizer"),
        ):
            start, before = loop.t, gpu.free
            stall = max(0, gpu.free - loop.t - queue)  # the queue is full
            gpu.launch(loop.t, work)
            loop.stage(cat, name, launch + stall)
            if i % every == 0:
                gpu.phase(phase, start, before, loop.t)
        if blocked == "sync":
            loop.stage("CUDA", "cudaStreamSynchronize", max(0, gpu.free - loop.t) + 10)
        if save and i % 10 == 9:
            loop.stage("checkpoint", "save", max(0, gpu.free - loop.t) + save)
        loop.t += own
        loop.process.span("dataloader", "fetch.block", body, loop.t - body, count=str(i + 1), auto=1)
        assert loop.t > began
    loop.process.write(tmp_path)
    return analyze(tmp_path)


@pytest.mark.parametrize("blocked", ["sync", "transfer", ""])
@pytest.mark.parametrize("every", [1, 4])
def test_a_device_bound_run_is_the_devices_wherever_the_host_waits(
    tmp_path: Path, blocked: str, every: int
) -> None:
    a = _gpu_loop(tmp_path, 80, 500, 10 * MS, blocked=blocked, every=every)
    assert _bound(a)[0] == "device"
    assert _account(a)["device"] / document(a)["account_s"] > 0.9
    assert a.verdict.startswith("The GPU is the bottleneck: it ")
    assert "at most" not in a.verdict
    assert _loud(a) == []  # no drift while the queue fills, no transfer that waits for kernels


def test_the_gpu_that_always_has_work_is_said_to_have_it(tmp_path: Path) -> None:
    a = _gpu_loop(tmp_path, 80, 500, 10 * MS)
    assert a.verdict == "The GPU is the bottleneck: it always has work queued."


def test_a_launch_bound_run_is_the_hosts_by_stage(tmp_path: Path) -> None:
    a = _gpu_loop(tmp_path, 60, 5 * MS, 50)
    assert _bound(a) == ("host", "forward")
    assert a.verdict.startswith("The GPU waits for the host: for 100 % of the time")
    assert _account(a)["device"] == 0


def test_own_code_beside_a_device_with_little_to_do_is_own_code(tmp_path: Path) -> None:
    a = _gpu_loop(tmp_path, 60, 800, 100, own=20 * MS)
    assert _bound(a)[0] == "own_code"
    assert _account(a)["own_code"] == pytest.approx(59 * 0.02)


@pytest.mark.parametrize("every", [1, 4])
def test_input_of_sampled_steps_is_that_of_all_steps(tmp_path: Path, every: int) -> None:
    a = _gpu_loop(tmp_path, 60, 500, 100, wait=30 * MS, every=every)
    assert _bound(a)[0] == "input"
    assert _account(a)["input"] == pytest.approx(59 * 0.03)


def test_a_checkpoint_is_a_checkpoint_but_for_the_kernels_it_waits_for(tmp_path: Path) -> None:
    a = _gpu_loop(tmp_path, 100, 300, 2 * MS, save=1000 * MS)
    assert _bound(a) == ("checkpoint", "checkpoint")
    found = _account(a)
    assert found["checkpoint"] == pytest.approx(9 * 1.0, rel=0.15)
    assert found["device"] > 0.1
    assert _loud(a) == ["checkpoint_stall"]
    (stall,) = [f for f in a.findings if f.id == "checkpoint_stall"]
    assert [s.id for s in stall.symptoms] == ["slow_steps"]


def test_copies_alone_tell_how_long_they_waited(tmp_path: Path) -> None:
    """Without events of the device: a copy of 1 MB that blocks for 40 ms waits for kernels."""
    loop = Loop(Process(10, rank=0))
    for _ in range(30):
        loop.step(0, *PLAIN[:1], ("own", 0))
        loop.process.span(
            "CUDA", "cudaMemcpyAsync", loop.t - 8 * MS, 6 * MS, bytes=1 << 20, kind="DtoH", stream=7
        )
    loop.process.write(tmp_path)
    found = _account(analyze(tmp_path))
    assert found["device"] == pytest.approx(29 * (0.006 - (1 << 20) / 1e9), rel=0.01)
    assert found["transfer"] == pytest.approx(29 * (1 << 20) / 1e9, rel=0.01)


@pytest.mark.parametrize("warm_up", [0, 3])
def test_replays_of_a_cuda_graph_are_steps(tmp_path: Path, warm_up: int) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(warm_up):
        loop.step(0, *PLAIN)
    for i in range(400):
        loop.stage("CUDA", "cudaGraphLaunch", 20)
        if i % 8 == 7:
            loop.stage("CUDA", "cudaStreamSynchronize", 80 * MS)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert len(a.ledger["steps"]) == 400
    assert a.ledger["source"] == "graph"
    assert _bound(a)[0] == "device"
    assert a.verdict == "The GPU is the bottleneck: it always has work queued."


def test_a_launch_that_waits_for_the_queue_is_the_devices(tmp_path: Path) -> None:
    """Beyond twice the fastest launch of the same graph; one whose graph is not known says nothing."""
    loop = Loop(Process(10, rank=0))
    for _ in range(3):  # events of a warm-up say nothing of the replays
        start = loop.t
        loop.step(0, *PLAIN)
        args = {"lag_us": 0, "end_lag_us": 0, "error_us": 1}
        loop.process.span("device_time", "forward", start, 5 * MS, tid=7, **args)
    for i in range(200):
        loop.stage("CUDA", "cudaGraphLaunch", 20 if i < 40 else 10 * MS, graph=7)
        loop.stage("CUDA", "cudaGraphLaunch", MS, graph=8)
        loop.stage("CUDA", "cudaGraphLaunch", MS if i % 2 else 20)
    loop.process.write(tmp_path)
    found = _account(analyze(tmp_path))
    assert found["device"] == pytest.approx(160 * (0.010 - 2 * 0.00002), rel=0.001)
    assert found["host"] == pytest.approx(
        200 * 0.001 + 100 * 0.00102 + 200 * 0.00002 + 160 * 0.00002, rel=0.02
    )


def test_replays_inside_steps_are_part_of_them(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(10):
        start = loop.t
        loop.step(MS, *PLAIN)
        for k in range(5):
            loop.process.span("CUDA", "cudaGraphLaunch", start + 2 * MS + k, 1)
    loop.process.write(tmp_path)
    assert len(analyze(tmp_path).ledger["steps"]) == 10


def test_a_rank_that_waits_shows_it_and_the_late_one_is_named(tmp_path: Path) -> None:
    for rank in range(2):
        loop = Loop(Process(10 + rank, rank=rank, world_size=2))
        for _ in range(30):
            slow = 100 * MS if rank == 1 else 20 * MS
            reduce = ("comm", 2 * MS + (80 * MS if rank == 0 else 0))
            loop.step(MS, ("forward", 10 * MS), ("backward", slow), reduce, ("optimizer", MS))
        loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a) == ("straggler", "backward")
    assert a.bound is not None
    assert a.bound.part.rank == 1
    found = _account(a)
    assert found["peers"] == pytest.approx(29 * 0.08)
    assert max(found, key=lambda line: found[line]) == "peers"
    assert "clocks" not in str(document(a)["findings"])  # they share a host


@pytest.mark.parametrize("grows", [True, False])
def test_steps_that_grow_with_their_batches_are_said_to(tmp_path: Path, grows: bool) -> None:
    loop = Loop(Process(10, rank=0))
    for i in range(60):
        longer = i * MS // 2
        size = 1000 * (20 + i) if grows else 20_000
        loop.process.span("device", "transfer", loop.t + MS, 10, bytes=size, auto=1)
        loop.step(MS, ("forward", 10 * MS + longer), ("backward", 10 * MS + longer))
    loop.process.write(tmp_path)
    (found,) = [f for f in analyze(tmp_path).findings.every() if f.id == "step_drift"]
    assert found.title.startswith("Steps get longer with their batches" if grows else "Steps get slower")
    assert (found.severity == "info") == grows


def test_too_few_workers_that_make_every_fourth_step_slow_are_one_finding(tmp_path: Path) -> None:
    main = Loop(Process(10, rank=0))
    for i in range(60):
        main.step(160 * MS if i % 4 == 0 else 50, ("forward", 2 * MS), ("backward", 2 * MS))
    main.process.write(tmp_path)
    for w in range(4):
        worker = Process(20 + w, ppid=10)
        for t in range(0, main.t, 5 * MS):
            worker.span("data", "item", t, 5 * MS - 50)
        worker.write(tmp_path)
    a = analyze(tmp_path)
    assert _bound(a) == ("input", "preprocess")
    assert _loud(a) == ["input_bound"]
    assert {s.id for s in a.findings[0].symptoms} == {"too_few_workers", "slow_steps"}
    assert "num_workers=" in a.findings[0].advice


def test_the_viewers_ledger_is_the_reports(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(10):
        loop.step(MS, ("own", 4 * MS), *PLAIN, ("sync", 3 * MS), ("evaluate", 7 * MS), ("own", 20 * MS))
    loop.process.write(tmp_path)
    total = analyze(tmp_path).ledger["total"]
    trace = Trace(tmp_path)
    (part,) = [p for p in read_files(trace.processes, 1, 1 << 20) if p.info["source"] == "ledger"]
    found = ledger_between(part, int(part.start.min()), int(part.end.max()))
    for stage, ns in zip(STAGES, found.tolist(), strict=True):
        if stage != "unexplained":  # evaluation is no stage
            assert ns / 1e9 == pytest.approx(total[stage] or 0, abs=1e-6), stage


def test_inference_has_steps_and_a_verdict_in_its_own_words(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(20):
        loop.step(30 * MS, ("forward", 10 * MS), ("own", 2 * MS), inference=1)
    loop.process.write(tmp_path)
    a = analyze(tmp_path)
    assert len(a.ledger["steps"]) == 20
    assert a.verdict.startswith("The inference is input-bound: 71 % of the steady time is spent waiting")


def test_no_bottleneck_is_said_only_where_everything_else_could_be_seen(tmp_path: Path) -> None:
    """A list of batches, recorded without what lies before the model call: loading may be part of forward."""
    loop = Loop(Process(10, rank=0))
    for _ in range(20):
        loop.step(0, *PLAIN)
    loop.process.write(tmp_path)
    assert analyze(tmp_path).verdict == "Backward is the largest part (57 %)."
