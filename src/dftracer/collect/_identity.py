"""Which rank this process is: torch.distributed knows best, else what the launcher left behind."""

from __future__ import annotations

import sys
from typing import Any

from dftracer import _config

__all__ = ["distributed", "place"]


def distributed() -> Any:
    """torch.distributed with its default group made, else None."""
    module = sys.modules.get("torch.distributed")
    try:
        if module is not None and module.is_available() and module.is_initialized():
            return module
    except Exception:
        return None
    return None


def place() -> tuple[int | None, int | None, str]:
    """(rank, world size, who says so); None where nobody says."""
    module = distributed()
    if module is not None:
        try:
            return int(module.get_rank()), int(module.get_world_size()), "torch.distributed"
        except Exception:  # a group that is being destroyed
            pass
    told = _config.rank_info()
    return told.rank, told.world_size, told.source or "nobody"
