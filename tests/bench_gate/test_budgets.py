"""No operation costs more than its budget in bench/budgets.toml."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from bench import gate, instructions
from bench.auto import instructions as traced_step
from bench.io import writer

BUDGETS = gate.budgets()
EXACT = BUDGETS["instructions"].get(instructions.flavour(), {})
A_STEP = BUDGETS["instructions_of_a_traced_step"].get(instructions.flavour(), {})


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, float]]:
    try:
        return instructions.count(Path(sys.executable))
    except instructions.Unavailable as reason:
        pytest.skip(f"instructions cannot be counted here: {reason}")


@pytest.mark.parametrize("operation", EXACT)
def test_instructions_per_operation_stay_within_budget(
    operation: str, counted: dict[str, dict[str, float]]
) -> None:
    cost = counted[operation]["op"] - counted[operation]["plain"]
    assert cost <= EXACT[operation], f"{operation}: {cost:.0f} instructions"


@pytest.fixture(scope="module")
def counted_steps() -> dict[int, float]:
    pytest.importorskip("torch")
    try:
        return traced_step.count(Path(sys.executable))
    except instructions.Unavailable as reason:
        pytest.skip(f"instructions cannot be counted here: {reason}")


@pytest.mark.parametrize("items", A_STEP)
def test_instructions_of_automatic_tracing_a_step_stay_within_budget(
    items: str, counted_steps: dict[int, float]
) -> None:
    cost = counted_steps[int(items)]
    assert cost <= A_STEP[items], f"{items} items a batch: {cost:.0f} instructions a step"


def test_the_writer_needs_few_instructions_for_a_call_like_the_one_before() -> None:
    budget = BUDGETS["instructions_of_the_writer"].get(platform.machine())
    if budget is None:
        pytest.skip("no budget for this architecture")
    try:
        cost = writer.count()
    except instructions.Unavailable as reason:
        pytest.skip(f"instructions cannot be counted here: {reason}")
    assert cost <= budget["event_of_the_io_loop"], f"{cost:.0f} instructions"


@pytest.mark.parametrize("operation", BUDGETS["instructions_over_empty_manager"])
def test_instructions_relative_to_an_empty_context_manager_stay_within_budget(
    operation: str, counted: dict[str, dict[str, float]]
) -> None:
    kinds = counted[operation]
    ratio = (kinds["op"] - kinds["plain"]) / (kinds[gate.EMPTY_MANAGER] - kinds["plain"])
    assert ratio <= BUDGETS["instructions_over_empty_manager"][operation]
