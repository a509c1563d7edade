"""Tracing a compiled model changes no bit of its results, gradients or buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CASES = [
    "conv",
    "attention",
    "rnn",
    "dynamic shapes",
    "recompiles",
    "in-place",
    "dropout",
    "no_grad",
    "no_grad inside",
    "autocast",
    "checkpoint",
    "graph breaks",
    "several graphs",
    "DDP",
]


@pytest.fixture(scope="module")
def numerics(run_program: Any) -> Any:
    return run_program((Path(__file__).parent / "numerics_program.py").read_text())


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_equal_untraced(numerics: Any, case: str) -> None:
    assert numerics.result[case] is True


def test_no_case_is_forgotten(numerics: Any) -> None:
    assert list(numerics.result) == CASES


def test_all_of_them_are_traced_forward_and_backward(numerics: Any) -> None:
    names = {(event["args"].get("phase"), event["name"]) for event in numerics.of("dynamo")}
    assert ("forward", "function.convolution.default") in names
    assert ("backward", "function.convolution_backward.default") in names
    assert ("forward", "function.native_dropout.default") in names
