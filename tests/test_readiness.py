"""`decide`, rule by rule and boundary by boundary; and what it never does, whatever is seen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuctl.errors import QuotaError
from tpuctl.model import Difference, Health, Node, NodeState, Tier
from tpuctl.names import NodeName
from tpuctl.readiness import (
    Answer,
    Create,
    Decision,
    Delete,
    GiveUp,
    Goal,
    Policy,
    Reached,
    Reboot,
    Repair,
    Restart,
    Seen,
    Start,
    Verb,
    Wait,
    decide,
    interval,
)

NAME = NodeName("p", "us-central2-b", "trainer")
UP = Policy(may_create=True, may_start=True, repair=Repair.RESTART)
WAIT = Policy()
SECOND = timedelta(seconds=1)
YES, SILENT, NO_KEY, NO_HOST = Answer.YES, Answer.UNREACHABLE, Answer.KEY_REFUSED, Answer.HOST_KEY_CHANGED
DIFFERENT = (Difference("network", "mine", "default"),)
SICK = {"health": "UNHEALTHY_TENSORFLOW"}


def node(state: str = "READY", **fields: Any) -> Node:
    """A healthy v4-8 with one address, but for the fields given."""
    raw = {"name": str(NAME), "id": "7", "state": state, "acceleratorType": "v4-8", "health": "HEALTHY"}
    workers = Node(NAME, raw | fields).workers
    return Node(NAME, raw | {"networkEndpoints": [{"ipAddress": "10.0.0.2"}] * workers} | fields)


def slice_(state: str = "READY", **fields: Any) -> Node:
    return node(state, acceleratorType="v4-16", **fields)


def spot(state: str, **fields: Any) -> Node:
    return node(state, schedulingConfig={"spot": True}, **fields)


def queued(state: str, **fields: Any) -> Node:
    return node(state, queuedResource="projects/p/locations/us-central2-b/queuedResources/q1", **fields)


def said(decision: Decision) -> str:
    """A decision in one line; of an error, its kind and the first line."""
    match decision:
        case Reached(note):
            return "reached" + (f": {note}" if note else "")
        case GiveUp(error):
            return f"{error.kind}: {str(error).splitlines()[0]}"
        case Wait(delay, reason):
            return f"wait {delay.total_seconds():g}: {reason}"
        case Delete(reason, node_id):
            return f"delete {node_id}: {reason}"
        case Create(reason) | Start(reason) | Restart(reason) | Reboot(reason):
            return f"{type(decision).__name__.lower()}: {reason}"


def look(policy: Policy, seen_node: Node | None, **fields: Any) -> str:
    return said(decide(policy, Seen(name=NAME, node=seen_node, **fields)))


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
    gone = "not_found: `trainer` is gone from us-central2-b: somebody deleted it, or an earlier request to create it failed"
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
_UNSET = {"health": None}


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


_SICK_FOR = UP.unhealthy_after
_SILENT_FOR = UP.unanswered_after
_SLOW_FOR = UP.slow_after
_OURS: dict[str, Any] = {"is_ours": True, "in_state": _SICK_FOR}
_SICK_TEXT = "it is READY but UNHEALTHY_TENSORFLOW"
_REBOOT, _RECREATE, _NONE = (replace(UP, repair=step) for step in (Repair.REBOOT, Repair.RECREATE, Repair.NONE))
_FORCED = replace(UP, forced=True)
_SPENT: dict[str, Any] = _OURS | {"restarts": 2}
_SLICE_TEXT = "it is a slice of 2 workers, and the service stops single-worker nodes only"
_SPOT_TEXT = "it is a spot node, and those cannot be started again once stopped"
_QUEUED_TEXT = "it belongs to the queued resource `q1`, whose nodes cannot be stopped"
_LATE: dict[str, Any] = {"in_state": _SILENT_FOR, "answers": (SILENT,)}
_NO_ANSWER = "it is READY but its worker does not answer ssh"


@pytest.mark.parametrize(
    ("policy", "seen_node", "fields", "expected"),
    [
        # Health: a defect is acted on from its threshold on, and only on a node of ours or one that nobody can be using.
        (UP, node(**SICK), _OURS | {"in_state": _SICK_FOR - SECOND}, f"wait 15: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS, f"restart: {_SICK_TEXT}"),
        (UP, node(health="TIMEOUT"), _OURS, "restart: it is READY but TIMEOUT"),
        (UP, node(**SICK), _OURS | {"is_ours": False}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "answers": (YES,)}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "answers": (NO_KEY,)}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "answers": (NO_HOST,)}, f"broken: `trainer`: {_SICK_TEXT}"),
        (UP, node(**SICK), _OURS | {"is_ours": False, "answers": (SILENT,)}, f"restart: {_SICK_TEXT}"),
        (_FORCED, node(**SICK), _OURS | {"is_ours": False, "answers": (YES,)}, f"restart: {_SICK_TEXT}"),
        (WAIT, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}"),
        (_NONE, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}"),
        # What is no evidence of a defect is only waited for.
        (UP, node(health="UNHEALTHY_MAINTENANCE"), _LATE | {"is_ours": True}, "wait 15: it is READY but UNHEALTHY_MAINTENANCE"),
        (UP, node(health="BRAND_NEW"), _OURS, "wait 15: it is READY but BRAND_NEW"),
        (UP, node(**_UNSET), _OURS, "wait 15: it is READY, its health is not known yet"),
        # Silence.
        (UP, node(), _LATE | {"is_ours": True, "in_state": _SILENT_FOR - SECOND}, "wait 15: its worker does not answer ssh"),
        (UP, node(), _LATE | {"is_ours": True}, f"restart: {_NO_ANSWER}"),
        (UP, node(**_UNSET), _LATE | {"is_ours": True}, f"restart: {_NO_ANSWER}"),
        (UP, node(), _LATE, "wait 15: it is READY, but its worker does not answer ssh"),
        (_FORCED, node(), _LATE, f"restart: {_NO_ANSWER}"),
        (UP, node(), _LATE | {"is_ours": True, "answers": (NO_KEY,)}, "wait 15: its worker refuses the key"),
        (WAIT, node(), _LATE, "wait 15: it is READY, but its worker does not answer ssh"),
        # The ladder: what cannot be restarted is rebooted; what is used up is recreated, where that is allowed.
        (_REBOOT, node(**SICK), _OURS | {"answers": (YES,)}, f"reboot: {_SICK_TEXT}"),
        (_REBOOT, node(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, a restart is not allowed"),
        (UP, slice_(**SICK), _OURS | {"answers": (YES, SILENT)}, f"reboot: {_SICK_TEXT}; {_SLICE_TEXT}"),
        (UP, slice_(**SICK), _OURS, f"broken: `trainer`: {_SICK_TEXT}, {_SLICE_TEXT}"),
        (UP, spot("READY", **SICK), _OURS | {"answers": (YES,)}, f"reboot: {_SICK_TEXT}; {_SPOT_TEXT}"),
        (UP, queued("READY", **SICK), _OURS | {"answers": (YES,)}, f"reboot: {_SICK_TEXT}; {_QUEUED_TEXT}"),
        (UP, node(**SICK), _OURS | {"refused_stop": "no", "answers": (YES,)}, f"reboot: {_SICK_TEXT}; no"),
        (UP, node(**SICK), _OURS | {"refused_stop": "no"}, f"broken: `trainer`: {_SICK_TEXT}, no"),
        (UP, node(**SICK), _OURS | {"restarts": 1}, f"restart: {_SICK_TEXT}"),
        (UP, node(**SICK), _SPENT, f"broken: `trainer`: {_SICK_TEXT}, still so after 2 restarts"),
        (UP, node(**SICK), _SPENT | {"answers": (YES,)}, f"broken: `trainer`: {_SICK_TEXT}, still so after 2 restarts"),
        (_RECREATE, node(**SICK), _OURS, f"restart: {_SICK_TEXT}"),
        (_RECREATE, node(**SICK), _SPENT, f"delete 7: {_SICK_TEXT}"),
        (_RECREATE, slice_(**SICK), _OURS, f"delete 7: {_SICK_TEXT}"),
        (
            _RECREATE,
            node(**SICK),
            _SPENT | {"recreates": 1},
            f"broken: `trainer`: {_SICK_TEXT}, still so after 2 restarts",
        ),
        (_RECREATE, node(**SICK), _SPENT | {"is_ours": False}, f"broken: `trainer`: {_SICK_TEXT}"),
        # Too long in a passing state.
        (UP, node("STARTING"), {"in_state": _SLOW_FOR - SECOND}, "wait 15: it is STARTING"),
        (UP, node("STARTING"), {"in_state": _SLOW_FOR}, "restart: it has been STARTING for 15m"),
        (UP, node("REPAIRING"), {"in_state": _SLOW_FOR}, "restart: it has been REPAIRING for 15m"),
        (UP, node("RESTARTING"), {"in_state": _SLOW_FOR}, "restart: it has been RESTARTING for 15m"),
        (UP, node("STARTING"), {"in_state": _SLOW_FOR, "restarts": 2}, "wait 15: it has been STARTING for 15m"),
        (UP, node("STARTING"), {"in_state": _SLOW_FOR, "refused_stop": "no"}, "wait 15: it has been STARTING for 15m"),
        (UP, slice_("STARTING"), {"in_state": _SLOW_FOR + 9 * SECOND}, "wait 15: it is STARTING"),
        (UP, slice_("STARTING"), {"in_state": _SLOW_FOR + 10 * SECOND}, "wait 15: it has been STARTING for 15m10s"),
        (UP, spot("STARTING"), {"in_state": _SLOW_FOR}, "wait 15: it has been STARTING for 15m"),
        (_REBOOT, node("STARTING"), {"in_state": _SLOW_FOR}, "wait 15: it has been STARTING for 15m"),
        (WAIT, node("STARTING"), {"in_state": _SLOW_FOR}, "wait 15: it has been STARTING for 15m"),
        (UP, node("CREATING"), {"in_state": timedelta(hours=5)}, "wait 15: it is CREATING"),
        (UP, node("STOPPING"), {"in_state": timedelta(hours=5)}, "wait 15: it is STOPPING"),
        # What cannot be started again.
        (UP, spot("STOPPED"), {}, f"conflict: `trainer` is STOPPED, and {_SPOT_TEXT}"),
        (UP, queued("STOPPED"), {}, f"conflict: `trainer` is STOPPED, and {_QUEUED_TEXT}"),
        (UP, spot("TERMINATED"), {}, "delete 7: it was preempted: only its record is left"),
    ],
)  # fmt: skip
def test_repair_has_thresholds_budgets_and_limits(
    policy: Policy, seen_node: Node, fields: dict[str, Any], expected: str
) -> None:
    assert look(policy, seen_node, **fields) == expected


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


@pytest.mark.parametrize(
    ("policy", "seen_node", "left", "expected"),
    [
        (UP, node("CREATING"), 1, "wait 1: it is CREATING"),
        (UP, node("CREATING"), 0, "timed_out: `trainer` is not ssh after 30m: it is CREATING"),
        (
            WAIT,
            queued("READY", networkEndpoints=[]),
            0,
            "timed_out: `trainer` is not ssh after 30m: it is READY, but 0 of 1 workers have an address "
            "(it belongs to the queued resource `q1`)",
        ),
        (replace(WAIT, timeout=None), node("CREATING"), -9999, "wait 2: it is CREATING"),
        (
            UP,
            node(),
            0,
            "timed_out: `trainer` is not ssh after 30m: it is READY, but its workers have not been asked yet",
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


_durations = st.timedeltas(min_value=timedelta(), max_value=timedelta(hours=3))
_nodes = st.builds(
    node,
    st.sampled_from([*map(str, NodeState), "BRAND_NEW"]),
    health=st.sampled_from([*map(str, Health), "BRAND_NEW", None]),
    acceleratorType=st.sampled_from(["v4-8", "v4-16", "v9-4"]),
    schedulingConfig=st.sampled_from([{}, {str(Tier.SPOT): True}]),
    queuedResource=st.sampled_from([None, "projects/p/locations/z/queuedResources/q1"]),
    id=st.sampled_from(["7", "8"]),
)
_policies = st.builds(
    Policy,
    goal=st.sampled_from(Goal),
    may_create=st.booleans(),
    may_start=st.booleans(),
    replace=st.booleans(),
    forced=st.booleans(),
    repair=st.sampled_from(Repair),
    max_restarts=st.integers(0, 3),
    max_recreates=st.integers(0, 3),
    timeout=st.none() | _durations,
)
_seen = st.builds(
    Seen,
    name=st.just(NAME),
    node=st.none() | _nodes,
    differences=st.sampled_from([(), DIFFERENT]),
    in_state=_durations,
    waited=_durations,
    answers=st.lists(st.sampled_from(Answer), max_size=2).map(tuple),
    is_ours=st.booleans(),
    restarts=st.integers(0, 4),
    recreates=st.integers(0, 4),
    refused_stop=st.sampled_from([None, "no"]),
    has_vanished=st.booleans(),
    pending=st.none() | st.sampled_from(Verb),
)


@settings(max_examples=1500, deadline=None)
@given(_policies, _seen)
def test_whatever_is_seen_the_limits_are_kept(policy: Policy, seen: Seen) -> None:
    decision = decide(policy, seen)
    acts = isinstance(decision, (Create, Start, Restart, Reboot, Delete))
    there = seen.node

    if isinstance(decision, Delete):
        assert there is not None
        assert decision.node_id == there.id
        assert there.state is not NodeState.CREATING
        assert there.state.is_dead or policy.may_create or policy.replace
    if policy.repair is Repair.NONE and not seen.differences and there is not None and not there.state.is_dead:
        assert not isinstance(decision, (Delete, Restart, Reboot))
    if there is not None and not there.state.is_known:
        assert not acts
    if isinstance(decision, (Restart, Reboot)):
        assert seen.restarts < policy.max_restarts
    if isinstance(decision, Restart):
        assert there is not None
        assert there.why_not_restartable() is None
    if isinstance(decision, Create):
        assert (there, policy.may_create, seen.has_vanished) == (None, True, False)
    if isinstance(decision, Wait):
        assert timedelta() < decision.delay <= timedelta(seconds=15)
        assert policy.timeout is None or seen.waited + decision.delay <= policy.timeout


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(Goal), _seen)
def test_wait_only_waits(goal: Goal, seen: Seen) -> None:
    seen = replace(seen, waited=timedelta(hours=3))

    assert isinstance(decide(replace(WAIT, goal=goal), seen), (Reached, GiveUp))
    assert isinstance(decide(replace(WAIT, goal=goal, timeout=None), seen), (Reached, GiveUp, Wait))
