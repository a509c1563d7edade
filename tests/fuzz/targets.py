"""All targets in one list, each a function of a case's seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from fuzz.commands import COLLECTED_VERBS, TRACE_VERBS, damaged_collection, damaged_sidecar, damaged_trace
from fuzz.readers import READERS, damaged_file
from fuzz.rings import damaged_ring

__all__ = ["TARGETS"]

Target = Callable[[str], "str | None"]
T = TypeVar("T")


def _case(damaged: Callable[[random.Random, T], str | None], what: T) -> Target:
    return lambda case: damaged(random.Random(case), what)


def _targets() -> dict[str, Target]:
    out: dict[str, Target] = {}
    for name in READERS:
        out[f"reader: {name}"] = _case(damaged_file, name)
    for name, words in TRACE_VERBS.items():
        out[f"trace: {name}"] = _case(damaged_trace, words)
    for name, words in COLLECTED_VERBS.items():
        out[f"collected: {name}"] = _case(damaged_collection, words)
    out["sidecar: query"] = lambda case: damaged_sidecar(random.Random(case))
    out["ring"] = lambda case: damaged_ring(random.Random(case))
    return out


TARGETS = _targets()
