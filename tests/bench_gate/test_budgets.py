"""No operation costs more than its budget in bench/budgets.toml."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import gate, instructions
from bench.analyze import instructions as reading
from bench.auto import instructions as traced_step
from bench.io import writer
from bench.subjects import files, start

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
        return traced_step.least(Path(sys.executable), A_STEP)
    except instructions.Unavailable as reason:
        pytest.skip(f"instructions cannot be counted here: {reason}")


@pytest.mark.parametrize("items", A_STEP)
def test_instructions_of_automatic_tracing_a_step_stay_within_budget(
    items: str, counted_steps: dict[int, float]
) -> None:
    cost = counted_steps[int(items)]
    assert cost <= A_STEP[items], f"{items} items a batch: {cost:.0f} instructions a step"


def _counted(count: Callable[[], Any]) -> Any:
    try:
        return count()
    except instructions.Unavailable as reason:
        pytest.skip(f"instructions cannot be counted here: {reason}")


def _budget(table: str, flavour: str) -> dict[str, float]:
    found: dict[str, float] | None = BUDGETS[table].get(flavour)
    if found is None:
        pytest.skip(f"no budget for {flavour}")
    return found


def test_a_call_like_the_one_before_takes_few_instructions_in_its_thread_and_in_the_writer() -> None:
    budget = _budget("instructions_of_the_io_loop", platform.machine())
    cost = _counted(writer.count)
    assert cost.call <= budget["call"]
    assert cost.writer <= budget["writer"]


@pytest.mark.parametrize("work", reading.WORK)
def test_an_event_is_read_and_reported_in_few_instructions(work: str) -> None:
    budget = _budget("instructions_of_reading", platform.machine())
    cost = _counted(lambda: reading.count(Path(sys.executable), work))
    assert cost <= budget[work]


def test_the_command_line_starts_in_few_instructions() -> None:
    budget = _budget("million_instructions_of_starting", instructions.flavour())
    cost = _counted(lambda: start.count(Path(sys.executable)))
    assert {case: cost[case] for case in budget if cost[case] > budget[case]} == {}


def test_a_run_that_reads_files_is_hardly_larger_than_its_text_in_one_stream() -> None:
    """Beside other work a run is larger now and then (1.18 was seen); what is larger by itself is so three times."""
    over = BUDGETS["bytes_over_gzip"]["files"]
    runs = []
    for _ in range(3):
        runs.append(files.measure(Path(sys.executable)))
        if runs[-1].ours <= over * runs[-1].others["gzip -9"]:
            return
    pytest.fail(f"over {over} times gzip -9 each time: {runs}")


@pytest.mark.parametrize("operation", BUDGETS["instructions_over_empty_manager"])
def test_instructions_relative_to_an_empty_context_manager_stay_within_budget(
    operation: str, counted: dict[str, dict[str, float]]
) -> None:
    kinds = counted[operation]
    ratio = (kinds["op"] - kinds["plain"]) / (kinds[gate.EMPTY_MANAGER] - kinds["plain"])
    assert ratio <= BUDGETS["instructions_over_empty_manager"][operation]
