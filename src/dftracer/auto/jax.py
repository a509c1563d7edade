"""JAX: the step function is the boundary.

::

    from dftracer.auto import jax as dft_jax

    train_step = dft_jax.step(jax.jit(train_step))             # each call is one `compute/compute` event
    train_step = dft_jax.step(jax.jit(train_step), block=True) # and waits for its result

JAX returns before the device is done. Without `block` an event says how long the host took to dispatch the
step, and nothing is waited for; with it, how long the step took.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dftracer import _session
from dftracer._packages import need
from dftracer.python import ai

__all__ = ["step"]

P = ParamSpec("P")
R = TypeVar("R")


def step(fn: Callable[P, R], *, block: bool = False) -> Callable[P, R]:
    """`fn`, each of its calls an event with the step's number."""
    wait: Callable[[Any], Any] | None = need("jax").block_until_ready if block else None
    numbers = itertools.count()
    _session.arm()

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ai.compute(step=next(numbers), args={"blocked": int(block)}):
            result = fn(*args, **kwargs)
            if wait is not None:
                wait(result)
        return result

    return call
