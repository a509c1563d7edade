"""Tells subscribers what a training program does.

::

    unsubscribe = boundaries.subscribe("step", lambda begins, number: print(f"step {number} is over"))
    unsubscribe()

A subscriber is called with `begins` and `what`, in the thread that crosses the boundary. The kinds:

- `loader`: before and after `iter(loader)`;
- `batch`: before and after `__next__` of the loader's iterator, also when it has no more batches;
- `model`: the outermost call of a model;
- `backward`: the outermost backward;
- `optimizer made`, `optimizer`: the creation of an optimizer, and its step; `what` is the optimizer;
- `step`: the end of a step; `what` is its number;
- `transfer`: after a copy between devices; `what` is the number of bytes;
- `collective`: a call of `torch.distributed`; `what` is its name (`collectives.listen` gives more);
- `checkpoint`: saving or loading.

The step rule (`rule`) is not a subscriber: the boundaries call it directly, because most of the cost of a
traced step is there. It notifies subscribers natively, and only if there are any.
"""

from __future__ import annotations

from dftracer import _core
from dftracer.torch.patches import Patches, safely

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, TypeAlias

    Subscriber: TypeAlias = Callable[[bool, Any], None]

# In the order of native/module/boundary.hpp.
_NATIVE = ("batch", "model", "backward", "optimizer", "step", "transfer")
KINDS = (*_NATIVE, "loader", "optimizer made", "collective", "checkpoint")

_subscribers: dict[str, tuple[Subscriber, ...]] = dict.fromkeys(KINDS, ())


def subscribe(kind: str, subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber(begins, what)` at every boundary of this kind; the result unsubscribes it."""
    _set(kind, (*_subscribers[kind], subscriber))

    def unsubscribe() -> None:
        _set(kind, tuple(each for each in _subscribers[kind] if each is not subscriber))

    return unsubscribe


def _set(kind: str, subscribers: tuple[Subscriber, ...]) -> None:
    _subscribers[kind] = subscribers
    if kind in _NATIVE:
        import functools  # noqa: PLC0415 - only where torch is in use

        _core.subscribe(_NATIVE.index(kind), functools.partial(notify, kind) if subscribers else None)


def notify(kind: str, begins: bool, what: Any = None) -> None:
    """Call the subscribers; an error in one of them affects neither the others nor the program."""
    for subscriber in _subscribers[kind]:
        safely(subscriber, begins, what)


def watch(torch: ModuleType, patches: Patches, modules: bool) -> None:
    """Observe torch from now on, with the forward pass of every module if `modules`."""
    from dftracer.torch import (  # noqa: PLC0415 - a program without torch never needs these
        checkpoint,
        collectives,
        compilations,
        compute,
        hang,
        loader,
        rule,
        tensors,
    )

    when: list[tuple[str, Callable[[ModuleType, Patches], None]]] = [
        ("torch", rule.install),
        ("torch._dynamo.eval_frame", rule.install_compiled),
        ("torch", tensors.install_transfers),
        ("torch", collectives.install),
        ("torch", hang.install),
        ("torch.utils.data.dataloader", loader.install),
        ("torch.utils.data._utils.pin_memory", tensors.install_pinning),
        ("torch.autograd", compute.install_autograd),
        ("torch._functorch.eager_transforms", compute.install_transforms),
        ("torch.optim.optimizer", compute.install_optimizers),
        ("torch.amp.grad_scaler", compute.install_scaler),
        ("torch._dynamo.callback", compilations.install),
    ]
    if modules:
        when.append(("torch", rule.install_modules))
    when += [(name, checkpoint.install) for name in checkpoint.CALLS]
    when += [(name, loader.install_transforms) for name in loader.TRANSFORMS]
    for name, install in when:
        patches.when_imported(name, install)
