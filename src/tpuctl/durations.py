"""Durations, timestamps and sizes as text. Pure: nothing here reads a clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

LONGEST_DURATION = timedelta(days=3650)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def parse_duration(text: str) -> timedelta:
    """Parse a duration like `90s`, `30m`, `2h`, `1d` or `1h30m`; a bare number is seconds.

    Raises `ValueError` for anything else, and for a negative duration.
    """
    text = text.strip().lower()
    with_unit = text + "s" if re.fullmatch(r"\d+(?:\.\d+)?", text) else text
    if not _DURATION.fullmatch(with_unit):
        raise ValueError(f"`{text}` is not a duration; write it like 90s, 30m, 2h or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(with_unit))
    if seconds > LONGEST_DURATION.total_seconds():
        # Longer durations overflow dates and the clocks of other programs.
        raise ValueError(f"`{text}` is longer than {LONGEST_DURATION.days} days")
    return timedelta(seconds=seconds)


def parse_long_duration(text: str) -> timedelta:
    """Parse a duration whose unit decides about money: a bare number is an error, which says what it could mean.

    Raises `ValueError`.
    """
    duration, number = parse_duration(text), text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", number):
        raise ValueError(f"`{number}` has no unit: write `{number}h` for hours or `{number}m` for minutes")
    return duration


def format_duration(duration: timedelta) -> str:
    """Return a duration as short text: `45s`, `3m20s`, `2h05m`, `4d`."""
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
    """Parse an RFC 3339 time, as UTC. None if it is absent or invalid."""
    if not text:
        return None
    try:
        # The API sends up to nine digits of a second; datetime drops those beyond microseconds.
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def format_timestamp(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC, to the second."""
    return moment.astimezone(UTC).isoformat()[:19] + "Z"


def local_time(moment: datetime) -> datetime:
    """Return a moment in the local time zone; in UTC if `TZ` is a day or more away from it, which Python cannot express."""
    try:
        return moment.astimezone()
    except ValueError:
        return moment.astimezone(UTC)


@lru_cache(maxsize=16)  # of the answers of one second
def parse_http_date(text: str | None) -> datetime | None:
    """Parse the time of a `Date` or `Retry-After` header; None if it is absent or garbled."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # 5 ms

    try:
        moment = parsedate_to_datetime(text or "")
    except (ValueError, OverflowError):
        # The digits of a zone are not bounded.
        return None
    # Years at the ends of the calendar overflow as soon as an hour is added or a time zone applied.
    if not 2 <= moment.year <= 9998:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_size(size: float) -> str:
    """Return a number of bytes with a decimal unit: `512 B`, `1.5 MB`, `20 GB`."""
    power = 0
    while size >= 999.5 and power < len(_SIZE_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_SIZE_UNITS[power]}" if size < 9.95 and power else f"{size:.0f} {_SIZE_UNITS[power]}"
