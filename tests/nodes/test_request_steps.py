"""How one queued resource is deleted, awaited and requested again: a row for each rule and boundary."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.errors import ConflictError, NoCapacityError, NotFoundError, TpuctlError
from tpuctl.models.node import QueuedState, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.nodes.conditions import Fail
from tpuctl.nodes.queueing import RequestExpiredError
from tpuctl.nodes.request_steps import (
    LINGER_TIME,
    AwaitRequest,
    ObservedRequest,
    RemovalStep,
    RequestGoal,
    RequestGone,
    RequestReached,
    SendRequestDelete,
    decide_awaited,
    decide_removal,
)

PARENT = "projects/p/locations/us-central1-a"
SPEC = {"acceleratorType": "v5litepod-16", "runtimeVersion": "v2-alpha-tpuv5-lite"}
SECOND = timedelta(seconds=1)


def request(state: str, initiator: str = "", *, nodes: tuple[str, ...] = ("demo",), **fields: Any) -> QueuedResource:
    """Return a queued resource `demo` in a state."""
    specs = [{"parent": PARENT, "nodeId": node_id, "node": SPEC} for node_id in nodes]
    shown = {"state": state, **({"stateInitiator": initiator} if initiator else {})}
    raw = {"name": f"{PARENT}/queuedResources/demo", "state": shown, "tpu": {"nodeSpec": specs}, **fields}
    return QueuedResource.from_api(raw)


def waits(text: str) -> AwaitRequest:
    """Return the step that waits because of this."""
    return AwaitRequest(f"its queued resource is {text}")


DELETE, FORCE = SendRequestDelete(force=False), SendRequestDelete(force=True)
DELETING = waits("being deleted")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param("CREATING", FORCE, id="creating"),
        pytest.param("ACCEPTED", FORCE, id="accepted"),
        pytest.param("WAITING_FOR_RESOURCES", FORCE, id="waiting"),
        pytest.param("PROVISIONING", FORCE, id="provisioning"),
        pytest.param("ACTIVE", FORCE, id="active"),
        pytest.param("SUSPENDED", DELETE, id="suspended-is-a-record"),
        pytest.param("FAILED", DELETE, id="failed-is-a-record"),
        pytest.param("SUSPENDING", waits("SUSPENDING, and is deleted after that"), id="suspending-waits"),
        pytest.param("DELETING", DELETING, id="deleting-waits"),
        pytest.param(
            "STATE_UNSPECIFIED",
            waits("STATE_UNSPECIFIED, a state that tpuctl does not know: not deleted"),
            id="unspecified-waits",
        ),
        pytest.param("RESUMING", waits("RESUMING, a state that tpuctl does not know: not deleted"), id="unknown-waits"),
    ],
)
def test_removal_by_state(state: str, expected: RemovalStep) -> None:
    assert decide_removal(ObservedRequest(request=request(state))) == expected


LINGERS = waits("FAILED after its deletion")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param({"request": None}, RequestGone(), id="absent"),
        pytest.param(
            {"request": None, "is_delete_pending": True}, RequestGone(), id="absent-before-the-operation-ended"
        ),
        pytest.param({"is_delete_pending": True}, DELETING, id="delete-pending"),
        pytest.param({"since_delete": timedelta()}, LINGERS, id="just-deleted"),
        pytest.param({"since_delete": LINGER_TIME - SECOND}, LINGERS, id="before-the-limit"),
        pytest.param({"since_delete": LINGER_TIME}, DELETE, id="lingers-and-is-deleted-again"),
    ],
)
def test_removal_after_a_delete(seen: dict[str, Any], expected: RemovalStep) -> None:
    assert decide_removal(ObservedRequest(**{"request": request("FAILED"), **seen})) == expected


@given(
    state=st.one_of(st.sampled_from([*QueuedState]), st.text("ABC_", min_size=1).map(QueuedState)),
    initiator=st.sampled_from(["", "USER", "SERVICE"]),
    is_pending=st.booleans(),
    since=st.none() | st.timedeltas(timedelta(), timedelta(days=30)),
)
def test_force_is_never_sent_to_a_request_that_is_suspending_dead_or_unknown(
    state: QueuedState, initiator: str, since: timedelta | None, *, is_pending: bool
) -> None:
    seen = ObservedRequest(request=request(str(state), initiator), is_delete_pending=is_pending, since_delete=since)
    alive = {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"}

    step = decide_removal(seen)

    assert step != FORCE or state in alive
    assert state not in {"SUSPENDING", "DELETING"} or isinstance(step, AwaitRequest)


CAUSE = NoCapacityError("no more capacity")
UNTIL: dict[str, Any] = {"createTime": "2026-01-01T00:00:00Z", "queueingPolicy": {"validUntilDuration": "3600s"}}


@pytest.mark.parametrize(
    ("found", "cause", "expected"),
    [
        pytest.param(request("ACTIVE"), None, RequestReached(), id="active"),
        pytest.param(request("CREATING"), None, AwaitRequest("it is CREATING"), id="creating"),
        pytest.param(request("ACCEPTED"), None, AwaitRequest("it is ACCEPTED"), id="accepted"),
        pytest.param(
            request("WAITING_FOR_RESOURCES"),
            None,
            AwaitRequest("it is WAITING_FOR_RESOURCES"),
            id="waiting-for-resources",
        ),
        pytest.param(request("PROVISIONING"), None, AwaitRequest("it is PROVISIONING"), id="provisioning"),
        pytest.param(request("SUSPENDING", "SERVICE"), None, AwaitRequest("it is SUSPENDING"), id="suspending"),
        pytest.param(
            request("RESUMING"), None, AwaitRequest("it is RESUMING, a state that tpuctl does not know"), id="unknown"
        ),
        pytest.param(request("FAILED"), CAUSE, NoCapacityError, id="failed-with-a-cause"),
        pytest.param(request("FAILED", **UNTIL), None, RequestExpiredError, id="failed-at-its-limit"),
        pytest.param(request("SUSPENDED", "SERVICE"), None, ConflictError, id="suspended-by-the-service"),
        pytest.param(request("SUSPENDED", "USER"), None, ConflictError, id="suspended-by-a-user"),
        pytest.param(request("DELETING"), None, ConflictError, id="deleting"),
        pytest.param(None, None, NotFoundError, id="absent"),
    ],
)
def test_wait_for_active(
    found: QueuedResource | None, cause: TpuctlError | None, expected: AwaitRequest | RequestReached | type[TpuctlError]
) -> None:
    step = decide_awaited(RequestGoal.ACTIVE, "demo", found, cause)

    assert (type(step.error) if isinstance(step, Fail) else step) == expected


@pytest.mark.parametrize("state", ["ACTIVE", "FAILED", "SUSPENDED", "DELETING", "RESUMING"])
def test_wait_for_gone_ends_only_with_the_request(state: str) -> None:
    assert decide_awaited(RequestGoal.GONE, "demo", request(state), CAUSE) == AwaitRequest(f"it is {state}")
    assert decide_awaited(RequestGoal.GONE, "demo", None, None) == RequestReached()


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAITING = "WAITING_FOR_RESOURCES"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {"tier": Tier.ON_DEMAND}, id="on-demand"),
        pytest.param({"spot": {}}, {"tier": Tier.SPOT}, id="spot"),
        pytest.param({"bestEffort": {}}, {"tier": Tier.BEST_EFFORT}, id="best-effort"),
        pytest.param(
            {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": "3600s"}},
            {"tier": Tier.FLEX_START, "run_for": timedelta(hours=1)},
            id="flex-start",
        ),
        pytest.param(
            {"reservationName": f"{PARENT}/reservations/-"},
            {"tier": Tier.RESERVED, "reservation": None},
            id="any-reservation",
        ),
        pytest.param(
            {"reservationName": f"{PARENT}/reservations/r", "provisioningModel": "RESERVATION_BOUND"},
            {"tier": Tier.RESERVED, "reservation": f"{PARENT}/reservations/r", "is_calendar": True},
            id="calendar",
        ),
    ],
)
def test_spec_of_a_request_asks_for_the_same_again(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = request("FAILED", **fields).spec("p")

    assert {name: getattr(spec, name) for name in expected} == expected
    assert (spec.accelerator_type, spec.is_queued) == ("v5litepod-16", True)
