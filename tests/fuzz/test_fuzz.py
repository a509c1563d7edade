"""A fixed share of the fuzzing: the same damage at every run. `make fuzz` goes on from there."""

from __future__ import annotations

import pytest

from fuzz.targets import TARGETS

_SEED = 20261115
_CASES = 25


@pytest.mark.parametrize("target", TARGETS)
def test_damage_is_told_in_a_sentence(target: str) -> None:
    for number in range(_CASES):
        case = f"{_SEED} {number}"
        problem = TARGETS[target](case)
        assert problem is None, f"python -m fuzz --target {target!r} --case {case!r}\n{problem}"
