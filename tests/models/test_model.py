"""Models: parsed from the API's JSON, written to it, and a spec compared with a node."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tpuctl.models.node import (
    DataDisk,
    Health,
    Maintenance,
    NetworkEndpoint,
    Node,
    NodeState,
    QueuedState,
    Symptom,
    Tier,
)
from tpuctl.models.operation import Operation, OperationError
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import FIELDS, REQUEST_LABEL, NodeSpec, SpecDifference
from tpuctl.names import NodeName

NAME = NodeName("p", "us-central2-b", "trainer")


def node(**fields: Any) -> Node:
    return Node.from_api({"name": str(NAME), "acceleratorType": "v4-8", "runtimeVersion": "img"} | fields)


FULL_SPEC = NodeSpec(
    accelerator_type="v4-16",
    runtime_version="img",
    topology="1x2x4",
    tier=Tier.SPOT,
    network="net",
    subnetwork="sub",
    internal_ips=True,
    queue_count=4,
    cidr_block="10.0.0.0/29",
    service_account="a@p.iam.gserviceaccount.com",
    scopes=("s1", "s2"),
    labels={"team": "x"},
    tags=("t1",),
    metadata={"startup-script": "echo"},
    data_disks=(DataDisk("projects/p/zones/z/disks/d", "READ_ONLY"),),
    shielded_secure_boot=True,
    description="mine",
    named=frozenset({"accelerator_type", "tier"}),
)
FULL_BODY = {
    "runtimeVersion": "img",
    "acceleratorConfig": {"type": "V4", "topology": "1x2x4"},
    "networkConfig": {"network": "net", "subnetwork": "sub", "enableExternalIps": False, "queueCount": 4},
    "schedulingConfig": {"spot": True},
    "serviceAccount": {"email": "a@p.iam.gserviceaccount.com", "scope": ["s1", "s2"]},
    "dataDisks": [{"sourceDisk": "projects/p/zones/z/disks/d", "mode": "READ_ONLY"}],
    "shieldedInstanceConfig": {"enableSecureBoot": True},
    "labels": {"team": "x"},
    "tags": ["t1"],
    "metadata": {"startup-script": "echo"},
    "description": "mine",
    "cidrBlock": "10.0.0.0/29",
}


def test_node_with_only_a_name_has_defaults() -> None:
    bare = Node.from_api({"name": str(NAME)})

    assert (bare.name, bare.id) == (NAME, "")
    assert (bare.state, bare.health) == (NodeState.STATE_UNSPECIFIED, Health.HEALTH_UNSPECIFIED)
    assert (bare.accelerator_type, bare.accelerator, bare.workers, bare.endpoints) == ("", None, 1, ())
    assert (bare.tier, bare.created, bare.symptoms, bare.upcoming_maintenance) == (Tier.ON_DEMAND, None, (), None)
    assert (bare.labels, bare.metadata, bare.queued_resource, bare.why_not_restartable()) == ({}, {}, None, None)


def test_node_symptoms_and_maintenance_are_parsed() -> None:
    noticed = node(
        symptoms=[{"symptomType": "LOW_MEMORY", "workerId": "3", "createTime": "2026-01-01T00:00:00Z"}, {}],
        upcomingMaintenance={"type": "SCHEDULED", "maintenanceStatus": "PENDING", "canReschedule": True},
    )

    assert noticed.symptoms == (
        Symptom("LOW_MEMORY", "3", "", datetime(2026, 1, 1, tzinfo=UTC)),
        Symptom("", "", "", None),
    )
    assert noticed.upcoming_maintenance == Maintenance("SCHEDULED", "PENDING", None, None, can_reschedule=True)


def test_unknown_state_is_kept_and_equals_its_text() -> None:
    new = NodeState("BRAND_NEW")

    assert (new, str(new), new.is_known, new.is_dead) == ("BRAND_NEW", "BRAND_NEW", False, False)
    assert new == NodeState("BRAND_NEW")
    assert all(state.is_known for state in NodeState)
    assert NodeState("READY") is NodeState.READY


def test_node_endpoints_have_one_entry_per_worker() -> None:
    listed = [{"ipAddress": f"10.{network}.0.{worker}"} for worker in (1, 2) for network in (0, 1)]
    several = node(acceleratorType="v4-16", networkConfigs=[{}, {}], networkEndpoints=listed)
    outside = node(networkEndpoints=[{"ipAddress": "10.0.0.1", "accessConfig": {"externalIp": "1.2.3.4"}}])

    assert several.endpoints == (NetworkEndpoint("10.0.0.1", None), NetworkEndpoint("10.0.0.2", None))
    assert [endpoint.address for endpoint in (*several.endpoints, *outside.endpoints)] == [
        "10.0.0.1",
        "10.0.0.2",
        "1.2.3.4",
    ]


@pytest.mark.parametrize(
    ("fields", "accelerator_type", "workers"),
    [
        ({"acceleratorType": "v4-32"}, "v4-32", 4),
        ({"acceleratorType": "", "acceleratorConfig": {"type": "V4", "topology": "2x2x4"}}, "v4-32", 4),
        ({"acceleratorType": "", "acceleratorConfig": {"type": "V5LITE_POD", "topology": "2x4"}}, "v5litepod-8", 1),
        ({"acceleratorType": "", "acceleratorConfig": {"type": "V9", "topology": "2x4"}}, "", 1),
        ({"acceleratorType": "v9-4", "networkEndpoints": [{}, {}, {}]}, "v9-4", 3),
    ],
)
def test_node_workers_from_type_or_topology(fields: dict[str, Any], accelerator_type: str, workers: int) -> None:
    assert (node(**fields).accelerator_type, node(**fields).workers) == (accelerator_type, workers)


_QUEUED = {"queuedResource": "projects/p/locations/z/queuedResources/q1"}
_SPOT = {"schedulingConfig": {"spot": True}}


@pytest.mark.parametrize(
    ("fields", "stop", "start"),
    [
        ({}, None, None),
        ({"schedulingConfig": {"reserved": True}}, None, None),
        (_SPOT, None, "it is a spot node, and those cannot be started again once stopped"),
        (
            {"acceleratorType": "v4-16"},
            "it is a slice of 2 workers, and the service stops single-worker nodes only",
            "it is a slice of 2 workers, and the service stops single-worker nodes only",
        ),
        (
            _QUEUED,
            "it belongs to the queued resource `q1`, whose nodes cannot be stopped",
            "it belongs to the queued resource `q1`, whose nodes cannot be stopped",
        ),
    ],
)
def test_node_stop_and_start_refusals_have_reasons(fields: dict[str, Any], stop: str | None, start: str | None) -> None:
    found = node(**fields)

    assert (found.why_not_stoppable(), found.why_not_startable(), found.why_not_restartable()) == (
        stop,
        start,
        stop or start,
    )


@pytest.mark.parametrize(
    ("state", "fields", "is_preempted"),
    [("PREEMPTED", {}, True), ("TERMINATED", _SPOT, True), ("TERMINATED", {}, False), ("STOPPED", _SPOT, False)],
)
def test_terminated_spot_node_is_preempted(state: str, fields: dict[str, Any], is_preempted: bool) -> None:
    assert node(state=state, **fields).is_preempted is is_preempted


def test_spec_to_api_is_the_node_to_create() -> None:
    smallest = NodeSpec(accelerator_type="v4-8", runtime_version="img")

    assert FULL_SPEC.to_api() == FULL_BODY
    assert smallest.to_api() == {
        "runtimeVersion": "img",
        "acceleratorType": "v4-8",
        "networkConfig": {"enableExternalIps": True},
    }
    assert "schedulingConfig" not in replace(smallest, tier=Tier.ON_DEMAND).to_api()


def test_spec_json_round_trips_without_unknown_fields() -> None:
    written = json.loads(json.dumps(FULL_SPEC.to_json()))

    assert NodeSpec.from_json(written | {"invented_later": 1}) == FULL_SPEC
    assert NodeSpec.from_json({"accelerator_type": "v4-8", "runtime_version": "img"}) == NodeSpec(
        accelerator_type="v4-8", runtime_version="img"
    )


def test_spec_from_node_recreates_the_node() -> None:
    made = node(**FULL_BODY, acceleratorType="v4-16")
    again = NodeSpec.from_node(made)

    assert again == replace(FULL_SPEC, cidr_block=None, named=frozenset())
    assert again.to_api() == {key: value for key, value in FULL_BODY.items() if key != "cidrBlock"}
    assert replace(FULL_SPEC, named=_EVERY_FIELD).differences(made) == ()


def test_spec_from_node_omits_own_labels_and_default_topology() -> None:
    made = node(labels={REQUEST_LABEL: "x", "a": "b"}, acceleratorConfig={"type": "V4", "topology": "2x2x1"})
    again = NodeSpec.from_node(made)

    assert (again.labels, again.topology, again.tier) == ({"a": "b"}, None, Tier.ON_DEMAND)


_EVERY_FIELD = frozenset(FULL_SPEC.to_json()) - {"named"}
_SAME_SPEC = NodeSpec(
    accelerator_type="v4-16", runtime_version="img", topology="2x2x2", tier=Tier.ON_DEMAND, network="default"
)


@pytest.mark.parametrize(
    "fields",
    [
        {"acceleratorType": "v4-16"},
        {"acceleratorType": "", "acceleratorConfig": {"type": "V4", "topology": "2x2x2"}},
        {"acceleratorType": "v4-16", "networkConfig": {"network": "projects/p/global/networks/default"}},
        {"acceleratorType": "v4-16", "runtimeVersion": "projects/p/locations/z/runtimeVersions/img"},
        {
            "acceleratorType": "v4-16",
            "labels": {"a": "b"},
            "tags": ["t"],
            "metadata": {"ssh-keys": "k"},
            "description": "d",
        },
    ],
)
def test_differences_ignore_equivalent_spellings(fields: dict[str, Any]) -> None:
    named = frozenset({"accelerator_type", "topology", "runtime_version", "tier", "network", "labels", "tags"})

    assert replace(_SAME_SPEC, named=named).differences(node(**fields)) == ()


def test_differences_cover_only_fields_the_user_set() -> None:
    other = node(acceleratorType="v4-8", runtimeVersion="other", **_SPOT)

    assert _SAME_SPEC.differences(other) == ()
    assert replace(_SAME_SPEC, named=frozenset({"tier", "accelerator_type", "topology"})).differences(other) == (
        SpecDifference("accelerator_type", "v4-16", "v4-8"),
        SpecDifference("topology", "2x2x2", "2x2x1"),
        SpecDifference("tier", Tier.ON_DEMAND, Tier.SPOT),
    )


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (SpecDifference("tier", Tier.SPOT, Tier.ON_DEMAND), "tier: wanted `spot`, found `on-demand`"),
        (SpecDifference("internal_ips", True, False), "internal_ips: wanted `true`, found `false`"),  # data
        (SpecDifference("scopes", ("a", "b"), ()), "scopes: wanted `a, b`, found none"),
        (SpecDifference("subnetwork", "s", ""), "subnetwork: wanted `s`, found none"),
    ],
)
def test_difference_as_text(difference: SpecDifference, text: str) -> None:
    assert str(difference) == text


def test_operation_error_is_parsed() -> None:
    failed: dict[str, Any] = {
        "name": "projects/p/locations/z/operations/op1",
        "done": True,
        "error": {"code": 8, "message": "no room", "details": [{}, {"reason": "stockout"}]},
    }

    assert Operation.from_api(failed) == Operation(
        failed["name"], True, OperationError(8, "no room", "stockout")
    )  # data
    assert Operation.from_api({"name": "x"}) == Operation("x")


def test_queued_resource_owns_its_nodes() -> None:
    name = "projects/p/locations/us-east1-d/queuedResources/q1"
    one = QueuedResource.from_api(
        {"name": name, "tpu": {"nodeSpec": [{"nodeId": "n1"}]}, "state": {"state": "SUSPENDED"}}
    )
    many = {"multisliceParams": {"nodeCount": 2, "nodeIdPrefix": "s"}}
    several = QueuedResource.from_api(
        {"name": name, "tpu": {"nodeSpec": [many, {"multiNodeParams": {"nodeCount": 2}}]}}
    )

    assert (one.queued_resource_id, one.zone, one.state, one.state.is_dead) == (
        "q1",
        "us-east1-d",
        QueuedState.SUSPENDED,
        True,
    )
    assert (one.node_ids, several.node_ids, several.owns("s-1"), several.owns("s-2")) == (
        ("n1",),
        ("s-0", "s-1", "q1-0", "q1-1"),
        True,
        False,
    )


def test_spec_from_node_keeps_fields_without_an_option() -> None:
    """Several networks, a disk key, IP forwarding: a recreated node must not lose them silently."""
    raw = {
        "name": "projects/p/locations/us-central2-b/nodes/trainer",
        "acceleratorType": "v4-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "networkConfig": {"canIpForward": True, "enableExternalIps": True},
        "bootDiskConfig": {"customerEncryptionKey": {"kmsKeyName": "k"}},
    }

    spec = NodeSpec.from_json(NodeSpec.from_node(Node.from_api(raw)).to_json())

    body = spec.to_api()
    assert body["networkConfig"] == {"canIpForward": True, "enableExternalIps": True}
    assert body["bootDiskConfig"] == {"customerEncryptionKey": {"kmsKeyName": "k"}}
    several = NodeSpec.from_node(
        Node.from_api({**raw, "networkConfigs": [{"network": "a"}, {"network": "b"}]})
    ).to_api()
    assert ("networkConfig" in several, several["networkConfigs"]) == (False, [{"network": "a"}, {"network": "b"}])


def test_every_field_of_a_spec_has_a_row() -> None:
    assert {entry.name for entry in fields(NodeSpec)} - {"flagged", "asked"} == set(FIELDS)


@pytest.mark.parametrize(
    ("flags", "sent"),
    [
        ({"network": "b"}, {"network": "b"}),
        ({"network": "b", "subnetwork": "s"}, {"network": "b", "subnetwork": "s"}),
        ({}, {"network": "a", "subnetwork": "of-a"}),
    ],
    ids=["network", "network-and-subnetwork", "none"],
)
def test_network_of_a_flag_replaces_that_of_the_former_node(flags: dict[str, str], sent: dict[str, str]) -> None:
    """The service refuses a network with the subnetwork of another; networks without an option would hide that of a flag."""
    kept = {"networkConfigs": [{"network": "a"}, {"network": "a2"}]} if flags else {}
    former = NodeSpec(accelerator_type="v4-8", network="a", subnetwork="of-a", kept=kept)

    given = NodeSpec(
        network=flags.get("network"), subnetwork=flags.get("subnetwork"), named=frozenset(flags), flagged=flags
    )
    spec = given.over(former)

    body = spec.to_api()
    assert {key: body["networkConfig"].get(key) for key in ("network", "subnetwork")} == {"subnetwork": None} | sent
    assert "networkConfigs" not in body


def test_fields_that_another_version_named_are_ignored() -> None:
    stored = NodeSpec(accelerator_type="v4-8", named=frozenset({"tier"})).to_json() | {"named": ["nosuch", "tier"]}

    assert NodeSpec.from_json(stored).named == {"tier"}
