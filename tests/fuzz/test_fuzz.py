"""A fixed share of the fuzzing: the same damage at every run. `make fuzz` goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.rings import killed, recover
from fuzz.targets import TARGETS

_SEED = 20261115
_CASES = 25


@pytest.mark.parametrize("target", TARGETS)
def test_damage_is_told_in_a_sentence(target: str) -> None:
    for number in range(_CASES):
        case = f"{_SEED} {number}"
        problem = TARGETS[target](case)
        assert problem is None, f"python -m fuzz --target {target!r} --case {case!r}\n{problem}"


def test_a_whole_ring_is_recovered(tmp_path: Path) -> None:
    """What is damaged above is one that would be believed."""
    _, ring, _, trace = killed()
    outcome, events, _ = recover(tmp_path, ring, trace, fresh=False)
    assert outcome == "recovered"
    assert events > 100
