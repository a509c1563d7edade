"""Every program of the profiler guide runs as written."""

from __future__ import annotations

from typing import Any

import pytest

from support.guide_programs import original_blocks, own_blocks

# What the original leaves to the reader.
READERS_PART = """
import torch
model = torch.nn.Linear(8, 8)
input_data = data = torch.randn(4, 8)
steps = 3
"""


@pytest.mark.parametrize("program", own_blocks("guide-profiler.md"))
def test_our_guide(run_program: Any, program: str) -> None:
    run = run_program(program)
    assert {"aten::linear", "aten::mm"} & {event["name"] for event in run.of("PP")}


@pytest.mark.parametrize("program", original_blocks("002") or ["pass"])
def test_the_original_guide(run_program: Any, program: str) -> None:
    if program == "pass":
        pytest.skip("the original guide is not beside the repository")
    run = run_program(READERS_PART + program)
    assert "aten::linear" in {event["name"] for event in run.of("PP")}
