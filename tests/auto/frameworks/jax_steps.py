"""A jitted step, waited for or not."""

from typing import Any

import jax
import jax.numpy as jnp

from dftracer.auto import jax as dft_jax


class Pending:
    """A result that knows whether it was waited for."""

    waits = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def block_until_ready(self) -> Any:
        Pending.waits += 1
        self.value.block_until_ready()
        return self


@jax.jit
def update(x: Any) -> Any:
    return x + 1


def pending(x: Any) -> Any:
    return Pending(update(x))


waited = dft_jax.step(pending, block=True)
sent = dft_jax.step(pending)
for _ in range(4):
    x = waited(jnp.zeros(3))
print(Pending.waits)
for _ in range(3):
    y = sent(jnp.ones(3))
print(Pending.waits)
