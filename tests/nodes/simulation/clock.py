"""A clock with scheduled events, at which a run may be killed."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from contextvars import Context
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process was killed: none of its code may catch this."""


class SimulatedClock:
    """Time that moves only during a sleep, through all scheduled events."""

    def __init__(self) -> None:
        self._now = BEGIN
        self._plan: list[tuple[datetime, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> timedelta:
        return self._now - BEGIN

    def at(self, moment: timedelta, happen: Callable[[], None]) -> None:
        """Schedule an event at that time after the beginning."""
        heapq.heappush(self._plan, (BEGIN + moment, next(self._order), happen))

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        has_ended = threading.Event()

        def beat() -> None:
            if not has_ended.is_set():
                self.at(self.monotonic() + period, beat)
                Context().run(act)

        self.at(self.monotonic() + period, beat)
        return has_ended.set

    def sleep(self, duration: timedelta) -> None:
        end = self._now + max(duration, timedelta())
        while self._plan and self._plan[0][0] <= end:
            moment, _, happen = heapq.heappop(self._plan)
            self._now = max(self._now, moment)
            happen()
        self._now = max(self._now, end)
