"""The calls that each state of a queued resource allows, and their effects: a row per cell, with its source.

The table of nodes is in test_lifecycle. Rows without a source are the sandbox's choice and say `unverified`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.sandbox import administration
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault

if TYPE_CHECKING:
    from tests.sandbox.conftest import Api
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-central2-b"
NAME = f"{ZONE}/queuedResources/queued"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
MINUTE = timedelta(minutes=1)
FIELD_TEXT, UNVERIFIED = "API field text of `force`", "unverified"
OBSERVED_RESET = "observed: a public log of a suspended v5p request"

# state, call, what comes of it (an operation, or a refusal's code), source
TABLE = [
    ("CREATING", "delete", 400, FIELD_TEXT),
    ("ACCEPTED", "delete", "operation", FIELD_TEXT),
    ("WAITING_FOR_RESOURCES", "delete", 400, FIELD_TEXT),
    ("PROVISIONING", "delete", 400, FIELD_TEXT),
    ("ACTIVE", "delete", 400, FIELD_TEXT),
    ("SUSPENDING", "delete", 400, FIELD_TEXT),
    ("SUSPENDED", "delete", "operation", FIELD_TEXT),
    ("FAILED", "delete", "operation", FIELD_TEXT),
    ("DELETING", "delete", "operation", UNVERIFIED),
    ("CREATING", "delete force", "operation", UNVERIFIED),
    ("ACCEPTED", "delete force", "operation", FIELD_TEXT),
    ("WAITING_FOR_RESOURCES", "delete force", "operation", FIELD_TEXT),
    ("PROVISIONING", "delete force", "operation", FIELD_TEXT),
    ("ACTIVE", "delete force", "operation", FIELD_TEXT),
    ("SUSPENDING", "delete force", "operation", UNVERIFIED),
    ("SUSPENDED", "delete force", "operation", FIELD_TEXT),
    ("FAILED", "delete force", "operation", FIELD_TEXT),
    ("DELETING", "delete force", "operation", UNVERIFIED),
    ("CREATING", "reset", 400, UNVERIFIED),
    ("ACCEPTED", "reset", 400, UNVERIFIED),
    ("WAITING_FOR_RESOURCES", "reset", 400, UNVERIFIED),
    ("PROVISIONING", "reset", 400, UNVERIFIED),
    ("ACTIVE", "reset", "operation", UNVERIFIED),
    ("SUSPENDING", "reset", 400, UNVERIFIED),
    ("SUSPENDED", "reset", 400, OBSERVED_RESET),
    ("FAILED", "reset", 400, UNVERIFIED),
    ("DELETING", "reset", 400, UNVERIFIED),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[1]} while {row[0]} ({row[3]})")
def test_queued_resource_state_allows_the_calls_of_the_table(
    sandbox_state: SandboxState, api: Api, row: tuple[str, str, object, str]
) -> None:
    found, call, result, _ = row
    administration.add_queued_resource(sandbox_state, state=found)
    administration.add_node(sandbox_state, queued_resource="queued")
    verb, _, force = call.partition(" ")

    answer = api(f"queuedResources.{verb}", name=NAME, force=bool(force))

    assert (answer[0] if isinstance(answer, tuple) else "operation") == result


def request(api: Api, **fields: Any) -> Any:
    """Request one v4-8, as `queued`."""
    spec = {"parent": ZONE, "nodeId": "node", "node": BODY}
    return api(
        "queuedResources.create", {"tpu": {"nodeSpec": [spec]}, **fields}, parent=ZONE, queuedResourceId="queued"
    )


def path(api: Api, clock: ManualClock, duration: timedelta) -> list[tuple[str, str]]:
    """Return the states of a request, each with its initiator."""
    seen: list[tuple[str, str]] = []
    step = timedelta(seconds=4)
    for _ in range(duration // step):
        state = api("queuedResources.get", name=NAME)["state"]
        pair = (state["state"], state.get("stateInitiator", ""))
        seen += [pair] if pair not in seen else []
        clock.sleep(step)
    return seen


WAITING = [("CREATING", ""), ("ACCEPTED", ""), ("WAITING_FOR_RESOURCES", "")]


def test_active_queued_resource_is_suspended_when_its_node_is_preempted(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    """Observed: WAITING, PROVISIONING, ACTIVE within minutes; SUSPENDING, SUSPENDED by the service, then no new node."""
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.PREEMPT, after=5 * MINUTE))
    request(api, spot={})

    assert path(api, clock, 25 * MINUTE) == [
        *WAITING,
        ("PROVISIONING", ""),
        ("ACTIVE", ""),
        ("SUSPENDING", "SERVICE"),
        ("SUSPENDED", "SERVICE"),
    ]


def test_unprovisionable_queued_resource_fails_with_the_error_of_the_service(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    """Observed: PROVISIONING, SUSPENDING by the service, FAILED with code 13 within five minutes."""
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.OPERATION_ERROR, code=13, method="*.queuedResources.create"))
    request(api)

    assert path(api, clock, 10 * MINUTE) == [
        *WAITING,
        ("PROVISIONING", ""),
        ("SUSPENDING", "SERVICE"),
        ("FAILED", "SERVICE"),
    ]
    failed = api("queuedResources.get", name=NAME)["state"]["failedData"]
    assert (failed, api.state()) == ({"error": {"code": 13, "message": "an internal error has occurred"}}, 404)


@pytest.mark.parametrize(
    ("policy", "wait", "states"),
    [
        ({"validUntilDuration": "30s"}, 10, [*WAITING, ("FAILED", "SERVICE")]),
        ({"validUntilTime": "2026-01-01T00:00:40Z"}, 10, [*WAITING, ("FAILED", "SERVICE")]),
        ({"validInterval": {"endTime": "2026-01-01T00:00:40Z"}}, 10, [*WAITING, ("FAILED", "SERVICE")]),
        ({"validUntilDuration": "3600s"}, 12, [*WAITING, ("PROVISIONING", ""), ("ACTIVE", "")]),
        ({"validAfterDuration": "1200s"}, 19, WAITING),
        ({"validAfterTime": "2026-01-01T00:20:00Z"}, 21, [*WAITING, ("PROVISIONING", "")]),
    ],
)
def test_queueing_policy_bounds_provisioning(
    api: Api, clock: ManualClock, policy: dict[str, Any], wait: int, states: list[tuple[str, str]]
) -> None:
    """API field text: no resources before valid-after; failed when not fulfilled by valid-until."""
    assert "name" in request(api, queueingPolicy=policy)
    assert path(api, clock, wait * MINUTE) == states


@pytest.mark.parametrize("policy", [{"validUntilDuration": "-5s"}, {"validUntilTime": "2020-01-01T00:00:00Z"}])
def test_queued_resource_with_an_impossible_policy_is_rejected(api: Api, policy: dict[str, Any]) -> None:
    assert request(api, queueingPolicy=policy)[0] == 400


def test_queued_resource_without_nodes_is_deleted_without_force(api: Api, clock: ManualClock) -> None:
    """API field text of `force`; that the deletion of a node suspends its request is observed."""
    request(api)
    clock.sleep(15 * MINUTE)
    api("nodes.delete", name=f"{ZONE}/nodes/node")
    clock.sleep(2 * MINUTE)

    state = api("queuedResources.get", name=NAME)["state"]
    assert (state["state"], state["stateInitiator"]) == ("SUSPENDED", "USER")
    assert "name" in api("queuedResources.delete", name=NAME)
    clock.sleep(2 * MINUTE)
    assert "name" in request(api)


def test_repeated_request_id_returns_the_same_operation(api: Api) -> None:
    """API field text of `requestId`."""
    spec = {"parent": ZONE, "nodeId": "node", "node": BODY}
    first, second = (
        api(
            "queuedResources.create",
            {"tpu": {"nodeSpec": [spec]}},
            parent=ZONE,
            queuedResourceId="queued",
            requestId="1",
        )
        for _ in range(2)
    )

    again = [api("queuedResources.delete", name=NAME, force=True, requestId="2")["name"] for _ in range(2)]
    assert (first["name"] == second["name"], again[0] == again[1]) == (True, True)


def test_lost_slice_is_created_again_and_the_others_restart(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    """Documentation of multislice: the request stays, a new slice is created, all other slices restart."""
    spec = {"parent": ZONE, "node": BODY, "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "part"}}
    api("queuedResources.create", {"tpu": {"nodeSpec": [spec]}}, parent=ZONE, queuedResourceId="queued")
    clock.sleep(15 * MINUTE)

    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.PREEMPT, node="part-1"))
    lost = [api("nodes.get", name=f"{ZONE}/nodes/part-{index}")["state"] for index in (0, 1)]
    clock.sleep(15 * MINUTE)

    assert lost == ["RESTARTING", "DELETING"]
    assert [api("nodes.get", name=f"{ZONE}/nodes/part-{index}")["state"] for index in (0, 1)] == ["READY", "READY"]
    assert api("queuedResources.get", name=NAME)["state"]["state"] == "ACTIVE"


def test_several_nodes_have_the_field_names_of_each_version(api: Api, clock: ManualClock) -> None:
    """API field text: `multisliceParams` in v2, `multiNodeParams` in v2alpha1; ids are prefix-0, prefix-1."""
    spec = {"parent": ZONE, "node": BODY, "multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "part"}}
    api("queuedResources.create", {"tpu": {"nodeSpec": [spec]}}, parent=ZONE, queuedResourceId="queued")
    clock.sleep(15 * MINUTE)

    specs = {v: api("queuedResources.get", name=NAME, version=v)["tpu"]["nodeSpec"][0] for v in ("v2", "v2alpha1")}
    shown = (specs["v2"]["multisliceParams"], specs["v2alpha1"]["multiNodeParams"])
    assert shown == ({"nodeCount": 2, "nodeIdPrefix": "part"},) * 2
    assert [api("nodes.get", name=f"{ZONE}/nodes/part-{index}")["multisliceNode"] for index in (0, 1)] == [True, True]
