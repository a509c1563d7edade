"""All targets in one list, each a function of a case's seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from fuzz.commands import COLLECTED_VERBS, TRACE_VERBS, damaged_collection, damaged_sidecar, damaged_trace
from fuzz.readers import READERS, damaged_file
from fuzz.rings import damaged_ring

__all__ = ["TARGETS"]

Target = Callable[[str], "str | None"]


def _targets() -> dict[str, Target]:
    out: dict[str, Target] = {}
    for name in READERS:
        out[f"reader: {name}"] = lambda case, name=name: damaged_file(random.Random(case), name)  # type: ignore[misc]
    for name, words in TRACE_VERBS.items():
        out[f"trace: {name}"] = lambda case, words=words: damaged_trace(random.Random(case), words)  # type: ignore[misc]
    for name, words in COLLECTED_VERBS.items():
        out[f"collected: {name}"] = lambda case, words=words: damaged_collection(random.Random(case), words)  # type: ignore[misc]
    out["sidecar: query"] = lambda case: damaged_sidecar(random.Random(case))
    out["ring"] = lambda case: damaged_ring(random.Random(case))
    return out


TARGETS = _targets()
