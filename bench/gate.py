"""The measured side of the budgets."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.rounds import Bench, compare

__all__ = ["BUDGETS", "EMPTY_MANAGER", "budgets", "time_ratio"]

BUDGETS = Path(__file__).with_name("budgets.toml")
EMPTY_MANAGER = "empty Python context manager"

_CASES = {
    "with_node": ("bench.subjects.span:with_node", True),
    "off_with_node": ("bench.subjects.off:with_node", False),
}


def budgets() -> dict[str, Any]:
    import tomllib  # noqa: PLC0415  (Python 3.11; the gate runs there)

    return tomllib.loads(BUDGETS.read_text())


def time_ratio(name: str) -> float:
    """Best time of the operation over the best of the yardstick: each reached in the same process."""
    case, traced = _CASES[name]
    with tempfile.TemporaryDirectory(prefix="gate-") as directory:
        measured = compare(Bench(Path(sys.executable), None, True, Path(directory)), case, traced=traced)
    best = {kind: min(round_[kind] for round_ in measured.ours) for kind in measured.ours[0]}
    return (best["op"] - best["plain"]) / (best[EMPTY_MANAGER] - best["plain"])
