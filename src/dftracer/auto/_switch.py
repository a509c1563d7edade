"""Turning automatic tracing on and off."""

from __future__ import annotations

import importlib
import os
import sys

from dftracer import _session
from dftracer._before_finalize import before_finalize
from dftracer.auto import _adapters
from dftracer.torch import imports
from dftracer.torch.patches import Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

__all__ = ["install", "installed", "uninstall"]

_patches: Patches | None = None
_registered = False
_children: set[int] = set()


def installed() -> bool:
    """Whether this process is watched."""
    return _patches is not None


def install() -> bool:
    """Watch torch, once it is imported, and its frameworks; returns whether anything is recorded."""
    global _patches  # noqa: PLW0603 - one per process
    if not _session.SETTINGS.enable:
        return False
    if _patches is not None:
        return True
    _session.arm()
    if "dftracer.python" in sys.modules:  # annotations of an earlier session say nothing of this one
        importlib.import_module("dftracer.auto._events").begin_anew()
    _patches = Patches()
    imports.when_imported("torch", _torch_is_there)
    # Not after torch: a framework that imports it is in the middle of its own import then.
    for name, ours in _adapters.ADAPTERS.items():
        _watch(name, _by_adapter(ours))
    return True


def uninstall() -> None:
    """Restore everything; open events are closed."""
    global _patches  # noqa: PLW0603
    if _patches is None:
        return
    imports.forget()
    _patches.take_back()
    _patches = None
    _finish()
    _forked()  # the next installation begins anew


def _torch_is_there(torch: ModuleType) -> None:
    """Only now load what the program may never need."""
    global _registered  # noqa: PLW0603
    if _patches is None:
        return
    checkpoint, comm, compute, hang, loader, transfer = (
        importlib.import_module(f"dftracer.torch.{name}")
        for name in ("checkpoint", "comm", "compute", "hang", "loader", "transfer")
    )
    steps: Any = importlib.import_module("dftracer.auto._steps")
    told: Any = importlib.import_module("dftracer.auto._told")
    if not _registered:
        _registered = True
        before_finalize(_finish)
        os.register_at_fork(after_in_child=_forked)
    told.found("PyTorch")
    _watch("torch", steps.install)
    _watch("torch._dynamo.eval_frame", steps.install_compiled)
    _watch("torch", transfer.install)
    _watch("torch", comm.install)
    _watch("torch", hang.install)
    _watch("torch.utils.data.dataloader", loader.install)
    _watch("torch.utils.data._utils.pin_memory", transfer.install_pinning)
    _watch("torch.autograd", compute.install_autograd)
    _watch("torch.optim.optimizer", compute.install_optimizers)
    _watch("torch.amp.grad_scaler", compute.install_scaler)
    _watch("torch._dynamo.callback", compute.install_compiler)
    if _session.SETTINGS.auto_modules:
        _watch("torch", importlib.import_module("dftracer.torch.modules").install)
    for name in checkpoint.CALLS:
        _watch(name, checkpoint.install)
    for name in loader.worker.TRANSFORMS:
        _watch(name, loader.worker.install_transforms)


def _watch(name: str, install: Any) -> None:
    patches = _patches

    def met(module: ModuleType) -> None:
        if patches is not None and patches is _patches:
            install(module, patches)

    imports.when_imported(name, met)


def _by_adapter(ours: str) -> Any:
    def install(module: ModuleType, patches: Patches) -> None:
        adapter: Any = importlib.import_module(ours)
        adapter.install(module, patches)
        importlib.import_module("dftracer.auto._told").found(adapter.NAME)

    return install


def _finish() -> None:
    steps: Any = sys.modules.get("dftracer.auto._steps")
    if steps is not None:
        failure = getattr(sys, "last_value", None)
        steps.finish_all(None if failure is None else type(failure).__name__)


def _forked() -> None:
    steps: Any = sys.modules.get("dftracer.auto._steps")
    if steps is not None:
        steps.forget_all()
