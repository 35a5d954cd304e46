"""`torch_xla.core.xla_model`."""

from __future__ import annotations

from math import prod

from sandbox_chips import Tensor, all_reduce_time

from torch_xla._process import place

REDUCE_SUM = "sum"


def wait_device_ops() -> None:
    """Do nothing: all is computed at once."""


def mark_step() -> None:
    """Do nothing: all is computed at once."""


def all_reduce(reduce_type: str, inputs: Tensor) -> Tensor:
    """Return the sum over all devices of all workers."""
    total = place.group.sum(inputs.value)
    all_reduce_time(place.group.size, 4 * prod(inputs.shape))
    return inputs.like(total)
