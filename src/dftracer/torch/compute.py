"""Backward, optimizer steps and gradient scalers: where they begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import _core
from dftracer._core import training
from dftracer.torch.boundaries import notify
from dftracer.torch.collectives import distributed
from dftracer.torch.patches import Patches, hide_from_dynamo, is_being_imported, safely
from dftracer.torch.rule import ANY_OPTIMIZER, now

_CREATE_GRAPH = 4  # its position among the parameters of `torch.autograd.grad`

_IMPORTED_US = now() // 1000  # this module is loaded once torch is
_LATE_IMPORT = "torch._dynamo"  # as large as the rest of torch; the first optimizer imports it


def install_autograd(module: ModuleType, patches: Patches) -> None:
    """Watch `torch.autograd.backward`, which `Tensor.backward` calls, and `torch.autograd.grad`."""
    compiling = sys.modules["torch"].compiler.is_compiling

    def around_grad(original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(*args, **kwargs)
            again = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph")
            start = now()
            result = original(*args, **kwargs)
            safely(training().took_gradients, start, now(), again is not False and again is not None)
            return result

        return grad

    patches.around(module, "backward", _core.around_backward)
    patches.around(module, "grad", around_grad)


def install_transforms(module: ModuleType, patches: Patches) -> None:
    """Watch `torch.func.grad` and `grad_and_value`, which end in one function."""
    if hasattr(module, "grad_and_value_impl"):  # missing in older versions of torch
        patches.around(module, "grad_and_value_impl", _core.around_transform)


def install_optimizers(module: ModuleType, patches: Patches) -> None:
    """Watch every optimizer by torch's own hooks."""
    compiling = sys.modules["torch"].compiler.is_compiling

    # Dynamo folds this to True, so that the call after it never enters a graph; other checks are native.
    traced = sys.modules["torch"].compiler.is_dynamo_compiling
    begins, ends = _core.optimizer_step_begins, _core.optimizer_step_ends

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not traced():
            begins(optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not traced():
            ends(optimizer)

    safely(hide_from_dynamo, before)
    safely(hide_from_dynamo, after)
    patches.on_undo(module.register_optimizer_step_pre_hook(before).remove)
    patches.on_undo(module.register_optimizer_step_post_hook(after).remove)

    def around_init(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*args: Any, **kwargs: Any) -> None:
            if compiling():
                original(*args, **kwargs)
                return
            _core.no_optimizer(False)
            notify("optimizer made", True, args[0] if args else None)
            begun = 0 if _LATE_IMPORT in sys.modules else now()
            try:
                original(*args, **kwargs)
                imports = begun and _LATE_IMPORT in sys.modules
                safely(lambda: training().optimizer_made())
                safely(_optimizer_made, (now() - begun) // 1000 if imports else 0)
            finally:
                notify("optimizer made", False, args[0] if args else None)

        return init

    patches.around(module.Optimizer, "__init__", around_init)
    _core.no_optimizer(is_being_imported(sys.modules["torch"]))  # otherwise some may have been created before
    patches.on_undo(lambda: _core.no_optimizer(False))


def _optimizer_made(importing_us: int) -> None:
    """An optimizer created after steps begins another training. By then torch knows which rank this is."""
    facts = {"auto": 1, "imported_us": _IMPORTED_US}
    if importing_us:
        facts["importing_us"] = importing_us
    groups = distributed()
    if groups is not None:
        facts |= {"rank": groups.get_rank(), "world_size": groups.get_world_size()}
    _core.log_event("optimizer", "dftracer", now(), 0, facts)


def install_scaler(module: ModuleType, patches: Patches) -> None:
    """`GradScaler.step` is the optimizer step, whether it lets the optimizer step or not."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            training_state = training()
            if training_state.scaling == ANY_OPTIMIZER:
                return original(self, optimizer, *args, **kwargs)
            safely(training_state.optimizer_begins, optimizer)
            training_state.scaling, training_state.scaled = id(optimizer), False
            try:
                return original(self, optimizer, *args, **kwargs)
            finally:
                training_state.scaling = 0
                safely(training_state.optimizer_ends, optimizer, not training_state.scaled)

        return step

    patches.around(module.GradScaler, "step", around)
