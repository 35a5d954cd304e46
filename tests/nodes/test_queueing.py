"""`decide` for a node that is requested through the queue: one row for each rule and each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nodes.readiness_cases import AT_NOW, NAME, UP, WAIT, decision_for, node
from tpuctl.errors import NoCapacityError, QuotaError
from tpuctl.models.node import Node, QueuedState
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import SpecDifference
from tpuctl.nodes.conditions import DeleteRequest, Fail, FailedChange, ObservedState, Policy, Verb
from tpuctl.nodes.decide import decide
from tpuctl.nodes.queueing import RequestExpiredError, queue_window

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
FULL_NAME = "projects/p/locations/us-central2-b/queuedResources/trainer"
OTHER_TYPE = (SpecDifference("accelerator_type", "v4-8", "v4-16"),)


def request(state: str, initiator: str = "", *, nodes: int = 1, until: str = "2026-01-01T13:00:00Z") -> QueuedResource:
    specs = [{"nodeId": "trainer" if index == 0 else f"trainer-{index}", "node": {}} for index in range(nodes)]
    return QueuedResource.from_api(
        {
            "name": FULL_NAME,
            "createTime": "2026-01-01T11:00:00Z",
            "state": {"state": state, "stateInitiator": initiator},
            "tpu": {"nodeSpec": specs},
            "queueingPolicy": {"validUntilTime": until},
        }
    )


def asked(policy: Policy, found: QueuedResource | None, seen: Node | None = None, **fields: Any) -> str:
    return decision_for(policy, seen, is_queued=True, request=found, was_there=True, **fields)


ENDS = "[give the request up in 3600]"
DIFFERS = "accelerator_type: wanted `v4-8`, found `v4-16`"
RECORD = "only its record is left"
EXPIRED = FailedChange(Verb.CREATE, RequestExpiredError("too late"))
# what is known of the request and the node; the decision of `up`
_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "no request": ({"found": None}, "create: the old one is gone"),
    "creating": (
        {"found": request("CREATING")},
        f"wait 2: its queued resource is CREATING for 0s {ENDS}",
    ),
    "accepted": (
        {"found": request("ACCEPTED")},
        f"wait 2: its queued resource is ACCEPTED for 0s {ENDS}",
    ),
    "waiting": (
        {"found": request("WAITING_FOR_RESOURCES"), "in_request_state": 12 * MINUTE},
        f"wait 60: its queued resource is WAITING_FOR_RESOURCES for 12m {ENDS}",
    ),
    "waiting past its limit": (
        {"found": request("WAITING_FOR_RESOURCES", until="2026-01-01T12:00:00Z")},
        "wait 2: its queued resource is WAITING_FOR_RESOURCES for 0s",
    ),
    "provisioning": ({"found": request("PROVISIONING")}, "wait 2: its queued resource is PROVISIONING for 0s"),
    "provisioning at the threshold": (
        {"found": request("PROVISIONING"), "in_request_state": 2 * HOUR},
        "wait 2: its queued resource is PROVISIONING for 2h",
    ),
    "provisioning beyond the threshold": (
        {"found": request("PROVISIONING"), "in_request_state": 2 * HOUR + MINUTE},
        "wait 2: its queued resource is PROVISIONING for 2h01m, longer than 2h; it is not cancelled",
    ),
    "active without a node": (
        {"found": request("ACTIVE"), "in_request_state": 5 * MINUTE - timedelta(seconds=1)},
        "wait 2: its queued resource is ACTIVE, the node does not show yet",
    ),
    "active without a node for long": (
        {"found": request("ACTIVE"), "in_request_state": 5 * MINUTE},
        f"delete request: its node is gone: {RECORD}",
    ),
    "active with a creating node": ({"found": request("ACTIVE"), "seen": node("CREATING")}, "wait 2: it is CREATING"),
    "active with a ready node": (
        {"found": request("ACTIVE"), "seen": node()},
        "wait 2: it is READY, its workers have not been probed yet",
    ),
    "active, its node deleted by another client": (
        {"found": request("ACTIVE"), "has_vanished": True},
        "not_found: `trainer` in us-central2-b was deleted by another client",
    ),
    "suspending by the service": (
        {"found": request("SUSPENDING", "SERVICE")},
        "wait 2: its queued resource is SUSPENDING, by the service",
    ),
    "suspending by a user": (
        {"found": request("SUSPENDING", "USER")},
        "wait 2: its queued resource is SUSPENDING, by a user",
    ),
    "suspending with a dead node": (
        {"found": request("SUSPENDING", "SERVICE"), "seen": node("PREEMPTED", queuedResource=FULL_NAME)},
        "wait 2: its queued resource is SUSPENDING, by the service",
    ),
    "suspended by the service": (
        {"found": request("SUSPENDED", "SERVICE")},
        f"delete request: it is SUSPENDED, by the service: {RECORD}",
    ),
    "suspended by the service, the node dead": (
        {"found": request("SUSPENDED", "SERVICE"), "seen": node("PREEMPTED", queuedResource=FULL_NAME)},
        f"delete request: it is SUSPENDED, by the service: {RECORD}",
    ),
    "suspended by the service, the node still there": (
        {"found": request("SUSPENDED", "SERVICE"), "seen": node("DELETING", queuedResource=FULL_NAME)},
        "wait 2: its queued resource is SUSPENDED, by the service",
    ),
    "suspended by a user": (
        {"found": request("SUSPENDED", "USER")},
        "conflict: the queued resource `trainer` was suspended by a user: left alone",
    ),
    "suspended, of several nodes": (
        {"found": request("SUSPENDED", "SERVICE", nodes=3)},
        "conflict: the queued resource `trainer` of `trainer` is SUSPENDED and has 3 nodes, also trainer-1, trainer-2",
    ),
    "failed": ({"found": request("FAILED")}, f"delete request: it is FAILED: {RECORD}"),
    "failed, and another client has created the node": (
        {"found": request("FAILED"), "seen": node()},
        "wait 2: it is READY, its workers have not been probed yet",
    ),
    "suspended, and the node is of another request": (
        {"found": request("SUSPENDED", "SERVICE"), "seen": node(queuedResource=f"{FULL_NAME}-2")},
        "wait 2: it is READY, its workers have not been probed yet",
    ),
    "failed, of several nodes": (
        {"found": request("FAILED", nodes=2)},
        "conflict: the queued resource `trainer` of `trainer` is FAILED and has 2 nodes, also trainer-1",
    ),
    "failed, and that is known": (
        {"found": request("FAILED"), "failure": FailedChange(Verb.CREATE, NoCapacityError("none"))},
        f"delete request: it is FAILED: {RECORD}",
    ),
    "failed, its deletion requested": (
        {"found": request("FAILED"), "pending": Verb.DELETE, "is_request_pending": True},
        "wait 2: delete of its queued resource requested",
    ),
    "gone after a failure": (
        {"found": None, "failure": FailedChange(Verb.CREATE, NoCapacityError("none"))},
        "no_capacity: none",
    ),
    "gone after a lack of quota": (
        {"found": None, "failure": FailedChange(Verb.CREATE, QuotaError("used up"))},
        "quota: used up",
    ),
    "gone after its limit, at the end of the run": (
        {"found": None, "failure": EXPIRED, "waited": 29 * MINUTE},
        "timed_out: too late",
    ),
    "gone after the limit of an earlier run": (
        {"found": None, "failure": EXPIRED, "waited": 28 * MINUTE},
        "create: the old one is gone",
    ),
    "being deleted": ({"found": request("DELETING")}, "wait 2: its old queued resource is being deleted"),
    "unspecified": (
        {"found": request("STATE_UNSPECIFIED")},
        "wait 2: its queued resource is STATE_UNSPECIFIED, a state that tpuctl does not know",
    ),
    "a new state": (
        {"found": request("ON_HOLIDAY")},
        "wait 2: its queued resource is ON_HOLIDAY, a state that tpuctl does not know",
    ),
    "for another spec": (
        {"found": request("WAITING_FOR_RESOURCES"), "request_differences": OTHER_TYPE},
        "conflict: the queued resource `trainer` is WAITING_FOR_RESOURCES and differs from the requested spec:",
    ),
    "for another spec, of several nodes": (
        {"found": request("WAITING_FOR_RESOURCES", nodes=2), "request_differences": OTHER_TYPE},
        "conflict: the queued resource `trainer` of `trainer` is WAITING_FOR_RESOURCES and has 2 nodes, also trainer-1",
    ),
    "the creation was just requested": (
        {"found": None, "pending": Verb.CREATE, "is_request_pending": True},
        "wait 2: create of its queued resource requested",
    ),
}


@pytest.mark.parametrize("row", _ROWS)
def test_up_decides_by_the_state_of_the_request(row: str) -> None:
    facts, decision = _ROWS[row]

    assert asked(UP, **facts) == decision


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(replace(UP, queue_for=MINUTE), id="the user's limit"),
        pytest.param(replace(UP, leaves_no_record=True), id="another zone is next"),
    ],
)
def test_expired_request_ends_the_attempt_by_choice(policy: Policy) -> None:
    assert asked(policy, None, failure=EXPIRED) == "timed_out: too late"


@pytest.mark.parametrize(
    ("state", "decision"),
    [
        (
            "WAITING_FOR_RESOURCES",
            f"delete request by force to repair: it differs: {DIFFERS}",
        ),
        (
            "PROVISIONING",
            "conflict: the queued resource `trainer` is PROVISIONING and differs from the requested spec:",
        ),
    ],
    ids=["waiting", "provisioning"],
)
def test_replace_cancels_a_different_request_only_while_it_waits(state: str, decision: str) -> None:
    policy = replace(UP, replace_request=True)

    assert asked(policy, request(state), request_differences=OTHER_TYPE) == decision


def test_patient_run_asks_again_after_a_pause() -> None:
    policy = replace(UP, retries_without_capacity=True)
    failure = FailedChange(Verb.CREATE, NoCapacityError("none"), at=-timedelta(seconds=20))

    assert asked(policy, None, failure=failure) == "wait 2: create failed: none [create it in 40]"
    assert asked(policy, None, failure=replace(failure, at=-MINUTE)) == "create: the old one is gone"


# how long after the deadline; the state of the request: what the run may still do
_AFTER_THE_DEADLINE = {
    "waiting, the service ends it": (0, request("WAITING_FOR_RESOURCES", until="2026-01-01T12:00:00Z"), "wait"),
    "waiting for longer": (0, request("WAITING_FOR_RESOURCES"), "timed_out"),
    "provisioning": (0, request("PROVISIONING"), "timed_out"),
    "active": (0, request("ACTIVE"), "timed_out"),
    "failed": (0, request("FAILED"), "delete request"),
    "being deleted": (0, request("DELETING"), "wait"),
    "failed for too long": (3, request("FAILED"), "timed_out"),
    "no request": (0, None, "timed_out"),
}


@pytest.mark.parametrize("row", _AFTER_THE_DEADLINE)
def test_deadline_ends_the_run_but_not_the_clean_up(row: str) -> None:
    minutes, found, decision = _AFTER_THE_DEADLINE[row]
    waited = timedelta(minutes=30 + minutes)

    assert asked(UP, found, waited=waited).startswith(decision)


def test_timeout_names_the_request_and_the_command_that_cancels_it() -> None:
    decision = decide(
        UP,
        ObservedState(
            name=NAME, node=None, is_queued=True, request=request("PROVISIONING"), started=-timedelta(minutes=30)
        ),
        AT_NOW,
    )

    assert isinstance(decision, Fail)
    assert (
        str(decision.error) == "`trainer` is not usable by ssh after 30m: its queued resource `trainer` is PROVISIONING"
    )
    assert decision.error.hint == (
        "no change was undone: the request counts against the quota, and its node bills as soon as it runs; continue with "
        "`tpuctl up trainer`, or cancel it with `tpuctl queue cancel trainer`"
    )


def test_wait_leaves_requests_alone() -> None:
    assert asked(WAIT, request("FAILED")) == "not_found: no node `trainer` in us-central2-b"


@given(
    state=st.sampled_from([*map(str, QueuedState), "NEW"]),
    initiator=st.sampled_from(["", "USER", "SERVICE"]),
    nodes=st.integers(1, 3),
    seen=st.sampled_from([None, "CREATING", "READY", "PREEMPTED", "DELETING", "TERMINATED"]),
    differs=st.booleans(),
    replaces=st.booleans(),
    leaves_no_record=st.booleans(),
    retries_without_capacity=st.booleans(),
    vanished=st.booleans(),
    minutes=st.integers(0, 300),
    failed=st.booleans(),
)
def test_force_is_never_used_while_suspending(  # noqa: PLR0917  # drawn by hypothesis
    state: str,
    initiator: str,
    nodes: int,
    seen: str | None,
    differs: bool,
    replaces: bool,
    leaves_no_record: bool,
    retries_without_capacity: bool,
    vanished: bool,
    minutes: int,
    failed: bool,
) -> None:
    """Also never for a request of several nodes, and never a second creation while there is a request."""
    policy = replace(
        UP,
        replace=replaces,
        replace_request=replaces,
        leaves_no_record=leaves_no_record,
        retries_without_capacity=retries_without_capacity,
    )
    found = request(state, initiator, nodes=nodes)
    decision = decide(
        policy,
        ObservedState(
            name=NAME,
            node=node(seen, queuedResource=FULL_NAME) if seen else None,
            is_queued=True,
            request=found,
            request_differences=OTHER_TYPE if differs else (),
            has_vanished=vanished,
            started=-timedelta(minutes=minutes),
            request_since=-timedelta(minutes=minutes),
            failure=FailedChange(Verb.CREATE, NoCapacityError("none")) if failed else None,
        ),
        AT_NOW,
    )

    if isinstance(decision, DeleteRequest):
        assert state not in {"SUSPENDING", "DELETING", "PROVISIONING"}
        assert nodes == 1
        assert not decision.force or (replaces and state in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"})
    if seen is None:
        assert type(decision).__name__ not in {"Create", "Start", "Delete"}


@pytest.mark.parametrize(
    ("limits", "left", "valid"),
    [
        pytest.param({}, None, None, id="no limit"),
        pytest.param({}, HOUR, HOUR, id="ends with the run"),
        pytest.param({}, MINUTE / 2, MINUTE, id="shortest"),
        pytest.param({"queue_for": 2 * HOUR}, HOUR, 2 * HOUR, id="longer than the run"),
        pytest.param({"queue_for": HOUR, "queue_ends_with_run": True}, 2 * HOUR, HOUR, id="share"),
        # Its first request of that length failed: the second must not outlive the run.
        pytest.param({"queue_for": 2 * HOUR, "queue_ends_with_run": True}, HOUR, HOUR, id="share, asked again"),
        pytest.param({"queue_for": HOUR, "queue_ends_with_run": True}, None, HOUR, id="share, no deadline"),
    ],
)
def test_request_waits_no_longer_than_its_run_unless_asked_to(
    limits: dict[str, Any], left: timedelta | None, valid: timedelta | None
) -> None:
    assert queue_window(replace(UP, **limits), left, AT_NOW.utc).valid_until == valid
