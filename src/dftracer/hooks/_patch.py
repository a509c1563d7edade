"""Recording the calls of other libraries' functions, and undoing it."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from dftracer.python import ai
from dftracer.torch.patches import Patches

# The operations are attributes created at run time, with the same names as methods.
DATA_IO: Any = ai.data.io
CHECKPOINT_IO: Any = ai.checkpoint.io

installed: dict[str, Patches] = {}


def restore_all() -> None:
    """Undo everything, newest first."""
    for patches in reversed(installed.values()):
        patches.take_back()
    installed.clear()


def trace_method(
    patches: Patches,
    owner: Any,
    name: str,
    node: Any,
    describe: Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]],
) -> None:
    """Record each call as an event of `node`; `describe(args, kwargs)` gives its args."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def traced(*args: Any, **kwargs: Any) -> Any:
            try:
                facts = describe(args, kwargs)
            except Exception:  # an unexpected way of calling must not break the program
                facts = {}
            with node(args=facts):
                return original(*args, **kwargs)

        return traced

    if isinstance(vars(owner).get(name), FunctionType):
        patches.around(owner, name, around)
    else:
        patches.instead(owner, name, around)
