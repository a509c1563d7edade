"""Ray Train: `prepare_data_loader` gives torch's batches, and its workers are processes of the run."""

from __future__ import annotations

from types import ModuleType

from dftracer.torch.patches import Patches

__all__ = ["NAME", "install"]

NAME = "Ray Train"


def install(module: ModuleType, patches: Patches) -> None:
    """Nothing is changed: its loops are recorded at torch's boundaries."""
