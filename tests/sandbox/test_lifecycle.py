"""The life cycle of a node: what each state forbids, and its state over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.response_schema import check_response_body
from tpuctl.sandbox import administration
from tpuctl.sandbox.lifecycle import STATES, PhaseDurations, create_timeline, phase_at
from tpuctl.sandbox.worker_lookup import find_worker

if TYPE_CHECKING:
    from tpuctl.clock import ManualClock
    from tpuctl.sandbox.state import SandboxState

ZONE = "projects/sandbox/locations/us-central2-b"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
MINUTE = timedelta(minutes=1)


# One letter per state of STATES: y(es), n(o). Cells without a source in lifecycle.RULES are the sandbox's choice.
TABLE = {
    #         CREATING READY RESTARTING REIMAGING DELETING REPAIRING STOPPED STOPPING STARTING
    #         PREEMPTED TERMINATED HIDING HIDDEN UNHIDING UNKNOWN
    "start": "nnnnnnynn" + "nnnnnn",
    "stop": "nynnnnnnn" + "nnnnnn",
    "patch": "yynnnnynn" + "nnnnnn",
    "delete": "yyyyyyyyy" + "yyyyyy",
}


@pytest.mark.parametrize(
    ("verb", "found", "allowed"),
    [(verb, found, cell == "y") for verb, row in TABLE.items() for found, cell in zip(STATES, row, strict=True)],
)
def test_state_allows_the_verbs_of_the_table(
    sandbox_state: SandboxState, api: Any, verb: str, found: str, *, allowed: bool
) -> None:
    administration.add_node(sandbox_state, state=found)

    answer = api(f"nodes.{verb}", {"description": "x"}, name=f"{ZONE}/nodes/node", updateMask="description")

    word = {"patch": "update"}.get(verb, verb)
    refusal = (400, f"Cloud TPU received a bad request. {word} is not supported while in state {found}")
    assert (answer if isinstance(answer, tuple) else "operation" in answer["name"]) == (allowed or refusal)


def test_node_from_create_to_404_fits_the_schema(api: Any, clock: ManualClock) -> None:
    seen: list[object] = []
    operations = []
    for verb in ("create", "stop", "start", "delete"):
        where = {"parent": ZONE, "nodeId": "node"} if verb == "create" else {"name": f"{ZONE}/nodes/node"}
        operation = api(f"nodes.{verb}", BODY if verb == "create" else {}, **where)
        seen += [verb, operation["done"], api.state()]
        clock.sleep(8 * MINUTE)
        seen.append(api.state())
        operations.append(api("operations.get", name=operation["name"]))

    assert seen == [
        *("create", False, "CREATING", "READY"),
        *("stop", False, "STOPPING", "STOPPED"),
        *("start", False, "STARTING", "READY"),
        *("delete", False, "DELETING", 404),
    ]
    assert [operation["done"] for operation in operations] == [True] * 4
    assert [operation["response"].get("state") for operation in operations] == ["READY", "STOPPED", "READY", None]
    assert [check_response_body("v2", "Operation", operation) for operation in operations] == [[]] * 4


def test_node_fits_the_schema_of_every_version(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state, acceleratorType="v4-16", labels={"a": "b"}, schedulingConfig={"spot": True})

    for version in ("v1", "v1alpha1", "v2", "v2alpha1"):
        node = api("nodes.get", name=f"{ZONE}/nodes/node", version=version)
        assert check_response_body(version, "Node", node) == []
        assert len(node["networkEndpoints"]) == 2


@pytest.mark.parametrize(
    ("zone", "change", "refusal"),
    [
        (
            "us-central2-b",
            {"acceleratorType": "v6e-8"},
            (400, "the accelerator v6e-8 was not found in zone us-central2-b"),
        ),
        (
            "us-central2-b",
            {"acceleratorType": "v5e-8"},
            (400, "the accelerator v5e-8 was not found in zone us-central2-b"),
        ),
        ("us-central2-b", {"runtimeVersion": "2.4"}, (400, 'The field "RuntimeVersion" cannot be "2.4".')),
        ("us-central2-b", {"networkConfig": {"network": "mine"}}, (400, 'The field "Network" cannot be "mine".')),
        (
            "us-central2-b",
            {"acceleratorConfig": {"type": "V4", "topology": "4x4x4"}},
            (400, 'The accelerator type "v4-8" does not match the accelerator config.'),
        ),
        ("asia-northeast1-a", {}, (400, 'The requested zone "asia-northeast1-a" is not supported.')),
        ("nowhere1-a", {}, (403, "Permission denied on 'locations/nowhere1-a' (or it may not exist).")),
    ],
)
def test_invalid_create_gives_the_error_of_the_service(
    api: Any, zone: str, change: Any, refusal: tuple[int, str]
) -> None:
    code, message = api("nodes.create", {**BODY, **change}, parent=f"projects/sandbox/locations/{zone}", nodeId="node")

    assert (code, message.endswith(refusal[1])) == (refusal[0], True), message


@pytest.mark.parametrize("found", ["READY", "PREEMPTED", "DELETING"])
def test_create_of_an_existing_name_is_rejected_in_every_state(
    sandbox_state: SandboxState, api: Any, found: str
) -> None:
    administration.add_node(sandbox_state, state=found)

    answer = api("nodes.create", BODY, parent=ZONE, nodeId="node")

    assert answer == (409, f"Resource '{ZONE}/nodes/node' already exists")


@pytest.mark.parametrize(
    ("fields", "verb", "refusal"),
    [
        ({"acceleratorType": "v4-16"}, "stop", "This operation is only available with single TPU nodes."),
        ({"queued_resource": "q"}, "stop", "StopNode is not supported for queued resources"),
        ({"schedulingConfig": {"spot": True}, "state": "STOPPED"}, "start", "must be recreated again."),
        (
            {"schedulingConfig": {"preemptible": True}, "state": "STOPPED"},
            "start",
            "Preemptible TPUs cannot be restarted.",
        ),
    ],
)
def test_stop_and_start_of_unsupported_nodes_are_rejected(
    sandbox_state: SandboxState, api: Any, fields: Any, verb: str, refusal: str
) -> None:
    administration.add_node(sandbox_state, **fields)

    code, message = api(f"nodes.{verb}", name=f"{ZONE}/nodes/node")

    assert (code, message.endswith(refusal)) == (400, True), message


def test_same_key_gives_the_same_durations() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    timeline = create_timeline(start, PhaseDurations("0/node/1"), workers=1, preemptible=True)

    assert timeline == create_timeline(start, PhaseDurations("0/node/1"), workers=1, preemptible=True)
    assert timeline != create_timeline(start, PhaseDurations("0/node/2"), workers=1, preemptible=True)
    assert 1.5 * MINUTE <= timeline[1].at - start <= 4 * MINUTE
    end = timeline[1].at + timedelta(hours=24)
    states = [phase.state for at in (end - MINUTE, end) if (phase := phase_at(timeline, at))]
    assert states == ["READY", "PREEMPTED"]


def test_patch_sets_the_fields_of_the_mask_and_clears_missing_ones(sandbox_state: SandboxState, api: Any) -> None:
    administration.add_node(sandbox_state, labels={"a": "b"}, description="old", tags=["kept"])

    operation = api(
        "nodes.patch",
        {"labels": {"c": "d"}, "tags": ["ignored"], "networkConfig": {"enableExternalIps": False}},
        name=f"{ZONE}/nodes/node",
        updateMask="description,network_config.enable_external_ips,labels",
    )

    node = operation["response"]
    shown = node["labels"], node.get("description"), node["tags"], node["networkEndpoints"][0]["accessConfig"]
    assert (operation["done"], shown) == (True, ({"c": "d"}, None, ["kept"], {}))
    assert api("nodes.patch", name=f"{ZONE}/nodes/node", updateMask="runtimeVersion")[0] == 400


def test_queued_resource_waits_then_creates_and_deletes_its_node(api: Any, clock: ManualClock) -> None:
    spec = {"parent": ZONE, "nodeId": "node", "node": BODY}
    api("queuedResources.create", {"tpu": {"nodeSpec": [spec]}}, parent=ZONE, queuedResourceId="queued")
    seen = []
    for _ in range(40):
        found = api("queuedResources.get", name=f"{ZONE}/queuedResources/queued")
        assert check_response_body("v2", "QueuedResource", found) == []
        pair = (found["state"]["state"], api.state())
        seen += [pair] if pair not in seen else []
        clock.sleep(timedelta(seconds=15))

    assert seen == [
        ("CREATING", 404),
        ("WAITING_FOR_RESOURCES", 404),
        ("PROVISIONING", "CREATING"),
        ("ACTIVE", "READY"),
    ]
    assert api("queuedResources.delete", name=f"{ZONE}/queuedResources/queued")[0] == 400
    operation = api("queuedResources.delete", name=f"{ZONE}/queuedResources/queued", force=True)
    assert api.state() == "DELETING"
    clock.sleep(3 * MINUTE)
    gone = (api.state(), api("queuedResources.get", name=f"{ZONE}/queuedResources/queued")[0])
    assert (gone, api("operations.get", name=operation["name"])["done"]) == ((404, 404), True)


def test_lists_page_through_all_zones_in_order(sandbox_state: SandboxState, api: Any) -> None:
    for index, accelerator_type in enumerate(["v4-8", "v6e-8", "v5litepod-4", "v4-16", "v6e-1"]):
        administration.add_node(sandbox_state, f"n{index}", acceleratorType=accelerator_type)
    names: list[str] = []
    token = ""
    while True:
        answer = api("nodes.list", parent="projects/sandbox/locations/-", pageSize=2, pageToken=token)
        names += [node["name"].split("/", 2)[2] for node in answer.get("nodes", [])]
        token = answer.get("nextPageToken", "")
        if not token:
            break

    assert names == sorted(names)
    assert len(names) == 5
    assert api("nodes.list", parent=ZONE, pageToken="x")[0] == 400
    assert api("nodes.list", parent=ZONE, pageSize=-1)[0] == 400


def test_worker_is_found_by_address_and_by_name(sandbox_state: SandboxState) -> None:
    administration.add_node(sandbox_state, "other")
    node = administration.add_node(sandbox_state, "slice", acceleratorType="v4-32", metadata={"k": "v"})
    second = node["networkEndpoints"][1]

    with sandbox_state.read() as session:
        addresses = (second["accessConfig"]["externalIp"], second["ipAddress"], "sandbox/us-central2-b/slice/1")
        found = [find_worker(session, address) for address in addresses]
        absent = [
            find_worker(session, address) for address in ("198.19.255.1", "8.8.8.8", "sandbox/us-central2-b/slice/4")
        ]

    shown = [
        worker and (worker.node.node_id, worker.node.number, worker.index, worker.metadata, worker.phase.state)
        for worker in found
    ]
    assert shown == [("slice", node["id"], 1, {"k": "v"}, "READY")] * 3
    assert absent == [None, None, None]
