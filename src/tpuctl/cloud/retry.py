"""Decide whether to send a request again, and when.

A request that changes nothing may always be sent again. A change is sent again only if it is certain that it was not
carried out; otherwise `outcome.py` reads its effect first.

Every call is limited: to one minute with all its retries, and to the deadline of its command (`clock.limit_calls`).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar, assert_never

from tpuctl.clock import CLOUD_CALL_TIMEOUT, time_for_cloud_call, time_until_deadline
from tpuctl.cloud.failures import (
    AnswerLostError,
    ApiRefusedError,
    NotSentError,
    TransportError,
    UntrustedServerError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tpuctl.clock import Clock

T = TypeVar("T")

_SAFE_STATUSES = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of attempts, and the delays between them."""

    attempts: int = 5
    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(seconds=30)
    # The minimum delay after a rate limit: its windows are a minute long
    # [observed: marin PR#6198, CreateNode requests per minute].
    rate_limit: timedelta = timedelta(seconds=15)
    # The limit for all attempts and delays, from the first attempt.
    deadline: timedelta = CLOUD_CALL_TIMEOUT


# For optional information, which is not worth a long wait.
SHORT_PATIENCE = RetryPolicy(attempts=2, deadline=timedelta(seconds=15))


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Send again after this delay."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class StopRetrying:
    """Do not send again."""


def decide_retry(
    policy: RetryPolicy,
    failure: TransportError | ApiRefusedError,
    *,
    is_safe: bool,
    attempt: int,
    left: timedelta,
    random: Random,
) -> RetryAfter | StopRetrying:
    """Return whether to send again after attempt number `attempt` (from 1) failed. `left` is the time left for the call."""
    if attempt >= policy.attempts or not _may_repeat(failure, is_safe=is_safe):
        return StopRetrying()
    delay = backoff(policy, attempt, random)
    if isinstance(failure, ApiRefusedError):
        if failure.refusal.retry_after is not None:
            delay = failure.refusal.retry_after
        elif failure.refusal.is_rate_limit:
            delay += policy.rate_limit
    return StopRetrying() if delay > left else RetryAfter(delay)


def retrying(send: Callable[[timedelta], T], *, is_safe: bool, policy: RetryPolicy, clock: Clock, random: Random) -> T:
    """Call `send`, and retry as `decide` says. Raises the last failure.

    `send` gets the time left for the call. Nothing is sent after the deadline of the command.
    """
    budget = time_for_cloud_call(policy.deadline)
    if not budget:
        raise NotSentError("the deadline has passed")
    start = clock.monotonic()
    for attempt in itertools.count(1):
        try:
            return send(start + budget - clock.monotonic())
        except (TransportError, ApiRefusedError) as failure:
            # After the deadline nothing is sent again, although the last call may take longer.
            left = start + budget - clock.monotonic()
            if (until_deadline := time_until_deadline()) is not None:
                left = min(left, until_deadline)
            match decide_retry(policy, failure, is_safe=is_safe, attempt=attempt, left=left, random=random):
                case RetryAfter(delay):
                    clock.sleep(delay)
                case StopRetrying():
                    raise
                case never:
                    assert_never(never)
    raise AssertionError("count() never ends")


def backoff(policy: RetryPolicy, attempt: int, random: Random) -> timedelta:
    """Return a random delay up to a bound that doubles with each attempt (full jitter)."""
    bound: timedelta = min(policy.longest, policy.first * 2 ** (attempt - 1))
    return random.random() * bound


def _may_repeat(failure: TransportError | ApiRefusedError, *, is_safe: bool) -> bool:
    match failure:
        case UntrustedServerError():
            return False
        case NotSentError():
            return True
        case ApiRefusedError(refusal=refusal):
            return refusal.is_rate_limit or (is_safe and refusal.code in _SAFE_STATUSES)
        case _:
            return is_safe and isinstance(failure, AnswerLostError)
