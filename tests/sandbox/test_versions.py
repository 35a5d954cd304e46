"""Features of single API versions: TPU Nodes and reimage of v1, maintenance and reservations of v2alpha1."""

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

MINUTE = timedelta(minutes=1)
ZONE = "projects/sandbox/locations/us-central1-a"
NAME = f"{ZONE}/nodes/old"
LEGACY: dict[str, Any] = {
    "acceleratorType": "v3-8",
    "tensorflowVersion": "2.12.0",
    "network": "default",
    "cidrBlock": "10.240.1.0/29",
    "schedulingConfig": {"preemptible": True},
}


def create(api: Api, version: str = "v1", **change: Any) -> Any:
    return api("nodes.create", {**LEGACY, **change}, version=version, parent=ZONE, nodeId="old")


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_tpu_node_is_rejected_unless_the_setting_allows_it(sandbox_state: SandboxState, api: Api, version: str) -> None:
    denied = create(api, version)
    administration.set_setting(sandbox_state, "legacy_nodes", value=True)
    allowed = create(api, version)

    # Observed: skypilot#5593.
    text = (
        "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or contact Cloud TPU team "
        "to gain TPU Node access. https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm"
    )
    assert (denied, allowed["metadata"]["verb"]) == ((400, text), "create")


def test_tpu_node_has_v1_fields_and_other_versions_show_its_architecture(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    administration.set_setting(sandbox_state, "legacy_nodes", value=True)
    create(api)
    clock.sleep(9 * MINUTE)
    node = api("nodes.get", name=NAME, version="v1")
    others = {version: api("nodes.get", name=NAME, version=version)["apiVersion"] for version in ("v2", "v2alpha1")}

    chosen = {
        key: node[key] for key in ("tensorflowVersion", "cidrBlock", "schedulingConfig", "state", "port", "apiVersion")
    }
    assert chosen == {
        "tensorflowVersion": "2.12.0",
        "cidrBlock": "10.240.1.0/29",
        "schedulingConfig": {"preemptible": True},
        "state": "READY",
        "port": "8470",
        "apiVersion": "V1",
    }
    assert others == {"v2": "V1", "v2alpha1": "V1"}


def test_reimage_changes_a_tpu_node_and_rejects_a_tpu_vm(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    administration.set_setting(sandbox_state, "legacy_nodes", value=True)
    administration.add_node(sandbox_state, "vm", zone="us-central1-a", acceleratorType="v3-8")
    create(api)
    clock.sleep(9 * MINUTE)

    wrong = api("nodes.reimage", {"tensorflowVersion": "2.4"}, version="v1", name=NAME)
    vm = api("nodes.reimage", {"tensorflowVersion": "2.15.0"}, version="v1", name=f"{ZONE}/nodes/vm")
    operation = api("nodes.reimage", {"tensorflowVersion": "2.15.0"}, version="v1", name=NAME)
    seen = [api("nodes.get", name=NAME, version="v1")["state"]]
    clock.sleep(3 * MINUTE)
    node = api("nodes.get", name=NAME, version="v1")

    # The first observed: tensorflow/tpu#877.
    refused = (400, 'Cloud TPU received an invalid argument. The field "TensorflowVersion" cannot be "2.4".')
    assert (wrong, vm[0]) == (refused, 400)
    assert [*seen, node["state"], node["tensorflowVersion"]] == ["REIMAGING", "READY", "2.15.0"]
    assert api("operations.get", version="v1", name=operation["name"])["done"]


def test_operation_of_a_replaced_node_is_read_in_every_version(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    administration.add_node(sandbox_state)
    operation = api("nodes.stop", name=f"{api.zone}/nodes/node", version="v1")
    clock.sleep(2 * MINUTE)
    administration.add_node(sandbox_state, state="REPAIRING")

    for version in ("v1", "v1alpha1", "v2", "v2alpha1"):
        answer = api("operations.get", name=operation["name"], version=version)["response"]
        assert (answer["@type"], answer["state"]) == (f"type.googleapis.com/google.cloud.tpu.{version}.Node", "STOPPED")


def test_announced_maintenance_is_listed_and_can_be_started(
    sandbox_state: SandboxState, api: Api, clock: ManualClock
) -> None:
    administration.add_queued_resource(sandbox_state, node_ids=("node",))
    node = administration.add_node(sandbox_state, queued_resource="queued")
    queued = f"{api.zone}/queuedResources/queued"
    perform = "queuedResources.performMaintenanceQueuedResource"
    early = api(perform, {"nodeNames": ["node"]}, version="v2alpha1", name=queued)
    with sandbox_state.write() as session:
        add_fault(session, Fault(FaultKind.MAINTENANCE, after=timedelta(hours=5)))

    info = api("queuedResources.getMaintenanceInfo", version="v2alpha1", name=queued)
    strange = api(perform, {"nodeNames": ["other"]}, version="v2alpha1", name=queued)
    operation = api(perform, {"nodeNames": ["node"]}, version="v2alpha1", name=queued)
    seen = []
    for _ in range(2):
        health, done = api.health(), api("operations.get", name=operation["name"])["done"]
        seen.append((health, done, "upcomingMaintenance" in api("nodes.get", name=f"{api.zone}/nodes/node")))
        clock.sleep(11 * MINUTE)

    (entry,) = info["nodeUpcomingMaintenances"]
    announced = entry["upcomingMaintenance"]
    assert (early[0], strange[0]) == (400, 400)
    assert (entry["nodeName"], entry["nodeUid"], announced["maintenanceStatus"]) == ("node", node["id"], "PENDING")
    assert seen == [("UNHEALTHY_MAINTENANCE", False, True), ("HEALTHY", True, False)]


@pytest.mark.parametrize(("workers", "worker", "accepted"), [(1, "0", True), (1, "1", False), (2, "1", True)])
def test_maintenance_event_is_simulated_on_an_existing_worker(
    sandbox_state: SandboxState, api: Api, workers: int, worker: str, *, accepted: bool
) -> None:
    administration.add_node(sandbox_state, acceleratorType=f"v4-{8 * workers}")

    answer = api(
        "nodes.simulateMaintenanceEvent", {"workerIds": [worker]}, version="v2alpha1", name=f"{api.zone}/nodes/node"
    )

    assert ("name" in answer, api.health()) == (accepted, "UNHEALTHY_MAINTENANCE" if accepted else "HEALTHY")


def test_reservations_are_those_of_the_setting(sandbox_state: SandboxState, api: Api) -> None:
    mine, far = (f"projects/sandbox/locations/{zone}/reservations/r" for zone in ("us-central2-b", "us-east5-b"))
    administration.set_setting(sandbox_state, "reservations", [{"name": mine, "state": "ACTIVE"}, {"name": far}])

    listed = [
        [entry["name"] for entry in api("reservations.list", version="v2alpha1", parent=parent).get("reservations", [])]
        for parent in (api.zone, "projects/sandbox/locations/-", "projects/other/locations/-")
    ]
    assert listed == [[mine], [mine, far], []]
