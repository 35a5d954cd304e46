"""Time, all of it: now, and sleep. Nothing else in the project reads a clock or sleeps.

With the embedded sandbox the clock is the sandbox's (`sandbox/world.py`), which may run faster than real time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Where time comes from. `monotonic` counts from an arbitrary start and never goes back."""

    def now(self) -> datetime:
        """Return the wall-clock time, aware, in UTC."""

    def monotonic(self) -> timedelta:
        """Return the time since an arbitrary start; it does not jump when the wall clock is set."""

    def sleep(self, duration: timedelta) -> None:
        """Return after `duration`; at once when it is not positive."""


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


class ManualClock:
    """A clock that moves only when told: `sleep` moves it and returns at once. For tests and simulations."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._now = start

    def now(self) -> datetime:
        """Return the time it was last moved to."""
        return self._now

    def monotonic(self) -> timedelta:
        """Return how far it was moved."""
        return self._now - self._start

    def sleep(self, duration: timedelta) -> None:
        """Move the clock."""
        self._now += max(duration, timedelta())


# How long a call to the cloud may take in real time, with all its retries; also all calls of a command without a deadline.
PATIENCE = timedelta(seconds=60)
# A call that begins just before a deadline would otherwise fail for lack of time, and say nothing about the service.
_SHORTEST_CALL = timedelta(seconds=1)
# What one last look, an outcome that has to be looked up and the release of a lease may take after a deadline, together.
GRACE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Deadline:
    """A moment by `clock.monotonic()`, and how much longer calls may take that follow from what was begun before."""

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
        # A clock that runs fast would leave no time for it; where there is one, calls do not hang.
        return max(left + self.grace, timedelta()) if isinstance(self.clock, SystemClock) else self.grace


# Values, not a shared object: what one block or thread sets, others do not see. Clocks may differ, so all are kept.
_DEADLINES: ContextVar[tuple[_Deadline, ...]] = ContextVar("deadlines", default=())


@contextmanager
def limit_calls(
    clock: Clock, timeout: timedelta | None, *, since: timedelta | None = None, grace: timedelta = timedelta()
) -> Iterator[None]:
    """Let every call to the cloud in this block end when `timeout` has passed `since` then, or since now.

    Calls that begin later than that share the `grace`. Limits around the block stay in force. None sets no limit.
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


def time_left() -> timedelta | None:
    """Return the time until the next limit in force, negative after it. None if there is none."""
    return min((limit.left for limit in _DEADLINES.get()), default=None)


def is_late() -> bool:
    """Tell whether a limit in force has passed, so that nothing may be begun any more."""
    left = time_left()
    return left is not None and left <= timedelta()


def time_for_call(longest: timedelta) -> timedelta:
    """Return how long a call that begins now may take with all its retries; zero if it must not begin any more."""
    return min((longest, *(limit.time_for_call for limit in _DEADLINES.get())))


def with_limits(act: Callable[..., T]) -> Callable[..., T]:
    """Return `act` for other threads, where the limits of this one are to be in force too."""
    found = _DEADLINES.get()

    def act_in_time(*arguments: object) -> T:
        token = _DEADLINES.set(found)
        try:
            return act(*arguments)
        finally:
            _DEADLINES.reset(token)

    return act_in_time


_LONGEST = timedelta(days=3650)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def parse_duration(text: str) -> timedelta:
    """Return the duration that `90s`, `30m`, `2h`, `1d` or `1h30m` names; a bare number is seconds.

    Raises `ValueError` for anything else, and for a negative one.
    """
    text = text.strip().lower()
    with_unit = text + "s" if re.fullmatch(r"\d+(?:\.\d+)?", text) else text
    if not _DURATION.fullmatch(with_unit):
        raise ValueError(f"`{text}` is not a duration; write it like 90s, 30m, 2h or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(with_unit))
    if seconds > _LONGEST.total_seconds():
        # Beyond that, dates and the clocks of other programs overflow.
        raise ValueError(f"`{text}` is longer than {_LONGEST.days} days")
    return timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Return a duration as a person says it: `45s`, `3m20s`, `2h05m`, `4d`."""
    seconds = round(duration.total_seconds())
    if seconds < 0:
        return "-" + format_duration(-duration)
    if seconds < 60:
        return f"{seconds}s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s" if seconds else f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m" if minutes else f"{hours}h"
    return f"{hours // 24}d"


def parse_timestamp(text: str | None) -> datetime | None:
    """Return the time that an RFC 3339 string names, in UTC; nothing for what is absent or garbled."""
    if not text:
        return None
    try:
        # The API sends up to nine digits of a second; those that datetime cannot hold are left out.
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def format_timestamp(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    return moment.astimezone(UTC).isoformat()[:19] + "Z"
