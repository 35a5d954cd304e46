"""`torch_xla.runtime`."""

from __future__ import annotations

from torch_xla._process import place, worker


def world_size() -> int:
    """Return the number of devices of all workers."""
    return place.group.size


def local_ordinal() -> int:
    """Return the index of this device on its worker."""
    return place.ordinal


def local_process_count() -> int:
    """Return the number of processes of this worker."""
    return worker.chips.count


def addressable_device_count() -> int:
    """Return the number of devices of this process."""
    return worker.chips.cores
