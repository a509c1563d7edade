"""Backward, optimizer steps and gradient scalers: where they begin and end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer import _core
from dftracer._core import training
from dftracer.torch.boundaries import tell
from dftracer.torch.hang import COMPILE
from dftracer.torch.patches import Patches, half_made, out_of_sight, safely
from dftracer.torch.rule import ALL_INSIDE, now

_CREATE_GRAPH = 4  # its place among the parameters of `torch.autograd.grad`

_IMPORTED_US = now() // 1000  # this module is loaded once torch is


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
    if hasattr(module, "grad_and_value_impl"):  # not in older ones of torch
        patches.around(module, "grad_and_value_impl", _core.around_transform)


def install_optimizers(module: ModuleType, patches: Patches) -> None:
    """Watch every optimizer by torch's own hooks."""
    compiling = sys.modules["torch"].compiler.is_compiling

    # Compilers know this to be true, and do not see the call after it; the rest is asked natively.
    traced = sys.modules["torch"].compiler.is_dynamo_compiling
    begins, ends = _core.optimizer_step_begins, _core.optimizer_step_ends

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not traced():
            begins(optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not traced():
            ends(optimizer)

    safely(out_of_sight, before)
    safely(out_of_sight, after)
    patches.later(module.register_optimizer_step_pre_hook(before).remove)
    patches.later(module.register_optimizer_step_post_hook(after).remove)

    def around_init(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(*args: Any, **kwargs: Any) -> None:
            if compiling():
                original(*args, **kwargs)
                return
            _core.no_optimizer(False)
            tell("optimizer made", True, args[0] if args else None)
            original(*args, **kwargs)
            safely(lambda: training().optimizer_made())
            safely(_optimizer_made)
            tell("optimizer made", False, args[0] if args else None)

        return init

    patches.around(module.Optimizer, "__init__", around_init)
    _core.no_optimizer(half_made(sys.modules["torch"]))  # otherwise some may have been created before
    patches.later(lambda: _core.no_optimizer(False))


def _optimizer_made() -> None:
    """One that is made after steps begins another training. By then torch knows which rank this is."""
    facts = {"auto": 1, "imported_us": _IMPORTED_US}
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        facts |= {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    _core.log_event("optimizer", "dftracer", now(), 0, facts)


def install_scaler(module: ModuleType, patches: Patches) -> None:
    """`GradScaler.step` is the optimizer step, whether it lets the optimizer step or not."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            here = training()
            if here.scaling == ALL_INSIDE:
                return original(self, optimizer, *args, **kwargs)
            safely(here.optimizer_begins, optimizer)
            here.scaling, here.scaled = id(optimizer), False
            try:
                return original(self, optimizer, *args, **kwargs)
            finally:
                here.scaling = 0
                safely(here.optimizer_ends, optimizer, not here.scaled)

        return step

    patches.around(module.GradScaler, "step", around)


def install_compiler(module: ModuleType, patches: Patches) -> None:
    """Record when torch compiles, by its own callbacks; of nested compilations it announces the outermost."""
    handler: Any = getattr(module, "callback_handler", None)
    if handler is None:
        return
    begun: list[int] = []

    def starts(*_: Any) -> None:
        begun[:] = [now()]
        _core.busy_begins(COMPILE)

    def ends(*args: Any) -> None:
        _core.busy_ends(COMPILE)
        if begun:
            safely(_compiled, begun.pop(), args)

    def forget() -> None:  # torch._dynamo.reset() may have done so before
        for callbacks, ours in ((handler.start_callbacks, starts), (handler.end_callbacks, ends)):
            if ours in callbacks:
                callbacks.remove(ours)

    handler.register_start_callback(starts)
    handler.register_end_callback(ends)
    patches.later(forget)


def _compiled(start: int, args: tuple[Any, ...]) -> None:
    trigger = getattr(args[0], "callback_trigger", None) if args else None
    facts = {"auto": 1} if trigger is None else {"auto": 1, "trigger": trigger.name.lower()}
    # "frame/how often that frame was compiled before"; forward and backward of one compilation share it.
    again = str(getattr(args[0], "compile_id", "")).rpartition("/")[2] if args else ""
    name = "recompile" if again.isdigit() and int(again) else "compile"
    _core.log_event(name, "dynamo", start, now() - start, facts)
