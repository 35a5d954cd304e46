"""The sandbox's clocks: time that runs faster than real time and can be advanced, the same for all processes."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tpuctl.clock import Clock


class Rate(NamedTuple):
    """How sandbox time follows real time: equal at `anchor`, `speed` times as fast since, advanced by `offset`."""

    anchor: datetime
    offset: timedelta
    speed: float


class WorldClock:
    """Sandbox time computed from the machine's: anchor + offset + (real - anchor) * speed."""

    def __init__(self, rate: Callable[[], Rate], real: Clock | None = None) -> None:
        self._rate = rate
        self._real = real or SystemClock()
        self._start = self.now()
        self._latest = timedelta()
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """Return the sandbox time."""
        rate = self._rate()
        return rate.anchor + rate.offset + (self._real.now() - rate.anchor) * rate.speed

    def monotonic(self) -> timedelta:
        """Return the sandbox time since this clock was created; it stands still while the machine's clock is set back."""
        with self._lock:
            self._latest = max(self._latest, self.now() - self._start)
            return self._latest

    def sleep(self, duration: timedelta) -> None:
        """Sleep for a duration of sandbox time: in real time `duration` / speed, less if the clock is advanced meanwhile."""
        rate = self._rate()
        end = self._real.monotonic() * rate.speed + rate.offset + duration
        while True:
            rate = self._rate()
            left = (end - rate.offset) / rate.speed - self._real.monotonic()
            if left <= timedelta():
                return
            self._real.sleep(min(left, timedelta(milliseconds=250)))


class MovedClock:
    """An injected clock, plus the time by which the sandbox was advanced."""

    def __init__(self, rate: Callable[[], Rate], clock: Clock) -> None:
        self._rate = rate
        self._clock = clock

    def now(self) -> datetime:
        """Return the injected clock's time and the offset."""
        return self._clock.now() + self._rate().offset

    def monotonic(self) -> timedelta:
        """Return the injected clock's count and the offset, which never shrinks."""
        return self._clock.monotonic() + self._rate().offset

    def sleep(self, duration: timedelta) -> None:
        """Sleep by the injected clock."""
        self._clock.sleep(duration)
