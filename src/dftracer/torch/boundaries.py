"""What a training program does, for whoever wants to know.

::

    leave = boundaries.subscribe("step", lambda begins, number: print(f"step {number} is over"))
    leave()

A subscriber is called with `begins` and `what`, in the thread that crosses the boundary:

- `loader`: a loop over a loader begins, and has begun;
- `batch`: a batch is asked for, and is there, or there are no more;
- `model`: the outermost call of a model;
- `backward`: the outermost backward;
- `optimizer made`, `optimizer`: what is the optimizer;
- `step`: a step is over, where it ends; what is its number;
- `transfer`: a copy between devices was made; what is the number of bytes;
- `collective`: a call of `torch.distributed`; what is its name (`collectives.listen` gives more);
- `checkpoint`: saving or loading.

The step rule (`rule`) is not a subscriber: the boundaries call it directly, because most of the cost of a
traced step is there. What it decides is announced natively, and nothing is called where nobody subscribed.
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
    """Call `subscriber(begins, what)` at every boundary of this kind; returns what ends that."""
    _set(kind, (*_subscribers[kind], subscriber))

    def leave() -> None:
        _set(kind, tuple(each for each in _subscribers[kind] if each is not subscriber))

    return leave


def _set(kind: str, subscribers: tuple[Subscriber, ...]) -> None:
    _subscribers[kind] = subscribers
    if kind in _NATIVE:
        import functools  # noqa: PLC0415 - only where torch is in use

        _core.subscribe(_NATIVE.index(kind), functools.partial(tell, kind) if subscribers else None)


def tell(kind: str, begins: bool, what: Any = None) -> None:
    """A boundary is crossed; an error of one subscriber is not another's, nor the program's."""
    for subscriber in _subscribers[kind]:
        safely(subscriber, begins, what)


def watch(torch: ModuleType, patches: Patches, modules: bool) -> None:
    """Observe torch from now on, with the forward pass of every module if `modules`."""
    # Only now load what a program without torch never needs.
    import importlib  # noqa: PLC0415

    checkpoint, collectives, compute, hang, loader, rule, tensors = (
        importlib.import_module(f"dftracer.torch.{name}")
        for name in ("checkpoint", "collectives", "compute", "hang", "loader", "rule", "tensors")
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
        ("torch._dynamo.callback", compute.install_compiler),
    ]
    if modules:
        when.append(("torch", rule.install_modules))
    when += [(name, checkpoint.install) for name in checkpoint.CALLS]
    when += [(name, loader.install_transforms) for name in loader.TRANSFORMS]
    for name, install in when:
        patches.when_imported(name, install)
