"""Time, all of it: now, and sleep. Nothing else in the project reads a clock or sleeps.

With the embedded sandbox the clock is the sandbox's (`sandbox/world.py`), which may run faster than real time.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


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
    # The API sends up to nine digits of a second, datetime reads six.
    trimmed = re.sub(r"(\.\d{6})\d+", r"\1", text.replace("Z", "+00:00"))
    try:
        parsed = datetime.fromisoformat(trimmed)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def format_timestamp(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
