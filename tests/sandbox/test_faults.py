"""Faults: each happens to its matches, as often as specified, and then no more."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.errors import InvalidInputError
from tpuctl.sandbox import administration
from tpuctl.sandbox.api_calls import Call, DroppedConnection, Request, Response
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault, list_faults, take_call_fault
from tpuctl.sandbox.service import answer_request
from tpuctl.sandbox.worker_lookup import find_worker

if TYPE_CHECKING:
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-central2-b"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
MINUTE = timedelta(minutes=1)


def set_fault(sandbox_state: SandboxState, kind: FaultKind, **values: Any) -> int:
    """Add a fault."""
    with sandbox_state.write() as session:
        return add_fault(session, Fault(kind, **values))


def test_restart_after_the_last_unhealthy_fault_fixes_the_node(
    sandbox_state: SandboxState, api: Any, clock: ManualClock
) -> None:
    set_fault(sandbox_state, FaultKind.UNHEALTHY, node="nod?", count=2)
    api.create()
    clock.sleep(10 * MINUTE)
    seen = [api.health()]
    for _ in range(2):
        for verb in ("stop", "start"):
            api(f"nodes.{verb}", name=f"{ZONE}/nodes/node")
            clock.sleep(3 * MINUTE)
        seen.append(api.health())

    assert seen == ["UNHEALTHY_TENSORFLOW", "UNHEALTHY_TENSORFLOW", "HEALTHY"]
    with sandbox_state.read() as session:
        assert list_faults(session) == []


def test_unhealthy_fault_affects_an_existing_node_once(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state, "a")
    administration.add_node(sandbox_state, "b")
    set_fault(sandbox_state, FaultKind.UNHEALTHY, health="TIMEOUT")

    assert [api.health(node_id) for node_id in ("a", "b")] == ["TIMEOUT", "HEALTHY"]


def test_hang_delays_the_node_and_its_operation(sandbox_state: SandboxState, api: Any, clock: ManualClock) -> None:
    set_fault(sandbox_state, FaultKind.HANG, node="ever")
    set_fault(sandbox_state, FaultKind.HANG, node="while", duration=timedelta(hours=1))
    operations = [api.create(node_id) for node_id in ("ever", "while", "free")]
    seen = []
    for wait in (10 * MINUTE, timedelta(hours=1)):
        clock.sleep(wait)
        done = [api("operations.get", name=operation["name"])["done"] for operation in operations]
        seen.append([(api.state(node_id), end) for node_id, end in zip(("ever", "while", "free"), done, strict=True)])

    assert seen == [
        [("CREATING", False), ("CREATING", False), ("READY", True)],
        [("CREATING", False), ("READY", True), ("READY", True)],
    ]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, 'Cloud TPU received an invalid argument. The field "Network" cannot be "default".'),
        (5, f"Resource '{ZONE}/nodes/node' was not found"),
        (7, f"Permission 'tpu.nodes.create' denied on '{ZONE}/nodes/node'"),
        (8, 'There is no more capacity in the zone "us-central2-b"'),
        (9, "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x"),
        (13, "an internal error has occurred"),
    ],
)
def test_failed_create_leaves_no_record(
    sandbox_state: SandboxState, api: Any, clock: ManualClock, code: int, text: str
) -> None:
    set_fault(sandbox_state, FaultKind.OPERATION_ERROR, code=code)

    operation = api.create()
    assert (operation["done"], api.state()) == (False, "CREATING")
    clock.sleep(2 * MINUTE)

    ended = api("operations.get", name=operation["name"])
    assert (ended["done"], ended["error"]["code"], ended["error"]["message"].startswith(text)) == (True, code, True)
    assert api.state() == 404
    assert "name" in api.create()


def test_start_without_capacity_ends_stopped(sandbox_state: SandboxState, api: Any, clock: ManualClock) -> None:
    administration.add_node(sandbox_state, state="STOPPED")
    set_fault(sandbox_state, FaultKind.OPERATION_ERROR, method="*.nodes.start")

    operation = api("nodes.start", name=f"{ZONE}/nodes/node")
    clock.sleep(2 * MINUTE)

    assert (api.state(), api("operations.get", name=operation["name"])["error"]["code"]) == ("STOPPED", 8)


def test_preemption_keeps_the_node_and_suspends_the_queued_resource(
    sandbox_state: SandboxState, api: Any, clock: ManualClock
) -> None:
    administration.add_node(sandbox_state)
    spec = {"parent": ZONE, "nodeId": "owned", "node": BODY}
    api("queuedResources.create", {"spot": {}, "tpu": {"nodeSpec": [spec]}}, parent=ZONE, queuedResourceId="queued")
    clock.sleep(15 * MINUTE)
    set_fault(sandbox_state, FaultKind.PREEMPT, count=0)
    seen = []
    for _ in range(2):
        found = api("queuedResources.get", name=f"{ZONE}/queuedResources/queued")["state"]
        seen.append((api.state(), api.state("owned"), found["state"], found.get("stateInitiator")))
        clock.sleep(3 * MINUTE)

    assert seen == [
        ("PREEMPTED", "DELETING", "SUSPENDING", "SERVICE"),
        ("PREEMPTED", 404, "SUSPENDED", "SERVICE"),
    ]


def test_maintenance_is_announced_then_ongoing_then_over(
    sandbox_state: SandboxState, api: Any, clock: ManualClock
) -> None:
    administration.add_node(sandbox_state)
    set_fault(sandbox_state, FaultKind.MAINTENANCE, after=timedelta(minutes=30))
    seen = []
    for _ in range(3):
        node = api("nodes.get", name=f"{ZONE}/nodes/node")
        seen.append((node["state"], node["health"], node.get("upcomingMaintenance", {}).get("maintenanceStatus")))
        clock.sleep(timedelta(minutes=32))

    assert seen == [
        ("READY", "HEALTHY", "PENDING"),
        ("READY", "UNHEALTHY_MAINTENANCE", "ONGOING"),
        ("READY", "HEALTHY", None),
    ]


def test_late_ssh_key_is_missing_before_its_time(sandbox_state: SandboxState, api: Any, clock: ManualClock) -> None:
    administration.add_node(sandbox_state, metadata={"ssh-keys": "old"})
    set_fault(sandbox_state, FaultKind.SSH_KEY_LATE, duration=timedelta(minutes=1))
    clock.sleep(10 * MINUTE)
    api("nodes.patch", {"metadata": {"ssh-keys": "new"}}, name=f"{ZONE}/nodes/node", updateMask="metadata")
    seen = []
    for _ in range(2):
        with sandbox_state.read() as session:
            worker = find_worker(session, "sandbox/us-central2-b/node/0")
            seen.append(worker and worker.metadata["ssh-keys"])
        clock.sleep(MINUTE)

    assert seen == ["old", "new"]


def test_quota_fault_rejects_the_given_number_of_calls(sandbox_state: SandboxState) -> None:
    """An error rolls back the call's changes, but not the use of the fault."""
    set_fault(sandbox_state, FaultKind.QUOTA, node="n")
    body = b'{"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}'
    create = Request("POST", "/v2/projects/p/locations/us-central2-b/nodes", (("nodeId", "n"),), {}, body)

    answers = [answer_request(sandbox_state, create) for _ in range(2)]

    assert [answer.status for answer in answers if isinstance(answer, Response)] == [429, 200]


def test_quota_fault_rejects_the_call(sandbox_state: SandboxState, api: Any) -> None:
    set_fault(sandbox_state, FaultKind.QUOTA, limit=4)

    text = "Quota limit 'TPUV4sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 4 in zone us-central2-b."
    assert (api.create(), "name" in api.create()) == ((429, text), True)


def test_call_fault_affects_matching_calls_and_is_used_up(sandbox_state: SandboxState) -> None:
    set_fault(sandbox_state, FaultKind.DROP_AFTER, method="*.nodes.create", node="train*")
    set_fault(sandbox_state, FaultKind.HTTP_ERROR, method="*.nodes.get", status=429, retry_after=7)
    create = Request("POST", f"/v2/{ZONE}/nodes", (("nodeId", "trainer"),), {}, json.dumps(BODY).encode())
    get = Request("GET", f"/v2/{ZONE}/nodes/trainer")

    answers = [answer_request(sandbox_state, request) for request in (create, create, get, get)]

    dropped, *answered = answers
    assert isinstance(dropped, DroppedConnection)
    found = [(one.status, one.headers.get("retry-after")) for one in answered if isinstance(one, Response)]
    assert found == [(409, None), (429, "7"), (200, None)]


def test_unreachable_zone_answers_503_and_lists_report_it(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state)
    administration.add_node(sandbox_state, "far", acceleratorType="v6e-8", zone="us-east5-a")
    set_fault(sandbox_state, FaultKind.UNREACHABLE, zone="us-central2-b")
    requests = [Request("GET", f"/v2/{ZONE}/nodes/node")] * 2
    requests.append(Request("GET", "/v2/projects/sandbox/locations/-/nodes"))

    answers = [answer_request(sandbox_state, request) for request in requests]
    listed = api("nodes.list", parent="projects/sandbox/locations/-")

    assert [answer.status for answer in answers if isinstance(answer, Response)] == [503, 503, 200]
    assert listed["unreachable"] == [ZONE]
    assert [node["name"].rpartition("/")[2] for node in listed["nodes"]] == ["far"]


def test_invalid_fault_is_rejected(sandbox_state: SandboxState) -> None:
    with pytest.raises(InvalidInputError, match="`SLEEPING` is not a state"):
        set_fault(sandbox_state, FaultKind.HANG, state="SLEEPING")


@pytest.mark.parametrize(
    "method",
    [
        "storage.buckets.get",
        "compute.networks.get",
        "orgpolicy.projects.policies.getEffectivePolicy",
        "serviceusage.services.batchGet",
        "cloudbilling.projects.getBillingInfo",
    ],
)
def test_permanent_fault_affects_every_call_of_every_api(sandbox_state: SandboxState, method: str) -> None:
    set_fault(sandbox_state, FaultKind.SLOW, count=0, duration=timedelta(seconds=0.1))

    met = [take_call_fault(sandbox_state, Call("v1", method, {}, {})) for _ in range(2)]

    assert met == [Fault(FaultKind.SLOW, count=0, duration=timedelta(seconds=0.1))] * 2
    with sandbox_state.read() as session:
        assert [fault.count for _, fault in list_faults(session)] == [0]


def test_unreachable_zone_does_not_answer_for_its_disks(sandbox_state: SandboxState) -> None:
    set_fault(sandbox_state, FaultKind.UNREACHABLE, zone="us-central2-b")

    answer = answer_request(sandbox_state, Request("GET", "/compute/v1/projects/sandbox/zones/us-central2-b/disks/d"))

    assert isinstance(answer, Response)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["message"]) == (503, "The location us-central2-b is unreachable.")
