"""Faults of queued resources: how they die, come back and disagree with their nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault, list_faults

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-central2-b"
NAME = f"{ZONE}/queuedResources/trainer"
SPEC: dict[str, Any] = {
    "parent": ZONE,
    "nodeId": "trainer",
    "node": {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"},
}
BODY: dict[str, Any] = {"tpu": {"nodeSpec": [SPEC]}, "spot": {}}
MINUTE = timedelta(minutes=1)
WAITING = ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"]


def fault(sandbox_state: SandboxState, kind: FaultKind, **values: Any) -> None:
    with sandbox_state.write() as session:
        add_fault(session, Fault(kind, **values))


def request(api: Api) -> Any:
    return api("queuedResources.create", BODY, parent=ZONE, queuedResourceId="trainer")


def path(api: Api, clock: ManualClock, minutes: int) -> list[tuple[str, str, object]]:
    """Return state and initiator of the request with the state of its node, each time that one changes."""
    seen: list[tuple[str, str, object]] = []
    for _ in range(minutes * 15):
        answer = api("queuedResources.get", name=NAME)
        state = answer["state"] if isinstance(answer, dict) else {"state": str(answer[0])}
        entry = (state["state"], state.get("stateInitiator", ""), api.state("trainer"))
        seen += [entry] if not seen or seen[-1] != entry else []
        clock.sleep(timedelta(seconds=4))
    return seen


@pytest.mark.parametrize("initiator", ["SERVICE", "USER"])
def test_request_is_suspended_as_soon_as_it_is_active(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, initiator: str
) -> None:
    fault(sandbox_state, FaultKind.SUSPEND, node="trainer", initiator=initiator)
    request(api)

    assert path(api, clock, 15)[-3:] == [
        ("ACTIVE", "", "READY"),
        ("SUSPENDING", initiator, "DELETING"),
        ("SUSPENDED", initiator, 404),
    ]


def test_active_request_is_suspended_at_once(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    request(api)
    clock.sleep(15 * MINUTE)
    fault(sandbox_state, FaultKind.SUSPEND, node="trainer", initiator="USER")

    assert path(api, clock, 5) == [("SUSPENDING", "USER", "DELETING"), ("SUSPENDED", "USER", 404)]


def test_late_node_appears_after_its_request_is_active(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    fault(sandbox_state, FaultKind.LATE_NODE, node="trainer", duration=3 * MINUTE)
    request(api)

    assert path(api, clock, 20) == [
        *((state, "", 404) for state in (*WAITING, "PROVISIONING", "ACTIVE")),
        ("ACTIVE", "", "READY"),
    ]


def test_request_falls_back_from_provisioning(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    fault(sandbox_state, FaultKind.FALL_BACK, node="trainer", count=2, duration=3 * MINUTE)
    request(api)

    assert path(api, clock, 30) == [
        *((state, "", 404) for state in WAITING),
        *(("PROVISIONING", "", 404), ("WAITING_FOR_RESOURCES", "", 404)) * 2,
        ("PROVISIONING", "", "CREATING"),
        ("ACTIVE", "", "READY"),
    ]


@pytest.mark.parametrize(
    ("state", "path_before"),
    [("WAITING_FOR_RESOURCES", ["WAITING_FOR_RESOURCES", "PROVISIONING"]), ("PROVISIONING", [])],
    ids=["waiting", "provisioning"],
)
def test_existing_request_falls_back(
    sandbox_state: SandboxState, api: Api, clock: ManualClock, state: str, path_before: list[str]
) -> None:
    request(api)
    while api("queuedResources.get", name=NAME)["state"]["state"] != state:
        clock.sleep(timedelta(seconds=5))
    fault(sandbox_state, FaultKind.FALL_BACK, node="trainer")

    assert path(api, clock, 20) == [
        *((before, "", 404) for before in path_before),
        ("WAITING_FOR_RESOURCES", "", 404),
        ("PROVISIONING", "", "CREATING"),
        ("ACTIVE", "", "READY"),
    ]


def test_expired_request_survives_its_deletes(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    fault(sandbox_state, FaultKind.SURVIVES_DELETE, node="trainer", count=2)
    api(
        "queuedResources.create",
        {**BODY, "queueingPolicy": {"validUntilDuration": "30s"}},
        parent=ZONE,
        queuedResourceId="trainer",
    )
    clock.sleep(MINUTE)
    seen = []
    for _ in range(3):
        operation = api("queuedResources.delete", name=NAME)
        clock.sleep(2 * MINUTE)
        ended = api("operations.get", name=operation["name"])
        found = api("queuedResources.get", name=NAME)
        seen.append(
            (ended["done"], "error" in ended, found[0] if isinstance(found, tuple) else found["state"]["state"])
        )

    assert seen == [(True, False, "FAILED"), (True, False, "FAILED"), (True, False, 404)]


@pytest.mark.parametrize("collection", ["queuedResources", "nodes"])
def test_accepted_create_is_answered_with_409(sandbox_state: SandboxState, collection: str) -> None:
    fault(sandbox_state, FaultKind.ALREADY_EXISTS, node="trainer")
    wire = Wire(sandbox_state)
    parameter = "queuedResourceId" if collection == "queuedResources" else "nodeId"
    body = BODY if collection == "queuedResources" else SPEC["node"]

    before = wire("GET", f"/v2/{ZONE}/{collection}/trainer")  # not a create: the fault stays
    answer = wire("POST", f"/v2/{ZONE}/{collection}?{parameter}=trainer", body)

    exists = f"Resource '{ZONE}/{collection}/trainer' already exists"
    assert (before[0], answer) == (404, (409, "ALREADY_EXISTS", exists))
    assert wire("GET", f"/v2/{ZONE}/{collection}/trainer")["name"] == f"{ZONE}/{collection}/trainer"
    with sandbox_state.read() as session:
        assert list_faults(session) == []


def test_faults_of_requests_leave_other_nodes_alone(sandbox_state: SandboxState, api: Api, clock: ManualClock) -> None:
    for kind in (FaultKind.SUSPEND, FaultKind.LATE_NODE, FaultKind.FALL_BACK, FaultKind.SURVIVES_DELETE):
        fault(sandbox_state, kind, node="*")
    administration.add_node(sandbox_state, "old")
    api.create("new")
    clock.sleep(15 * MINUTE)

    assert (api.state("old"), api.state("new")) == ("READY", "READY")
    with sandbox_state.read() as session:
        assert len(list_faults(session)) == 4


def test_unknown_initiator_is_rejected(sandbox_state: SandboxState) -> None:
    with pytest.raises(InvalidInputError, match="`NOBODY` cannot suspend a request"):
        fault(sandbox_state, FaultKind.SUSPEND, initiator="NOBODY")
