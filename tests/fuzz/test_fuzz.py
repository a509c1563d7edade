"""A fixed share of the fuzzing: the same damage at every run. `make fuzz` goes on from there."""

from __future__ import annotations

import random

import pytest

from fuzz.commands import COLLECTED_VERBS, TRACE_VERBS, damaged_collection, damaged_trace

_SEED = 20261115


@pytest.mark.parametrize("verb", TRACE_VERBS)
def test_commands_survive_damaged_traces(verb: str) -> None:
    for number in range(25):
        problem = damaged_trace(random.Random(f"{_SEED} {verb} {number}"), TRACE_VERBS[verb])
        assert problem is None, f"number {number}: {problem}"


@pytest.mark.parametrize("verb", COLLECTED_VERBS)
def test_commands_survive_damaged_collections(verb: str) -> None:
    for number in range(25):
        problem = damaged_collection(random.Random(f"{_SEED} {verb} {number}"), COLLECTED_VERBS[verb])
        assert problem is None, f"number {number}: {problem}"
