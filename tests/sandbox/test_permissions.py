"""Errors for missing permissions and disabled services, in the words of each API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.service import METHODS, needed_permission

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

NUMBER = administration.project_number("sandbox")
P = "/compute/v1/projects/sandbox"
POLICY = "/v2/projects/sandbox/policies/compute.requireOsLogin:getEffectivePolicy"
TPU = "projects/sandbox/locations/us-central2-b"
LISTED = f"Permission denied to list services for consumer container [projects/{NUMBER}]"
NO_POLICY = (
    "Permission 'orgpolicy.policy.get' denied on resource '//cloudresourcemanager.googleapis.com/projects/sandbox' "
    "(or it may not exist)."
)


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    administration.add_instance(sandbox_state, "vm", zone="us-central1-a")
    administration.add_role(sandbox_state, "reader")
    return Wire(sandbox_state)


def _compute(permission: str, path: str) -> tuple[int, str, str]:
    return 403, "forbidden", f"Required '{permission}' permission for '{path}'"


def _of_rpc(message: str) -> tuple[int, str, str]:
    return 403, "PERMISSION_DENIED", message


@pytest.mark.parametrize(
    ("permission", "path", "answer"),
    [
        (
            "compute.networks.get",
            f"{P}/global/networks/default",
            _compute("compute.networks.get", "projects/sandbox/global/networks/default"),
        ),
        (
            "compute.subnetworks.get",
            f"{P}/regions/us-central2/subnetworks/default",
            _compute("compute.subnetworks.get", "projects/sandbox/regions/us-central2/subnetworks/default"),
        ),
        ("compute.firewalls.list", f"{P}/global/firewalls", _compute("compute.firewalls.list", "projects/sandbox")),
        (
            "compute.regions.get",
            f"{P}/regions/us-central2",
            _compute("compute.regions.get", "projects/sandbox/regions/us-central2"),
        ),
        (
            "compute.instances.list",
            f"{P}/aggregated/instances?filter=name=vm",
            _compute("compute.instances.list", "projects/sandbox"),
        ),
        (
            "compute.disks.get",
            f"{P}/zones/us-central2-b/disks/d",
            _compute("compute.disks.get", "projects/sandbox/zones/us-central2-b/disks/d"),
        ),
        ("compute.projects.get", P, _compute("compute.projects.get", "projects/sandbox")),
        ("tpu.nodes.list", f"/v2/{TPU}/nodes", _of_rpc(f"Permission 'tpu.nodes.list' denied on '{TPU}'")),
        (
            "tpu.acceleratortypes.list",
            f"/v2/{TPU}/acceleratorTypes",
            _of_rpc(f"Permission 'tpu.acceleratortypes.list' denied on '{TPU}'"),
        ),
        ("serviceusage.services.list", "/v1/projects/sandbox/services", _of_rpc(LISTED)),
        (
            "serviceusage.services.get",
            "/v1/projects/sandbox/services/tpu.googleapis.com",
            _of_rpc("Permission denied to get service [tpu.googleapis.com]"),
        ),
        (
            "serviceusage.quotas.get",
            "/v1beta1/projects/sandbox/services/tpu.googleapis.com/consumerQuotaMetrics",
            _of_rpc(f"Permission denied to get quota information for consumer container [projects/{NUMBER}]"),
        ),
        ("orgpolicy.policy.get", POLICY, _of_rpc(NO_POLICY)),
        (
            "resourcemanager.projects.get",
            "/v1/projects/sandbox/billingInfo",
            _of_rpc("The caller does not have permission"),
        ),
        (
            "iam.roles.get",
            "/v1/projects/sandbox/roles/reader",
            _of_rpc("You don't have permission to get the role at projects/sandbox/roles/reader."),
        ),
    ],
)
def test_missing_permission_gives_the_error_of_the_api(wire: Wire, permission: str, path: str, answer: Any) -> None:
    assert not (isinstance(found := wire("GET", path), tuple) and found[0] == 403)
    administration.add_project(wire.state, "sandbox", denied=[permission])

    assert wire("GET", path) == answer


def test_missing_create_permission_error_names_the_new_resource(wire: Wire) -> None:
    administration.add_project(wire.state, "sandbox", denied=["compute.firewalls.create", "tpu.nodes.create"])
    rule = {"name": "ssh", "allowed": [{"IPProtocol": "tcp"}]}
    node = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}

    assert wire("POST", f"{P}/global/firewalls", rule)[2] == (
        "Required 'compute.firewalls.create' permission for 'projects/sandbox/global/firewalls/ssh'"
    )
    assert wire("POST", f"/v2/{TPU}/nodes?nodeId=n", node)[2] == (
        f"Permission 'tpu.nodes.create' denied on '{TPU}/nodes/n'"
    )


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("tpu", f"/v2/{TPU}/nodes"),
        ("compute", P),
        ("serviceusage", "/v1/projects/sandbox/services"),
        ("cloudresourcemanager", "/v3/projects/sandbox"),
        ("cloudbilling", "/v1/projects/sandbox/billingInfo"),
        ("iam", "/v1/projects/sandbox/roles/reader"),
        ("orgpolicy", POLICY),
    ],
)
def test_every_api_rejects_calls_until_its_service_is_enabled(wire: Wire, api: str, path: str) -> None:
    service = f"{api}.googleapis.com"
    assert not isinstance(wire("GET", path), tuple)
    administration.set_services(wire.state, {service: "DISABLED"})

    refused = wire("GET", path)

    assert (refused[0], "before or it is disabled. Enable it by visiting" in refused[2]) == (403, True)
    wire("POST", f"/v1/projects/sandbox/services/{service}:enable", {})
    assert not isinstance(wire("GET", path), tuple)


def test_batch_get_returns_services(wire: Wire) -> None:
    administration.set_services(wire.state, {"tpu.googleapis.com": "DISABLED"})
    path = "/v1/projects/sandbox/services:batchGet"
    names = [f"names=projects/sandbox/services/{api}.googleapis.com" for api in ("tpu", "compute")]

    found = wire("GET", f"{path}?{'&'.join(names)}")["services"]

    assert [(service["config"]["name"], service["state"]) for service in found] == [
        ("tpu.googleapis.com", "DISABLED"),
        ("compute.googleapis.com", "ENABLED"),
    ]
    assert wire("GET", path)[0] == 400
    assert wire("GET", f"{path}?{'&'.join(names * 16)}")[0] == 400
    assert wire("GET", f"{path}?names=projects/other/services/tpu.googleapis.com")[0] == 400


@pytest.mark.parametrize(
    ("method", "permission"),
    [
        ("compute.instances.aggregatedList", "compute.instances.list"),
        ("compute.firewalls.insert", "compute.firewalls.create"),
        ("compute.globalOperations.wait", "compute.globalOperations.get"),
        ("compute.subnetworks.setPrivateIpGoogleAccess", "compute.subnetworks.setPrivateIpGoogleAccess"),
        ("tpu.projects.locations.runtimeVersions.list", "tpu.runtimeversions.list"),
        ("tpu.projects.locations.nodes.patch", "tpu.nodes.update"),
        ("tpu.projects.locations.queuedResources.list", "tpu.nodes.list"),
        ("tpu.projects.locations.operations.cancel", ""),
        ("storage.buckets.get", ""),
        ("iam.roles.get", ""),
    ],
)
def test_permission_is_named_after_the_method_or_listed(method: str, permission: str) -> None:
    assert (needed_permission(method), method in METHODS) == (permission, True)


def test_tpu_permissions_exist_in_iam(wire: Wire) -> None:
    """The role TPU Admin has every permission of the service that IAM knows."""
    there_are = {*wire("GET", "/v1/roles/tpu.admin")["includedPermissions"], ""}

    assert {needed_permission(method) for method in METHODS if method.startswith("tpu.")} <= there_are


def test_billing_is_linked_and_disabled(wire: Wire) -> None:
    administration.set_billing(wire.state, enabled=False)
    path = "/v1/projects/sandbox/billingInfo"
    (account,) = wire("GET", "/v1/billingAccounts")["billingAccounts"]

    linked = wire("PUT", path, {"billingAccountName": account["name"]})

    assert (linked, linked["billingEnabled"]) == (wire("GET", path), True)
    assert wire("PUT", path, {})["billingEnabled"] is False


def test_project_is_undeleted(wire: Wire) -> None:
    administration.add_project(wire.state, "sandbox", state="DELETE_REQUESTED", denied=["tpu.nodes.create"])

    assert wire("POST", "/v1/projects/sandbox:undelete", {}) == {}
    listed = [(entry["projectId"], entry["lifecycleState"]) for entry in wire("GET", "/v1/projects")["projects"]]
    assert listed == [("sandbox", "ACTIVE")]


def test_custom_role_is_read_by_project_id_and_number(wire: Wire) -> None:
    administration.add_role(wire.state, "reader", includedPermissions=["storage.objects.get"])

    role = wire("GET", f"/v1/projects/{NUMBER}/roles/reader")

    assert (role["name"], role["includedPermissions"]) == ("projects/sandbox/roles/reader", ["storage.objects.get"])
    assert wire("GET", "/v1/projects/sandbox/roles/none") == (
        404,
        "NOT_FOUND",
        "The role named projects/sandbox/roles/none was not found.",
    )
