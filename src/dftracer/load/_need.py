"""Optional packages, imported on use; a missing one is named together with the extra that includes it."""

from __future__ import annotations

import importlib
from typing import Any

from dftracer._packages import advice, install_name

__all__ = ["MissingExtra", "need"]


class MissingExtra(ImportError):
    """A package of an extra is not installed."""


def need(module: str, extra: str | None = None) -> Any:
    """Import `module`, or say what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        top = module.partition(".")[0]
        if e.name is not None and e.name.partition(".")[0] != top:
            raise
        package = install_name(top)
        if isinstance(e, ModuleNotFoundError):
            text = f"{package} is needed for this but is not installed: {advice(package, extra)}"
        else:
            text = (
                f"{package} is installed but does not load ({e}): {advice(package, extra)} --force-reinstall"
            )
        raise MissingExtra(text, name=top) from None
