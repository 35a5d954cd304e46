"""Retries: the decision for each failure as a table, and the delays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tpuctl.clock import ManualClock
from tpuctl.cloud.errors import (
    AnswerLostError,
    ApiError,
    ErrorResponse,
    GarbledAnswerError,
    NotSentError,
    TransportError,
    UntrustedServerError,
    parse_retry_after,
)
from tpuctl.cloud.requests import RetryPolicy, decide_retry, retrying

POLICY = RetryPolicy()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Always(Random):
    """The longest delay that jitter allows."""

    def random(self) -> float:
        return 1.0


def status(code: int, *, retry_after: int | None = None, is_rate_limit: bool = False) -> ApiError:
    wait = None if retry_after is None else timedelta(seconds=retry_after)
    return ApiError(ErrorResponse(code=code, message="", retry_after=wait, is_rate_limit=is_rate_limit))


@pytest.mark.parametrize(
    ("failure", "safe", "change"),
    [
        (NotSentError(), 1, 1),
        (UntrustedServerError(), None, None),
        (AnswerLostError(), 1, None),
        (GarbledAnswerError(), 1, None),
        (status(400), None, None),
        (status(401), None, None),
        (status(403), None, None),
        (status(404), None, None),
        (status(409), None, None),
        (status(302), None, None),
        (status(429), 1, None),
        (status(429, is_rate_limit=True), 16, 16),
        (status(429, is_rate_limit=True, retry_after=7), 7, 7),
        (status(500), 1, None),
        (status(502), 1, None),
        (status(503, retry_after=20), 20, None),
        (status(504), 1, None),
        (status(501), None, None),
        (status(503, retry_after=3600), None, None),
    ],
    ids=lambda value: str(value) or type(value).__name__,
)
def test_retry_decision_for_each_failure(
    failure: TransportError | ApiError, safe: int | None, change: int | None
) -> None:
    found = [
        decide_retry(POLICY, failure, is_safe=is_safe, attempt=1, left=POLICY.deadline, random=Always())
        for is_safe in (True, False)
    ]

    assert found == [None if wait is None else timedelta(seconds=wait) for wait in (safe, change)]


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (4, 8), (6, 30), (9, 30)])
def test_delay_doubles_up_to_a_bound(attempt: int, seconds: int) -> None:
    patient = RetryPolicy(attempts=10)

    found = decide_retry(patient, NotSentError(), is_safe=False, attempt=attempt, left=POLICY.deadline, random=Always())

    assert found == timedelta(seconds=seconds)


def test_retries_end_with_the_attempts_and_the_deadline() -> None:
    def at(attempt: int, left: float) -> timedelta | None:
        time = timedelta(seconds=left)
        return decide_retry(POLICY, NotSentError(), is_safe=True, attempt=attempt, left=time, random=Always())

    assert [at(5, 60), at(1, 1), at(1, 0.5)] == [None, timedelta(seconds=1), None]


def test_retrying_sleeps_by_the_clock_and_raises_the_last_failure() -> None:
    clock = ManualClock()
    sent: list[timedelta] = []

    def send(left: timedelta) -> None:
        assert left == POLICY.deadline - clock.monotonic()
        sent.append(clock.monotonic())
        raise NotSentError(str(len(sent)))

    with pytest.raises(NotSentError, match="5"):
        retrying(send, is_safe=False, policy=POLICY, clock=clock, random=Always())
    assert [moment.total_seconds() for moment in sent] == [0, 1, 3, 7, 15]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("3", 3),
        (" 0 ", 0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
        ("soon", None),
        ("-1", None),
        ("9" * 40, 10**8),
        # The digits of a zone are not bounded, and ends of the calendar overflow.
        ("Thu, 01 Jan 2026 00:00:30 +99999999999999", None),
        ("Fri, 31 Dec 9999 23:59:59 -2300", None),
    ],
)
def test_retry_after_accepts_seconds_and_a_date(text: str | None, seconds: int | None) -> None:
    assert parse_retry_after(text, NOW) == (None if seconds is None else timedelta(seconds=seconds))
