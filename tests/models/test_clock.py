"""Durations and timestamps as users and the API write them, and the manual clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.clock import ManualClock
from tpuctl.durations import format_duration, format_timestamp, parse_duration, parse_timestamp


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5", 1.5), ("90s", 90), ("30m", 1800), ("2H", 7200), (" 1d ", 86400), ("1h30m", 5400)],
)
def test_parse_duration_with_and_without_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-5s", "5 m", "1w", "h", "1h30", "forever", "99999999999d", "9" * 400])
def test_parse_duration_invalid_text_has_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write it like 90s|is longer than 3650 days"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (200, "3m20s"),
        (3599, "59m59s"),
        (3600, "1h"),
        (7500, "2h05m"),
        (172799, "47h59m"),
        (172800, "2d"),
        (4.9 * 86400, "4d"),
        (-90, "-1m30s"),
    ],
)
def test_format_duration_is_short_text(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(hours=47)))
def test_format_duration_round_trips_to_the_minute(duration: timedelta) -> None:
    assert abs(parse_duration(format_duration(duration)) - duration) <= timedelta(minutes=1)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2026-01-02T03:04:05.1Z", datetime(2026, 1, 2, 3, 4, 5, 100000, tzinfo=UTC)),
        ("2026-01-02T05:04:05+02:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (None, None),
        ("", None),
        ("yesterday", None),
        ("0001-01-01T00:00:00+14:00", None),
    ],
)
def test_parse_timestamp_is_utc_and_none_if_invalid(text: str, moment: datetime) -> None:
    assert parse_timestamp(text) == moment


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1000, 1, 1)))  # noqa: DTZ001  # hypothesis wants it naive
def test_format_timestamp_round_trips_to_the_second(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment.replace(microsecond=0)


def test_manual_clock_moves_only_by_sleep() -> None:
    clock = ManualClock()
    clock.sleep(timedelta(seconds=-5))
    clock.sleep(timedelta(minutes=2))

    assert (clock.now(), clock.monotonic()) == (datetime(2026, 1, 1, 0, 2, tzinfo=UTC), timedelta(minutes=2))
