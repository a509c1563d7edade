"""Events for reads that system calls do not show or do not explain: object storage and file formats.

::

    from dftracer import hooks
    hooks.install()             # for those of fsspec, h5py, safetensors and torch that are already imported
    hooks.install("fsspec")     # imports it if necessary
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from dftracer import _session
from dftracer.hooks import _patch
from dftracer.torch.patches import Patches

__all__ = ["LIBRARIES", "install", "uninstall"]

LIBRARIES: tuple[str, ...] = ("fsspec", "h5py", "safetensors", "torch")


def _module(library: str) -> ModuleType:
    return importlib.import_module(f"dftracer.hooks._{library}")


def install(*libraries: str) -> tuple[str, ...]:
    """Trace these libraries, or all that are already imported; returns the names of those now traced."""
    for library in libraries:
        if library not in LIBRARIES:
            raise ValueError(f"no hooks for {library!r}; there are hooks for {', '.join(LIBRARIES)}")
    if not _session.SETTINGS.enable:
        return ()
    wanted = libraries or tuple(name for name in LIBRARIES if name in sys.modules)
    for library in wanted:
        if library in _patch.installed:
            continue
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise ImportError(f"{library} is not installed: pip install {library}") from error
        _patch.installed[library] = Patches()
        _module(library).install(_patch.installed[library])
    return tuple(_patch.installed)


def uninstall() -> None:
    """Restore everything."""
    _patch.restore_all()
