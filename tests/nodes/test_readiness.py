"""`decide`, state by state, for `up` and `wait`."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.nodes.readiness_cases import (
    AT_NOW,
    DIFFERENT,
    NO_HOST,
    NO_KEY,
    NOW,
    SECOND,
    SICK,
    SILENT,
    UP,
    WAIT,
    YES,
    decision_for,
    node,
    observed,
    queued,
    slice_,
    spot,
)
from tpuctl.models.node import Node, NodeState
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.conditions import Condition, Fail, Policy, RepairAttempts, Verb, WorkerSnapshot
from tpuctl.nodes.decide import decide

# state: what `up` does; what `wait` does
_BY_STATE = {
    "STATE_UNSPECIFIED": ("wait 2: it is STATE_UNSPECIFIED",) * 2,
    "CREATING": ("wait 2: it is CREATING",) * 2,
    "READY": ("reached",) * 2,
    "RESTARTING": ("wait 2: it is RESTARTING [restart it in 900]", "wait 2: it is RESTARTING"),
    "REIMAGING": ("wait 2: it is REIMAGING",) * 2,
    "DELETING": ("wait 2: it is being deleted", "conflict: `trainer` is being deleted"),
    "REPAIRING": ("wait 2: it is REPAIRING [restart it in 1800]", "wait 2: it is REPAIRING"),
    "STOPPED": ("start: it is STOPPED", "conflict: `trainer` is STOPPED and does not start by itself"),
    "STOPPING": ("wait 2: it is STOPPING",) * 2,
    "STARTING": ("wait 2: it is STARTING [restart it in 900]", "wait 2: it is STARTING"),
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


def test_each_state_has_a_decision_for_up_and_for_wait() -> None:
    found = {
        state: (decision_for(UP, node(state), workers=(YES,)), decision_for(WAIT, node(state), workers=(YES,)))
        for state in _BY_STATE
    }

    assert found == _BY_STATE
    assert set(NodeState) < set(_BY_STATE)


def test_goals_stopped_and_gone_only_wait() -> None:
    stopped, gone = replace(WAIT, goal=Condition.STOPPED), replace(WAIT, goal=Condition.GONE)
    dead = {
        state: f"conflict: `trainer` is {state} and will not be STOPPED"
        for state in ("PREEMPTED", "TERMINATED", "DELETING")
    }

    for state in _BY_STATE:
        waits = f"wait 2: it is {state}"
        assert decision_for(gone, node(state)) == waits
        assert decision_for(stopped, node(state)) == ({"STOPPED": "reached"} | dead).get(state, waits)
    assert decision_for(gone, None) == "reached"
    assert decision_for(stopped, None) == "not_found: no node `trainer` in us-central2-b"


_AGAIN = replace(UP, recreate_deleted=True)


def test_missing_node_is_created_only_by_up() -> None:
    assert decision_for(UP, None) == "create: there is none yet"
    assert decision_for(UP, None, attempts=RepairAttempts(recreates=1)) == "create: the old one is gone"
    assert decision_for(WAIT, None) == "not_found: no node `trainer` in us-central2-b"
    alive = {"has_vanished": True, "was_there": True, "last_alive": NOW}
    gone = "not_found: `trainer` in us-central2-b was deleted by another client at 2026-01-01T12:00:00Z"
    assert decision_for(UP, None, **alive) == decision_for(WAIT, None, **alive) == gone
    assert decision_for(_AGAIN, None, **alive) == "create: another client deleted it"
    assert decision_for(replace(_AGAIN, may_create=False), None, **alive) == gone
    assert (
        decision_for(_AGAIN, None, **alive, held_by="ann")
        == decision_for(WAIT, None, held_by="ann")
        == "wait 2: it is being repaired by ann"
    )
    going = "not_found: `trainer` in us-central2-b is being deleted by another client"
    assert decision_for(UP, node("DELETING"), **alive) == decision_for(WAIT, node("DELETING"), **alive) == going
    assert decision_for(_AGAIN, node("DELETING"), **alive) == "wait 2: it is being deleted"
    assert decision_for(WAIT, node("DELETING"), **alive, held_by="ann") == "wait 2: it is being repaired by ann"
    assert decision_for(UP, None, pending=Verb.CREATE) == "wait 2: create requested"


_REPLACE = replace(UP, replace=True)


@pytest.mark.parametrize(
    ("policy", "seen_node", "expected"),
    [
        (UP, node(), "conflict: `trainer` exists and differs from the requested spec:"),
        (UP, node("STOPPED"), "conflict: `trainer` exists and differs from the requested spec:"),
        (UP, node("CREATING"), "conflict: `trainer` exists and differs from the requested spec:"),
        (UP, node("PREEMPTED"), "delete 7: it was preempted: only its record is left"),
        (UP, node("DELETING"), "wait 2: it is being deleted"),
        (UP, node("BRAND_NEW"), "wait 2: state BRAND_NEW is new to this version of tpuctl"),
        (WAIT, node(), "reached"),
        (_REPLACE, node(), "delete 7 to repair: it differs: network: wanted `mine`, found `default`"),
        (_REPLACE, node("HIDDEN"), "delete 7 to repair: it differs: network: wanted `mine`, found `default`"),
        (_REPLACE, node("CREATING"), "wait 2: it is CREATING and will be replaced when that has ended"),
        (
            _REPLACE,
            node("STATE_UNSPECIFIED"),
            "wait 2: it is STATE_UNSPECIFIED and will be replaced when that has ended",
        ),
        (_REPLACE, node("BRAND_NEW"), "wait 2: state BRAND_NEW is new to this version of tpuctl"),
    ],
)
def test_differing_node_is_replaced_only_on_request(policy: Policy, seen_node: Node, expected: str) -> None:
    assert decision_for(policy, seen_node, differences=DIFFERENT, workers=(YES,)) == expected


_HEALTHY, _READY = replace(UP, goal=Condition.HEALTHY), replace(UP, goal=Condition.READY)
_UNSET: dict[str, Any] = {"health": None}


@pytest.mark.parametrize(
    ("policy", "seen_node", "workers", "expected"),
    [
        (_READY, node(), (), "reached"),
        (_READY, node(**_UNSET), (), "reached"),
        (
            _READY,
            node(**SICK, healthDescription="oops"),
            (),
            "reached: the service reports UNHEALTHY_TENSORFLOW (oops)",
        ),
        (_HEALTHY, node(), (), "reached"),
        (_HEALTHY, node(networkEndpoints=[]), (), "wait 2: 0 of 1 workers have an address"),
        (_HEALTHY, slice_(networkEndpoints=[{}]), (), "wait 2: 1 of 2 workers have an address"),
        (_HEALTHY, node(**_UNSET), (), "wait 2: it is READY, its health is not reported yet"),
        (_HEALTHY, node(**_UNSET), (YES,), "reached"),
        (UP, node(), (), "wait 2: it is READY, its workers have not been probed yet"),
        (UP, node(), (YES,), "reached"),
        (UP, node(**_UNSET), (YES,), "reached"),
        (UP, node(**_UNSET), (NO_KEY,), "wait 2: its worker refuses the key"),
        (UP, node(**SICK), (YES,), "wait 2: it is READY but UNHEALTHY_TENSORFLOW [give up in 300]"),
        (UP, node(health="BRAND_NEW"), (YES,), "wait 2: it is READY but BRAND_NEW"),
        (UP, slice_(), (YES, YES), "reached"),
        (UP, slice_(), (YES, SILENT), "wait 2: 1 of 2 workers do not answer ssh (1)"),
        (UP, slice_(), (NO_KEY, NO_HOST), "wait 2: 2 of 2 workers cannot be used by ssh (0, 1)"),
    ],
)
def test_each_level_requires_the_ones_before(
    policy: Policy, seen_node: Node, workers: tuple[WorkerSnapshot, ...], expected: str
) -> None:
    assert decision_for(policy, seen_node, workers=workers) == expected


@pytest.mark.parametrize(
    ("pending", "seen_node", "expected"),
    [
        (Verb.DELETE, node(), "wait 2: delete requested"),
        (Verb.DELETE, node("PREEMPTED"), "wait 2: delete requested"),
        (Verb.DELETE, None, "create: there is none yet"),
        (Verb.STOP, node(), "wait 2: stop requested"),
        (Verb.STOP, node("STOPPED"), "start: it is STOPPED"),
        (Verb.START, node("STOPPED"), "wait 2: start requested"),
        (Verb.START, node("STARTING"), "wait 2: it is STARTING [restart it in 900]"),
        (Verb.CREATE, node(), "reached"),
    ],
)
def test_requested_change_is_awaited_until_it_is_visible(pending: Verb, seen_node: Node | None, expected: str) -> None:
    assert decision_for(UP, seen_node, pending=pending, workers=(YES,)) == expected


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
            "timed_out: `trainer` is not usable by ssh after 30m: it is READY, but its workers have not been probed yet",
        ),
        (_HEALTHY, node(), -1, "reached"),
        (UP, node("STOPPED"), 1, "start: it is STOPPED"),
        (UP, node("STOPPED"), 0, "timed_out: `trainer` is not usable by ssh after 30m: it is STOPPED"),
    ],
)
def test_deadline_ends_waiting_and_acting(policy: Policy, seen_node: Node, left: int, expected: str) -> None:
    assert decision_for(policy, seen_node, waited=timedelta(minutes=30) - left * SECOND) == expected


def test_timeout_error_has_commands_to_continue_and_to_delete() -> None:
    policy = replace(WAIT, timeout=timedelta())
    go_on = (
        "no change was undone; continue with `tpuctl wait trainer --for ssh`, or delete it with `tpuctl down trainer`"
    )

    assert asked(UP, None, pending=Verb.CREATE, waited=timedelta(hours=1)) == (
        "`trainer` did not appear within 1h",
        "check it with `tpuctl status trainer`",
    )
    assert asked(UP, None, was_there=True, waited=timedelta(hours=1)) == (
        "`trainer` does not exist and was not created within 1h",
        "nothing is billed; `tpuctl up trainer` creates it",
    )
    assert asked(policy, node("CREATING")) == (
        "`trainer` is not usable by ssh: it is CREATING",
        go_on,
    )
    assert asked(policy, node(), workers=(NO_KEY,)) == (
        "`trainer` is not usable by ssh: it is READY, but its worker refuses the key",
        f"`tpuctl up trainer` adds your key to a node of yours; `tpuctl ssh trainer` shows the message of ssh\n{go_on}",
    )


def asked(policy: Policy, seen_node: Node | None, **fields: Any) -> tuple[str, str | None]:
    decision = decide(policy, observed(seen_node, **fields), AT_NOW)
    assert isinstance(decision, Fail)
    return decision.error.message, decision.error.hint


def _request(state: str, initiator: str = "SERVICE") -> QueuedResource:
    name = "projects/p/locations/us-central2-b/queuedResources/q1"
    return QueuedResource(name, {"name": name, "state": {"state": state, "stateInitiator": initiator}})


_TAKEN = (
    "conflict: `trainer` was preempted: its queued resource `q1` is SUSPENDED, and it cannot be recreated on its own"
)
_DELETED = "not_found: `trainer` in us-central2-b was deleted by another client"
_PREEMPTED = replace(WAIT, goal=Condition.PREEMPTED)


@pytest.mark.parametrize(
    ("policy", "seen_node", "fields", "expected"),
    [
        (_PREEMPTED, node(), {}, "wait 2: it is READY"),
        (_PREEMPTED, node("PREEMPTED"), {}, "reached"),
        (_PREEMPTED, spot("TERMINATED"), {}, "reached"),
        (_PREEMPTED, node("TERMINATED"), {}, "conflict: `trainer` is TERMINATED and will not be PREEMPTED"),
        (_PREEMPTED, queued("DELETING"), {}, "wait 2: it is DELETING"),
        (_PREEMPTED, queued("DELETING"), {"request": _request("SUSPENDING")}, "reached"),
        (_PREEMPTED, queued("DELETING"), {"request": _request("SUSPENDING", "USER")}, "wait 2: it is DELETING"),
        (_PREEMPTED, None, {"request": _request("SUSPENDED")}, "reached"),
        (_PREEMPTED, None, {"request": _request("ACTIVE"), "has_vanished": True}, _DELETED),
        (_PREEMPTED, None, {}, "not_found: no node `trainer` in us-central2-b"),
        (UP, None, {"request": _request("SUSPENDED"), "has_vanished": True}, _TAKEN),
        (WAIT, None, {"request": _request("SUSPENDED"), "has_vanished": True}, _TAKEN),
        (_AGAIN, queued("DELETING"), {"request": _request("SUSPENDED"), "has_vanished": True}, _TAKEN),
    ],
)  # fmt: skip
def test_node_suspended_by_the_service_is_preempted(
    policy: Policy, seen_node: Node | None, fields: dict[str, Any], expected: str
) -> None:
    assert decision_for(policy, seen_node, **fields) == expected
