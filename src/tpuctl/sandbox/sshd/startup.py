"""The progress of a worker's startup scripts. Pure. They do not really run: the worker's programs report their progress."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.nodes.workers import Worker

# The sandbox's own choice, in sandbox time.
LENGTH = timedelta(seconds=20)
_LONG_AGO = timedelta(days=365)
_FOR_EVER = 10 * _LONG_AGO


@dataclass(frozen=True, slots=True)
class Startup:
    """The progress at the start of a session: `runs_for` more seconds of real time (0: finished), then `done` or `failed`."""

    runs_for: int
    ends_as: str


def how_far(worker: Worker, rebooted: datetime | None, now: datetime, speed: float) -> Startup:
    """Return the progress of a worker's startup. `rebooted` is when it last came up after a reboot from inside, if ever."""
    ends_as = "failed" if worker.startup_fails else "done"
    length = LENGTH + worker.startup_delay if worker.startup_delay is not None else _FOR_EVER
    boots = (boot for boot in (worker.up_since, rebooted) if boot is not None)
    began = max(boots, default=now - _LONG_AGO)
    left = max(timedelta(), began + length - now)
    return Startup(ceil(left.total_seconds() / speed), ends_as)
