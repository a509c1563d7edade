"""Traces whose every second is known: the ledger and the account must say where it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.load.synthetic import Process

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


def test_a_forward_pass_nobody_saw_is_unexplained(tmp_path: Path) -> None:
    loop = Loop(Process(10, rank=0))
    for _ in range(10):
        parts = (("own", 10 * MS), ("backward", 20 * MS), ("own", 5 * MS))
        loop.step(1 * MS, *parts, forward_unseen=1)
    loop.process.write(tmp_path)
    total = analyze(tmp_path).ledger["total"]
    assert total["unexplained"] == pytest.approx(0.1)
    assert total["own_code"] == pytest.approx(0.05)


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
