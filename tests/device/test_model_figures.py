"""Samples, tokens and FLOP per second, and their share of the device's peak."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dftracer.analyze import analyze
from dftracer.report import document
from dftracer.testing.synthetic import Process
from support.process import Run

MS = 1000


def write(folder: Path, device: str, *output: tuple[str, str]) -> None:
    p = Process(10, rank=0)
    p.metadata.append(("CM", "device.0.name", device))
    p.metadata += [("CM", key, value) for key, value in output]
    t = 0
    for i in range(20):
        p.span("compute", "forward", t + MS, 9 * MS, step=i)
        t = p.step(i + 1, t, MS, 9 * MS, step=i)
    p.write(folder)


def test_mfu_of_a_known_device(tmp_path: Path) -> None:
    write(tmp_path, "NVIDIA H200", ("step.tokens", "4096"))
    a = analyze(tmp_path)
    a.flops = 4.945e12  # in 10 ms: half of the peak
    model = document(a)["model"]
    assert model["flops_per_s"] == pytest.approx(4.945e14)
    assert model["mfu"] == pytest.approx(0.5)
    assert model["tokens_per_s"] == pytest.approx(409_600)
    assert model["steps_per_s"] == pytest.approx(100)


def test_an_unknown_device_is_said_to_be_unknown(tmp_path: Path) -> None:
    write(tmp_path, "Abacus 3000", ("step.flops", "1e12"))
    model = document(analyze(tmp_path))["model"]
    assert model["flops_per_s"] == pytest.approx(1e14)
    assert model["mfu"] is None
    assert model["note"] == "unknown device: no peak is known for Abacus 3000."


def test_without_flop_nothing_is_made_up(tmp_path: Path) -> None:
    write(tmp_path, "NVIDIA H200")
    model = document(analyze(tmp_path))["model"]
    assert (model["flops_per_s"], model["mfu"], model["tokens_per_s"]) == (None, None, None)
    assert "--flops" in model["note"]


def test_torch_counts_one_step(traced: Callable[..., Run]) -> None:
    run = traced(
        """
        import torch
        from dftracer.python.torch import count_flops
        model = torch.nn.Linear(64, 32, bias=False)
        with count_flops(samples=16, tokens=160):
            model(torch.ones(16, 64)).sum().backward()
        log.finalize()
        """,
        forked=True,
    )
    output = {m.args["name"]: m.args["value"] for m in run.trace.metadata("CM")}
    # Forward, and the gradient of the weights: 2 * 16 * 64 * 32 each.
    assert float(output["step.flops"]) == 2 * 2 * 16 * 64 * 32
    assert (output["step.samples"], output["step.tokens"]) == ("16", "160")
