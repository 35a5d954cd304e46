"""`choose_offer`: which zone is tried next, one row for each rule and each boundary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tpuctl.errors import CheckFailedError, NoCapacityError, QuotaError, TpuctlError
from tpuctl.nodes.conditions import Policy
from tpuctl.nodes.queueing import RequestExpiredError
from tpuctl.nodes.zone_order import Attempt, EndSearch, Offer, PauseSearch, TryNext, choose_offer

A, B, C = Offer("us-east1-d"), Offer("us-east5-b"), Offer("europe-west4-a")
NONE, FULL = NoCapacityError("none"), QuotaError("used up")
ZERO = QuotaError("zero", error_id="quota-limit-zero")
UNFIT = CheckFailedError("`t` was not created", details=["  TPU101 far away"])
LATE = RequestExpiredError("too late")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

# the answers so far; minutes until the deadline and since the last answer; what is next
_ROWS: dict[str, tuple[list[tuple[Offer, TpuctlError]], int | None, int, object]] = {
    "nothing tried": ([], 60, 0, A),
    "nothing tried, no time": ([], 0, 0, A),
    "first has none": ([(A, NONE)], 60, 0, B),
    "first has no quota": ([(A, FULL)], 60, 0, B),
    "first has a quota of 0": ([(A, ZERO)], 60, 0, B),
    "first waited in the queue": ([(A, LATE)], 60, 0, B),
    "first fails the checks": ([(A, UNFIT)], 60, 0, B),
    "second round after a pause": ([(A, NONE), (B, NONE), (C, NONE)], 60, 0, MINUTE),
    "pause almost over": ([(A, NONE), (B, NONE), (C, NONE)], 60, 1, A),
    "second round, second zone": ([(A, NONE), (B, NONE), (C, NONE), (A, NONE)], 60, 0, B),
    "third round after a longer pause": ([(A, NONE), (B, NONE), (C, NONE)] * 2, 60, 0, 2 * MINUTE),
    "pause ends at the deadline": ([(A, NONE), (B, NONE), (C, NONE)] * 2, 1, 0, MINUTE),
    "pause without a deadline": ([(A, NONE), (B, NONE), (C, NONE)] * 9, None, 0, 15 * MINUTE),
    "a quota of 0 is not tried again": ([(A, ZERO), (B, NONE), (C, NONE)], 60, 2, B),
    "failed checks are not tried again": ([(A, UNFIT), (B, UNFIT), (C, NONE)], 60, 2, C),
    "no zone has quota": ([(A, ZERO), (B, ZERO), (C, ZERO)], 60, 0, "quota: no quota for `v6e-8` in any of 3 zones:"),
    "no zone passes": (
        [(A, UNFIT), (B, UNFIT), (C, UNFIT)],
        60,
        0,
        "check_failed: no zone passes the checks for `v6e-8`:",
    ),
    "no time left": ([(A, NONE), (B, FULL)], 0, 0, "no_capacity: no capacity for `v6e-8` in any of 2 zones:"),
    "no time left after one zone": ([(A, NONE)], 0, 0, "no_capacity: none"),
    "no time left, only quota": ([(A, FULL), (B, ZERO)], 0, 0, "quota: no quota for `v6e-8` in any of 2 zones:"),
}


@pytest.mark.parametrize("row", _ROWS)
def test_next_zone_depends_on_the_answers_so_far(row: str) -> None:
    answers, left, since, expected = _ROWS[row]
    step = choose_offer(
        (A, B, C),
        [Attempt(offer, error, NOW) for offer, error in answers],
        Policy(),
        accelerator_type="v6e-8",
        left=None if left is None else left * MINUTE,
        since_last=since * MINUTE,
    )

    match step:
        case TryNext(offer):
            assert offer == expected
        case PauseSearch(pause):
            assert pause == expected
        case EndSearch(error):
            assert f"{error.kind}: {error.lines[0]}" == expected
