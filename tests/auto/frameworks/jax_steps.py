"""A jitted step, waited for or not."""

import time

import jax
import jax.numpy as jnp

from dftracer.auto import jax as dft_jax


def slow(x):
    time.sleep(0.05)
    return x


@jax.jit
def update(x):
    return jax.pure_callback(slow, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1


update(jnp.zeros(3)).block_until_ready()
waited = dft_jax.step(update, block=True)
sent = dft_jax.step(update)
for _ in range(4):
    x = waited(jnp.zeros(3))
for _ in range(3):
    y = sent(jnp.ones(3))
print(float(x.sum()), float(y.sum()))
