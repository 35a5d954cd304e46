"""Whether to send a request again, and when.

A request that changes nothing may always be sent again. One that changes something is sent again only when it is
certain that nothing was carried out; for all else see `outcome.py`, which looks first.

Every call has an end: it takes a minute at most with all its retries, and ends with the deadline of its command
(`clock.limit_calls`) where that is earlier.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar, assert_never

from tpuctl.api.failures import AnswerLostError, NotSentError, RefusedError, TransportError, UntrustedServerError
from tpuctl.api.headers import parse_date
from tpuctl.clock import PATIENCE, time_for_call, time_left

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tpuctl.clock import Clock

T = TypeVar("T")

_SAFE_STATUSES = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient to be. `deadline` counts from the first attempt and bounds attempts and waits together.

    `rate_limit` is the least wait after a refusal for sending too often: its windows are a minute long
    [observed: marin PR#6198, CreateNode requests per minute].
    """

    attempts: int = 5
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(seconds=30)
    rate_limit: timedelta = timedelta(seconds=15)
    deadline: timedelta = PATIENCE


# For what is good to know, and nothing that somebody should wait long for.
SHORT_PATIENCE = RetryPolicy(attempts=2, deadline=timedelta(seconds=15))


@dataclass(frozen=True, slots=True)
class Wait:
    """Send again after this long."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not send again."""


def decide(
    policy: RetryPolicy,
    failure: TransportError | RefusedError,
    *,
    is_safe: bool,
    attempt: int,
    left: timedelta,
    random: Random,
) -> Wait | GiveUp:
    """Return whether to send again after attempt number `attempt` (from 1) failed, with so much time `left` for the call."""
    if attempt >= policy.attempts or not _may_repeat(failure, is_safe=is_safe):
        return GiveUp()
    delay = _delay(policy, failure, attempt=attempt, random=random)
    return GiveUp() if delay > left else Wait(delay)


def retrying(send: Callable[[timedelta], T], *, is_safe: bool, policy: RetryPolicy, clock: Clock, random: Random) -> T:
    """Return what `send` returns, sending again as `decide` says; raises the last failure.

    `send` is given the time that is left for the call. Nothing is sent after the deadline of the command.
    """
    budget = time_for_call(policy.deadline)
    if not budget:
        raise NotSentError("the deadline has passed")
    start = clock.monotonic()
    for attempt in itertools.count(1):
        try:
            return send(start + budget - clock.monotonic())
        except (TransportError, RefusedError) as failure:
            # Nothing is sent again after a deadline, though its last call may take longer.
            left = start + budget - clock.monotonic()
            if (until_deadline := time_left()) is not None:
                left = min(left, until_deadline)
            match decide(policy, failure, is_safe=is_safe, attempt=attempt, left=left, random=random):
                case Wait(delay):
                    clock.sleep(delay)
                case GiveUp():
                    raise
                case never:
                    assert_never(never)
    raise AssertionError("count() ends never")


def backoff(policy: RetryPolicy, attempt: int, random: Random) -> timedelta:
    """Return a wait between nothing and a bound that doubles with each attempt (full jitter)."""
    bound: timedelta = min(policy.longest, policy.first * 2 ** (attempt - 1))
    return random.random() * bound


def parse_retry_after(text: str | None, now: datetime) -> timedelta | None:
    """Return the wait that a Retry-After header asks for, in seconds or as an HTTP date; nothing for what is garbled."""
    if text is None:
        return None
    if text.strip().isdecimal():
        # A number of more digits than a year has seconds would overflow a timedelta.
        return timedelta(seconds=min(int(text.strip()[:9]), 10**8))
    moment = parse_date(text)
    return None if moment is None else max(moment - now, timedelta())


def _may_repeat(failure: TransportError | RefusedError, *, is_safe: bool) -> bool:
    match failure:
        case UntrustedServerError():
            return False
        case NotSentError():
            return True
        case RefusedError(refusal=refusal):
            return refusal.is_rate_limit or (is_safe and refusal.code in _SAFE_STATUSES)
        case _:
            return is_safe and isinstance(failure, AnswerLostError)


def _delay(policy: RetryPolicy, failure: TransportError | RefusedError, *, attempt: int, random: Random) -> timedelta:
    jitter = backoff(policy, attempt, random)
    if not isinstance(failure, RefusedError):
        return jitter
    if failure.refusal.retry_after is not None:
        return failure.refusal.retry_after
    return policy.rate_limit + jitter if failure.refusal.is_rate_limit else jitter
