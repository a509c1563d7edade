"""Every program of the guide to compiled graphs runs as written."""

from __future__ import annotations

from typing import Any

import pytest

from support.guide_programs import original_blocks, own_blocks

# What the original leaves to the reader.
READERS_PART = """
import torch
train_loader = [(torch.randn(2, 1, 28, 28), torch.randint(0, 10, (2,))) for _ in range(2)]
"""


@pytest.mark.parametrize("program", own_blocks("guide-dynamo.md"))
def test_our_guide(run_program: Any, program: str) -> None:
    run = run_program(program)
    assert {event["args"].get("phase") for event in run.of("dynamo")} & {"forward"}


@pytest.mark.parametrize("program", original_blocks("003") or ["pass"])
def test_the_original_guide(run_program: Any, program: str) -> None:
    if program == "pass":
        pytest.skip("the original guide is not beside the repository")
    run = run_program(READERS_PART + program)
    names = {(event["name"], event["args"].get("phase")) for event in run.of("dynamo")}
    if "nn.Module" in program:
        assert ("function.addmm.default", "forward") in names
    if "backward()" in program:
        assert ("function.convolution_backward.default", "backward") in names
