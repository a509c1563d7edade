"""Which rank this process is: torch.distributed knows best, else what the launcher left behind."""

from __future__ import annotations

from dftracer import _config
from dftracer.torch.collectives import distributed

__all__ = ["distributed", "place"]


def place() -> tuple[int | None, int | None, str]:
    """(rank, world size, who says so); None if unknown."""
    module = distributed()
    if module is not None:
        try:
            return int(module.get_rank()), int(module.get_world_size()), "torch.distributed"
        except Exception:  # a group that is being destroyed
            pass
    told = _config.rank_info()
    return told.rank, told.world_size, told.source or "nobody"
