"""A framework function that evaluates: what happens inside it is not training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dftracer.auto._events import now
from dftracer.auto._threads import training
from dftracer.torch.patches import safely

__all__ = ["evaluating"]


def evaluating(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, its time accounted as evaluation."""

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        here = training()
        safely(lambda: here.evaluation_begins(now()))
        try:
            return original(*args, **kwargs)
        finally:
            safely(lambda: here.evaluation_ends(now()))

    return evaluate
