"""`decide`, state by state: what `up` and `wait` do about what is there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tpuctl.errors import QuotaError
from tpuctl.model import Node, NodeState
from tpuctl.readiness import (
    Answer,
    GiveUp,
    Goal,
    Policy,
    Seen,
    Verb,
    decide,
    interval,
)

from .readiness_cases import (
    DIFFERENT,
    NAME,
    NO_HOST,
    NO_KEY,
    SECOND,
    SICK,
    SILENT,
    UP,
    WAIT,
    YES,
    look,
    node,
    queued,
    said,
    slice_,
)

# state: what `up` does; what `wait` does
_BY_STATE = {
    "STATE_UNSPECIFIED": ("wait 2: it is STATE_UNSPECIFIED",) * 2,
    "CREATING": ("wait 2: it is CREATING",) * 2,
    "READY": ("reached",) * 2,
    "RESTARTING": ("wait 2: it is RESTARTING",) * 2,
    "REIMAGING": ("wait 2: it is REIMAGING",) * 2,
    "DELETING": ("wait 2: it is being deleted", "conflict: `trainer` is being deleted"),
    "REPAIRING": ("wait 2: it is REPAIRING",) * 2,
    "STOPPED": ("start: it is STOPPED", "conflict: `trainer` is STOPPED and does not start by itself"),
    "STOPPING": ("wait 2: it is STOPPING",) * 2,
    "STARTING": ("wait 2: it is STARTING",) * 2,
    "PREEMPTED": (
        "delete 7: it was preempted: only its record is left",
        "conflict: `trainer` is PREEMPTED and cannot be used again",
    ),
    "TERMINATED": (
        "delete 7: it is TERMINATED: only its record is left",
        "conflict: `trainer` is TERMINATED and cannot be used again",
    ),
    "HIDING": ("wait 2: it is HIDING",) * 2,
    "HIDDEN": ("broken: `trainer` is HIDDEN: the service has withdrawn it",) * 2,
    "UNHIDING": ("wait 2: it is UNHIDING",) * 2,
    "UNKNOWN": ("broken: `trainer` is in the state UNKNOWN, which follows a failed repair",) * 2,
    "BRAND_NEW": ("wait 2: state BRAND_NEW is new to this version of tpuctl",) * 2,
}


def test_each_state_has_its_decision_for_up_and_for_wait() -> None:
    found = {
        state: (look(UP, node(state), answers=(YES,)), look(WAIT, node(state), answers=(YES,))) for state in _BY_STATE
    }

    assert found == _BY_STATE
    assert set(NodeState) < set(_BY_STATE)


def test_stopped_and_gone_are_waited_for_and_no_more() -> None:
    stopped, gone = replace(WAIT, goal=Goal.STOPPED), replace(WAIT, goal=Goal.GONE)
    dead = {
        state: f"conflict: `trainer` is {state} and will not be STOPPED"
        for state in ("PREEMPTED", "TERMINATED", "DELETING")
    }

    for state in _BY_STATE:
        waits = f"wait 2: it is {state}"
        assert look(gone, node(state)) == waits
        assert look(stopped, node(state)) == ({"STOPPED": "reached"} | dead).get(state, waits)
    assert look(gone, None) == "reached"
    assert look(stopped, None) == "not_found: no node `trainer` in us-central2-b"


def test_of_what_is_not_there_only_up_makes_one() -> None:
    assert look(UP, None) == "create: there is none yet"
    assert look(UP, None, recreates=1) == "create: the old one is gone"
    assert look(WAIT, None) == "not_found: no node `trainer` in us-central2-b"
    gone = "not_found: `trainer` is gone from us-central2-b: by somebody else, or because a request to create it failed"
    assert look(UP, None, has_vanished=True) == look(WAIT, None, has_vanished=True) == gone
    assert look(UP, None, pending=Verb.CREATE) == "wait 2: create requested"


_REPLACE = replace(UP, replace=True)


@pytest.mark.parametrize(
    ("policy", "seen_node", "expected"),
    [
        (UP, node(), "conflict: `trainer` exists and differs from what is asked for:"),
        (UP, node("STOPPED"), "conflict: `trainer` exists and differs from what is asked for:"),
        (UP, node("CREATING"), "conflict: `trainer` exists and differs from what is asked for:"),
        (UP, node("PREEMPTED"), "delete 7: it was preempted: only its record is left"),
        (UP, node("DELETING"), "wait 2: it is being deleted"),
        (UP, node("BRAND_NEW"), "wait 2: state BRAND_NEW is new to this version of tpuctl"),
        (WAIT, node(), "reached"),
        (_REPLACE, node(), "delete 7: it differs: network: wanted `mine`, found `default`"),
        (_REPLACE, node("HIDDEN"), "delete 7: it differs: network: wanted `mine`, found `default`"),
        (_REPLACE, node("CREATING"), "wait 2: it is CREATING and will be replaced when that has ended"),
        (
            _REPLACE,
            node("STATE_UNSPECIFIED"),
            "wait 2: it is STATE_UNSPECIFIED and will be replaced when that has ended",
        ),
        (_REPLACE, node("BRAND_NEW"), "wait 2: state BRAND_NEW is new to this version of tpuctl"),
    ],
)
def test_a_node_that_differs_is_replaced_only_when_asked(policy: Policy, seen_node: Node, expected: str) -> None:
    assert look(policy, seen_node, differences=DIFFERENT, answers=(YES,)) == expected


_HEALTHY, _READY = replace(UP, goal=Goal.HEALTHY), replace(UP, goal=Goal.READY)
_UNSET: dict[str, Any] = {"health": None}


@pytest.mark.parametrize(
    ("policy", "seen_node", "answers", "expected"),
    [
        (_READY, node(), (), "reached"),
        (_READY, node(**_UNSET), (), "reached: its health is not reported yet"),
        (
            _READY,
            node(**SICK, healthDescription="oops"),
            (),
            "reached: the service reports UNHEALTHY_TENSORFLOW (oops)",
        ),
        (_HEALTHY, node(), (), "reached"),
        (_HEALTHY, node(networkEndpoints=[]), (), "wait 2: 0 of 1 workers have an address"),
        (_HEALTHY, slice_(networkEndpoints=[{}]), (), "wait 2: 1 of 2 workers have an address"),
        (_HEALTHY, node(**_UNSET), (), "wait 2: it is READY, its health is not known yet"),
        (_HEALTHY, node(**_UNSET), (YES,), "reached: its health is not reported yet"),
        (UP, node(), (), "wait 2: it is READY, its workers have not been asked yet"),
        (UP, node(), (YES,), "reached"),
        (UP, node(**_UNSET), (YES,), "reached: its health is not reported yet"),
        (UP, node(**_UNSET), (NO_KEY,), "wait 2: its worker refuses the key"),
        (UP, node(**SICK), (YES,), "wait 2: it is READY but UNHEALTHY_TENSORFLOW"),
        (UP, node(health="BRAND_NEW"), (YES,), "wait 2: it is READY but BRAND_NEW"),
        (UP, slice_(), (YES, YES), "reached"),
        (UP, slice_(), (YES, SILENT), "wait 2: 1 of 2 workers do not answer ssh (1)"),
        (UP, slice_(), (NO_KEY, NO_HOST), "wait 2: 2 of 2 workers cannot be used by ssh (0, 1)"),
    ],
)
def test_usable_has_levels(policy: Policy, seen_node: Node, answers: tuple[Answer, ...], expected: str) -> None:
    assert look(policy, seen_node, answers=answers) == expected


@pytest.mark.parametrize(
    ("pending", "seen_node", "expected"),
    [
        (Verb.DELETE, node(), "wait 2: delete requested"),
        (Verb.DELETE, node("PREEMPTED"), "wait 2: delete requested"),
        (Verb.DELETE, None, "create: there is none yet"),
        (Verb.STOP, node(), "wait 2: stop requested"),
        (Verb.STOP, node("STOPPED"), "start: it is STOPPED"),
        (Verb.START, node("STOPPED"), "wait 2: start requested"),
        (Verb.START, node("STARTING"), "wait 2: it is STARTING"),
        (Verb.CREATE, node(), "reached"),
    ],
)
def test_a_change_is_awaited_until_it_shows(pending: Verb, seen_node: Node | None, expected: str) -> None:
    assert look(UP, seen_node, pending=pending, answers=(YES,)) == expected


def test_the_failure_of_a_change_ends_it_with_that_failure() -> None:
    failure = QuotaError("no quota for v4")

    assert decide(UP, Seen(name=NAME, node=node(), failure=failure)) == GiveUp(failure)


_QUEUED_WITHOUT_ADDRESS = (
    "timed_out: `trainer` is not usable by ssh after 30m: it is READY, but 0 of 1 workers have an address "
    "(it belongs to the queued resource `q1`)"
)


@pytest.mark.parametrize(
    ("policy", "seen_node", "left", "expected"),
    [
        (UP, node("CREATING"), 1, "wait 1: it is CREATING"),
        (UP, node("CREATING"), 0, "timed_out: `trainer` is not usable by ssh after 30m: it is CREATING"),
        (
            WAIT,
            queued("READY", networkEndpoints=[]),
            0,
            _QUEUED_WITHOUT_ADDRESS,
        ),
        (replace(WAIT, timeout=None), node("CREATING"), -9999, "wait 2: it is CREATING"),
        (
            UP,
            node(),
            0,
            "timed_out: `trainer` is not usable by ssh after 30m: it is READY, but its workers have not been asked yet",
        ),
        (_HEALTHY, node(), -1, "reached"),
        (UP, node("STOPPED"), -1, "start: it is STOPPED"),
    ],
)
def test_the_deadline_ends_only_waiting(policy: Policy, seen_node: Node, left: int, expected: str) -> None:
    assert look(policy, seen_node, waited=timedelta(minutes=30) - left * SECOND) == expected


def test_a_timeout_says_how_to_go_on_and_how_to_end_it() -> None:
    decision = decide(UP, Seen(name=NAME, node=None, pending=Verb.CREATE, waited=timedelta(hours=1)))

    assert said(decision) == "timed_out: `trainer` did not appear within 1h"
    assert isinstance(decision, GiveUp)
    assert decision.error.hint == "look again: `tpuctl status trainer`"


def test_the_next_look_is_soon_after_a_change_and_never_long_off() -> None:
    assert [interval(timedelta(seconds=seconds)).total_seconds() for seconds in (0, 20, 50, 150, 9999)] == [
        2,
        2,
        5,
        15,
        15,
    ]
