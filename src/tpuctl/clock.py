"""The only module that reads a clock or sleeps; also the deadlines of calls to the cloud.

The sandbox has its own clock, which may run faster than real time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """The source of time. `monotonic` counts from an arbitrary start and never goes back."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> timedelta:
        """Return the time since an arbitrary start; it does not jump when the wall clock is set."""

    def sleep(self, duration: timedelta) -> None:
        """Return after `duration`, at once if it is not positive."""

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` once each period, beside the caller and without its deadlines, until the returned function is called."""


def call_in_thread(
    clock: Clock, period: timedelta, act: Callable[[], None], *, pause: Callable[[timedelta], timedelta]
) -> Callable[[], None]:
    """Do what `Clock.every` says, in a daemon thread, which does not keep an interrupted process alive.

    `pause` returns how long to wait in real time before the next look at a clock, which has so much time left.
    """
    has_ended = threading.Event()

    def work() -> None:
        due = clock.monotonic() + period
        while not has_ended.wait(max(pause(due - clock.monotonic()), timedelta()).total_seconds()):
            if clock.monotonic() >= due:
                act()
                due = clock.monotonic() + period

    threading.Thread(target=work, name="heartbeat", daemon=True).start()
    return has_ended.set


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the machine's time."""
        return datetime.now(UTC)

    def monotonic(self) -> timedelta:
        """Return the time that the machine was awake, from an arbitrary start."""
        return timedelta(seconds=time.monotonic())

    def sleep(self, duration: timedelta) -> None:
        """Sleep in real time."""
        if duration > timedelta():
            time.sleep(duration.total_seconds())

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` in a thread of its own."""
        return call_in_thread(self, period, act, pause=lambda left: left)


class _Beat:
    """What a manual clock calls each period; `due` is by `monotonic`."""

    def __init__(self, due: timedelta, period: timedelta, act: Callable[[], None]) -> None:
        self.due, self.period, self.act = due, period, act


class ManualClock:
    """A clock that only `sleep` moves, which returns at once. For tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._now = start
        self._beats: list[_Beat] = []
        self._beating = threading.Lock()

    def now(self) -> datetime:
        """Return the start plus all sleeps."""
        return self._now

    def monotonic(self) -> timedelta:
        """Return the sum of all sleeps."""
        return self._now - self._start

    def sleep(self, duration: timedelta) -> None:
        """Move the clock, and call what becomes due on the way at its time, unless this is such a call."""
        end = self._now + max(duration, timedelta())
        # Another thread that calls may wait for this one.
        if self._beats and self._beating.acquire(blocking=False):
            try:
                while due := [beat for beat in self._beats if self._start + beat.due <= end]:
                    beat = min(due, key=lambda each: each.due)
                    self._now = max(self._now, self._start + beat.due)
                    beat.due += beat.period
                    Context().run(beat.act)
            finally:
                self._beating.release()
        self._now = max(self._now, end)

    def every(self, period: timedelta, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` in the thread that sleeps beyond its time."""
        beat = _Beat(self.monotonic() + period, period, act)
        self._beats.append(beat)
        return partial(self._end, beat)

    def _end(self, beat: _Beat) -> None:
        with suppress(ValueError):  # ended before
            self._beats.remove(beat)


# The limit for a call to the cloud in real time, with all its retries; also for all calls of a command without a deadline.
CLOUD_CALL_TIMEOUT = timedelta(seconds=60)
# Without it, a call just before a deadline would fail for lack of time, which says nothing about the service.
_SHORTEST_CALL = timedelta(seconds=1)
# The time after a deadline for a last fetch, for reading the outcome of a change and for releasing a lease, together.
DEADLINE_GRACE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Deadline:
    """A moment of `clock.monotonic()`, and how much longer calls may take that complete work begun before it."""

    clock: Clock
    ends: timedelta
    grace: timedelta

    @property
    def left(self) -> timedelta:
        return self.ends - self.clock.monotonic()

    @property
    def time_for_call(self) -> timedelta:
        left = self.left
        if left > timedelta():
            return max(left, _SHORTEST_CALL)
        # A fast clock would leave no time; but only the sandbox has one, and its calls do not hang.
        return max(left + self.grace, timedelta()) if isinstance(self.clock, SystemClock) else self.grace


# Values, not a shared object: what one block or thread sets, others do not see. Clocks may differ, so all are kept.
_DEADLINES: ContextVar[tuple[_Deadline, ...]] = ContextVar("deadlines", default=())


@contextmanager
def limit_cloud_calls(
    clock: Clock, timeout: timedelta | None, *, since: timedelta | None = None, grace: timedelta = timedelta()
) -> Iterator[None]:
    """Limit every call to the cloud in this block to `timeout` after `since`, by default after now. None sets no limit.

    Calls that begin later share the `grace`. Outer limits stay in force.
    """
    if timeout is None:
        yield
        return
    ends = (clock.monotonic() if since is None else since) + timeout
    token = _DEADLINES.set((*_DEADLINES.get(), _Deadline(clock, ends, grace)))
    try:
        yield
    finally:
        _DEADLINES.reset(token)


def time_until_deadline() -> timedelta | None:
    """Return the time until the next limit, negative after it. None if there is no limit."""
    return min((limit.left for limit in _DEADLINES.get()), default=None)


def deadline_has_passed() -> bool:
    """Return whether a limit has passed, so that no new work may begin."""
    left = time_until_deadline()
    return left is not None and left <= timedelta()


def time_for_cloud_call(longest: timedelta) -> timedelta:
    """Return how long a call that begins now may take, with all its retries. Zero if it must not begin."""
    return min((longest, *(limit.time_for_call for limit in _DEADLINES.get())))


def with_current_deadlines(act: Callable[..., T]) -> Callable[..., T]:
    """Return `act` with the limits of this thread, for use in other threads."""
    found = _DEADLINES.get()

    def act_in_time(*arguments: object) -> T:
        token = _DEADLINES.set(found)
        try:
            return act(*arguments)
        finally:
            _DEADLINES.reset(token)

    return act_in_time
