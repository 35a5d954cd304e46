"""The delay until the next poll: short while a change is likely, never above 15 s."""

from __future__ import annotations

import random
from datetime import timedelta
from statistics import median
from typing import Any

import pytest

from tests.nodes.readiness_cases import AT_NOW, NAME, node
from tpuctl.nodes.conditions import ObservedState, Policy, PollState, Requeue, Verb
from tpuctl.nodes.decide import decide
from tpuctl.nodes.polling import poll_interval

_POLICY = Policy(timeout=None)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def pause(in_state: float = 0, pending: Verb | None = None, **pace: Any) -> float:
    """The seconds until the next poll of a node in CREATING."""
    seen = ObservedState(
        name=NAME,
        node=node("CREATING"),
        unchanged_since=-seconds(in_state),
        pending=pending,
        poll_state=PollState(**pace),
    )
    decision = decide(_POLICY, seen, AT_NOW)
    assert isinstance(decision, Requeue)
    return decision.delay.total_seconds()


_USUAL = seconds(200)


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        # Without it: a tenth of its age, sooner after an action, and with a jitter of a fifth.
        ({}, 2),
        ({"in_state": 50}, 5),
        ({"in_state": 150}, 15),
        ({"in_state": 9999}, 15),
        ({"in_state": 9999, "acted_at": -seconds(19)}, 2),
        ({"in_state": 50, "jitter": 0.0}, 4),
        ({"in_state": 50, "jitter": 0.999999999}, 6),
        ({"in_state": 9999, "jitter": 0.999}, 15),
        # Throttled: twice as long for each time.
        ({"in_state": 30, "throttled": 1}, 6),
        ({"in_state": 30, "throttled": 2}, 12),
        ({"in_state": 30, "throttled": 99}, 15),
        # With the usual duration: rare, then at the beginning of the window, then frequent, then rare again.
        ({"in_state": 10, "usual": _USUAL, "acted_at": -seconds(10)}, 15),
        ({"in_state": 165, "usual": _USUAL}, 5),
        ({"in_state": 170, "usual": _USUAL}, 2),
        ({"in_state": 230, "usual": _USUAL}, 2),
        ({"in_state": 430, "usual": _USUAL}, 15),
        ({"in_state": 200, "usual": _USUAL, "throttled": 1}, 4),
        ({"in_state": 10, "usual": _USUAL, "acted_at": -seconds(10), "pending": Verb.START}, 2),
        ({"in_state": 18, "usual": seconds(20)}, 1.7),
    ],
)
def test_poll_delay_depends_on_age_actions_and_usual_durations(situation: dict[str, Any], expected: float) -> None:
    assert pause(**situation) == pytest.approx(expected, abs=0.001)


def test_poll_interval_is_a_tenth_of_the_age() -> None:
    assert [poll_interval(seconds(age)).total_seconds() for age in (0, 20, 50, 150, 9999)] == [2, 2, 5, 15, 15]


@pytest.mark.parametrize("usual", [30, 120, 1200])
def test_change_is_observed_soon_with_few_polls(usual: float) -> None:
    """At most one poll in 5 s, and a quarter of the delay of doubling pauses."""
    chance = random.Random(usual)  # noqa: S311  # a simulation that can be repeated
    late, looks, took = [], 0, 0.0
    for _ in range(60):
        lasts, now = usual * chance.uniform(0.9, 1.1), 0.0
        while now < lasts:
            now, looks = now + pause(now, usual=seconds(usual), jitter=chance.random()), looks + 1
        late.append(now - lasts)
        took += lasts

    assert looks <= took / 5
    assert median(late) <= 1.5
