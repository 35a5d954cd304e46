"""`jax.numpy`."""

from __future__ import annotations

from jax._slice import Array

bfloat16, float32 = "bfloat16", "float32"


def ones(shape: tuple[int, ...], dtype: str = float32) -> Array:
    """Return an array of ones."""
    return Array(1.0, shape, dtype)


def full(shape: tuple[int, ...], fill_value: float, dtype: str = float32) -> Array:
    """Return an array of one value."""
    return Array(fill_value, shape, dtype)
