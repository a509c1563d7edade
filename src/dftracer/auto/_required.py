"""Frameworks are imported on use; a missing one is named together with the extra that includes it."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["required"]


def required(module: str, extra: str | None = None) -> Any:
    """Import `module`, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        wanted = f"pydftracer[{extra}]" if extra else package
        raise ImportError(f"{package} is not installed: pip install '{wanted}'", name=package) from None
