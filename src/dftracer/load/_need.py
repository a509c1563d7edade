"""Optional packages, imported on use; a missing one is named together with the extra that brings it."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["MissingExtra", "need"]


class MissingExtra(ImportError):
    """A package of an extra is not installed."""


def need(module: str, extra: str = "analysis") -> Any:
    """Import `module`, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package = module.partition(".")[0]
        if e.name is not None and e.name.partition(".")[0] != package:
            raise
        raise MissingExtra(
            f"{package} is needed for this and is not installed: pip install 'pydftracer[{extra}]'",
            name=package,
        ) from None
