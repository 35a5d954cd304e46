"""How far the startup scripts of a worker are. Pure. They are not run: a worker's programs only tell that they run and end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.nodes.workers import Worker

# The sandbox's own choice, in its time.
LENGTH = timedelta(seconds=20)
_LONG_AGO = timedelta(days=365)
_FOR_EVER = 10 * _LONG_AGO


@dataclass(frozen=True, slots=True)
class Startup:
    """How it stands as a session begins: `runs_for` seconds of real time more, 0 when it has ended; then `done` or `failed`."""

    runs_for: int
    ends_as: str


def how_far(worker: Worker, rebooted: datetime | None, now: datetime, speed: float) -> Startup:
    """Return how the startup of a worker stands. `rebooted` is when it last came up again from inside, if ever."""
    ends_as = "failed" if worker.startup_fails else "done"
    length = LENGTH + worker.startup_delay if worker.startup_delay is not None else _FOR_EVER
    boots = (boot for boot in (worker.up_since, rebooted) if boot is not None)
    began = max(boots, default=now - _LONG_AGO)
    left = max(timedelta(), began + length - now)
    return Startup(ceil(left.total_seconds() / speed), ends_as)
