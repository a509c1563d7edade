"""The budgets: what an operation may cost."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

__all__ = ["BUDGETS", "EMPTY_MANAGER", "budgets"]

BUDGETS = Path(__file__).with_name("budgets.toml")
EMPTY_MANAGER = "empty Python context manager"


def budgets() -> dict[str, Any]:
    return tomllib.loads(BUDGETS.read_text())
