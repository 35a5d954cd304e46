"""The place of this process among those of its worker: a process for each chip, a thread for each of its cores."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from sandbox_chips import Group

# `chips` is set before the processes start, `place` in each of them.
worker = SimpleNamespace(chips=None)
place = threading.local()


class Device:
    """The device of this thread."""

    def multiply(self, operations: float) -> None:
        """Compute."""
        worker.chips.multiply(place.ordinal // worker.chips.cores, operations)


def join(ordinal: int) -> None:
    """Take the place of a device, when all others have theirs."""
    chips = worker.chips
    place.ordinal, place.devices = ordinal, chips.count * chips.cores
    place.group = Group(chips.worker * place.devices + ordinal, chips.workers * place.devices)
