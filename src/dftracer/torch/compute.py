"""Backward, optimizer steps and gradient scalers: where they begin and end."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer.auto._events import now
from dftracer.auto._state import OPTIMIZERS
from dftracer.auto._threads import local, training
from dftracer.torch.imports import half_made
from dftracer.torch.patches import Patches, failed, out_of_sight, safely

_CREATE_GRAPH = 4  # its place among the parameters of `torch.autograd.grad`

__all__ = ["ALL_INSIDE", "install_autograd", "install_optimizers", "install_scaler"]

ALL_INSIDE = -1  # instead of one optimizer: all that step until it is taken back are parts of one step


def install_autograd(module: ModuleType, patches: Patches) -> None:
    """Watch `torch.autograd.backward`, which `Tensor.backward` calls, and `torch.autograd.grad`."""
    compiling = sys.modules["torch"].compiler.is_compiling

    def around_backward(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if compiling():  # compilers see the original function, which they know
                return original(*args, **kwargs)
            here = getattr(local, "training", None) or training()
            try:
                if not here.backward_began():
                    here.backward_begins(now())
            except Exception as error:
                failed("backward_begins", error)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                safely(here.backward_ends, error)
                raise
            try:
                if not here.backward_ended():
                    here.backward_ends()
            except Exception as error:
                failed("backward_ends", error)
            return result

        return backward

    def around_grad(original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(*args: Any, **kwargs: Any) -> Any:
            # Gradients of which gradients are taken are a part of forward (a penalty, a force).
            again = args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph")
            if compiling() or (again is not False and again is not None):
                return original(*args, **kwargs)
            start = now()
            result = original(*args, **kwargs)
            safely(training().took_gradients, start, now())
            return result

        return grad

    patches.around(module, "backward", around_backward)
    patches.around(module, "grad", around_grad)


def install_optimizers(module: ModuleType, patches: Patches) -> None:
    """Watch every optimizer by torch's own hooks."""
    compiling = sys.modules["torch"].compiler.is_compiling

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        try:
            here = getattr(local, "training", None) or training()
            if here.gradients or not here.optimizer_began(optimizer):
                if here.scaling in (id(optimizer), ALL_INSIDE):
                    return
                here.optimizer_begins(id(optimizer), now())
        except Exception as error:
            failed("optimizer_begins", error)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if compiling():
            return
        try:
            here = getattr(local, "training", None) or training()
            if here.optimizer_ended(optimizer):
                return
            if here.scaling in (id(optimizer), ALL_INSIDE):
                here.scaled = True
            else:
                here.optimizer_ends(id(optimizer), now())
        except Exception as error:
            failed("optimizer_ends", error)

    safely(out_of_sight, before)
    safely(out_of_sight, after)
    patches.later(module.register_optimizer_step_pre_hook(before).remove)
    patches.later(module.register_optimizer_step_post_hook(after).remove)

    def around_init(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*args: Any, **kwargs: Any) -> None:
            OPTIMIZERS.none = False
            original(*args, **kwargs)
            if not compiling():
                safely(lambda: training().optimizer_made())

        return init

    patches.around(module.Optimizer, "__init__", around_init)
    OPTIMIZERS.none = half_made(sys.modules["torch"])  # otherwise some may have been created before
    patches.later(functools.partial(setattr, OPTIMIZERS, "none", False))


def install_scaler(module: ModuleType, patches: Patches) -> None:
    """`GradScaler.step` is the optimizer step, whether it lets the optimizer step or not."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            here, key = training(), id(optimizer)
            if here.scaling == ALL_INSIDE:
                return original(self, optimizer, *args, **kwargs)
            safely(here.optimizer_begins, key, now())
            here.scaling, here.scaled = key, False
            try:
                return original(self, optimizer, *args, **kwargs)
            finally:
                here.scaling = None
                safely(here.optimizer_ends, key, now(), not here.scaled)

        return step

    patches.around(module.GradScaler, "step", around)
