"""Turning automatic tracing on and off."""

from __future__ import annotations

import importlib
import os
import sys

from dftracer import _session
from dftracer._before_finalize import before_finalize
from dftracer.auto import _adapters
from dftracer.torch import boundaries, imports
from dftracer.torch.patches import Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

__all__ = ["install", "installed", "uninstall"]

_patches: Patches | None = None
_registered = False


def installed() -> bool:
    """Whether this process is watched."""
    return _patches is not None


def install() -> bool:
    """Watch torch, once it is imported, and its frameworks; returns whether anything is recorded."""
    if not _session.SETTINGS.enable:
        return False
    _session.arm()
    watch()
    return True


def watch() -> None:
    """The same without beginning to record: subscribers of `boundaries` are told what happens."""
    global _patches  # noqa: PLW0603 - one per process
    if _patches is not None:
        return
    if "dftracer.python" in sys.modules:  # annotations of an earlier session say nothing of this one
        importlib.import_module("dftracer.torch.events").begin_anew()
    _patches = Patches()
    _patches.when_imported("torch", _torch_is_there)
    # Not after torch: a framework that imports it is in the middle of its own import then.
    for name, ours in _adapters.ADAPTERS.items():
        _patches.when_imported(name, _by_adapter(ours))


def uninstall() -> None:
    """Restore everything; open events are closed."""
    global _patches  # noqa: PLW0603
    if _patches is None:
        return
    imports.forget()
    _patches.take_back()
    _patches = None
    finish()
    _forked()  # the next installation begins anew


def _torch_is_there(torch: ModuleType, patches: Patches) -> None:
    global _registered  # noqa: PLW0603
    boundaries.watch(torch, patches, _session.SETTINGS.auto_modules)
    if not _registered:
        _registered = True
        before_finalize(finish)
        os.register_at_fork(after_in_child=_forked)
    announce: Any = importlib.import_module("dftracer.auto._announce")
    announce.found("PyTorch")
    patches.later(boundaries.subscribe("loader", announce.training_begins))


def _by_adapter(ours: str) -> Any:
    def install(module: ModuleType, patches: Patches) -> None:
        adapter: Any = importlib.import_module(ours)
        adapter.install(module, patches)
        importlib.import_module("dftracer.auto._announce").found(adapter.NAME)

    return install


def finish() -> None:
    """Close what is open, in all threads: the program ends, or the recording of it."""
    rule: Any = sys.modules.get("dftracer.torch.rule")
    if rule is not None:
        failure = getattr(sys, "last_value", None)
        rule.finish_all(None if failure is None else type(failure).__name__)


def _forked() -> None:
    rule: Any = sys.modules.get("dftracer.torch.rule")
    if rule is not None:
        rule.forget_all()
