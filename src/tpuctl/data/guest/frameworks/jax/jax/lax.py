"""`jax.lax`."""

from __future__ import annotations

from jax._slice import psum

__all__ = ["fori_loop", "psum"]


def fori_loop(lower, upper, body_fun, init_val):  # as in JAX
    """Return the value after all rounds of a loop."""
    for index in range(lower, upper):
        init_val = body_fun(index, init_val)
    return init_val
