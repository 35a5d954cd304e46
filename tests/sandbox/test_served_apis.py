"""The methods served beside the TPU API: each answers in its schema, in each version that has it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.service import METHODS
from tpuctl.sandbox.state import SandboxState

NODES = "/v2/projects/sandbox/locations/us-central2-b/nodes"
NUMBER = administration.project_number("sandbox")
P = "/compute/v1/projects/sandbox"
KEY = {"key": "ssh-ed25519 AAAA me"}
FINGERPRINT = hashlib.sha256(KEY["key"].encode()).hexdigest()
PERMISSIONS = {"permissions": ["tpu.nodes.get", "tpu.nodes.create"]}
OWN = {"policy": {"bindings": [{"role": "roles/owner", "members": ["user:a@example.com"]}]}}
_TWICE = ("v1", "v3")
SUBNETWORK = f"{P}/regions/us-central2/subnetworks/default"
INSTANCE = f"{P}/zones/us-central2-b/instances/i"
POLICIES = "/v2/projects/sandbox/policies"

# Every method that is served beside the TPU API's: a request to each, in each version that has it.
SERVED: dict[str, list[tuple[str, str, Any]]] = {
    "compute.projects.get": [("GET", P, None), ("GET", "/compute/alpha/projects/sandbox", None)],
    "compute.projects.setCommonInstanceMetadata": [("POST", f"{P}/setCommonInstanceMetadata", {})],
    "compute.globalOperations.get": [("GET", f"{P}/global/operations/OPERATION", None)],
    "compute.globalOperations.wait": [("POST", f"{P}/global/operations/OPERATION/wait", None)],
    "compute.zones.get": [("GET", f"{P}/zones/us-central2-b", None)],
    "compute.zones.list": [("GET", f"{P}/zones", None)],
    "compute.regions.get": [("GET", f"{P}/regions/us-central2", None)],
    "compute.regions.list": [("GET", f"{P}/regions", None)],
    "compute.networks.get": [("GET", f"{P}/global/networks/default", None)],
    "compute.networks.list": [("GET", f"{P}/global/networks", None)],
    "compute.networks.insert": [("POST", f"{P}/global/networks", {"name": "own"})],
    "compute.subnetworks.get": [("GET", f"{P}/regions/us-central2/subnetworks/default", None)],
    "compute.subnetworks.list": [("GET", f"{P}/regions/us-central2/subnetworks", None)],
    "compute.subnetworks.aggregatedList": [("GET", f"{P}/aggregated/subnetworks", None)],
    "compute.subnetworks.setPrivateIpGoogleAccess": [
        ("POST", f"{SUBNETWORK}/setPrivateIpGoogleAccess", {"privateIpGoogleAccess": True})
    ],
    "compute.regionOperations.get": [("GET", f"{P}/regions/us-central2/operations/REGIONAL", None)],
    "compute.regionOperations.wait": [("POST", f"{P}/regions/us-central2/operations/REGIONAL/wait", None)],
    "compute.firewalls.get": [("GET", f"{P}/global/firewalls/default-allow-ssh", None)],
    "compute.firewalls.list": [("GET", f"{P}/global/firewalls", None)],
    "compute.firewalls.insert": [("POST", f"{P}/global/firewalls", {"name": "new"})],
    "compute.disks.get": [("GET", f"{P}/zones/us-central2-b/disks/d", None)],
    "compute.disks.list": [("GET", f"{P}/zones/us-central2-b/disks", None)],
    "compute.disks.aggregatedList": [("GET", f"{P}/aggregated/disks", None)],
    "compute.instances.get": [("GET", f"{P}/zones/us-central2-b/instances/i", None)],
    "compute.instances.list": [("GET", f"{P}/zones/us-central2-b/instances", None)],
    "compute.instances.aggregatedList": [("GET", f"{P}/aggregated/instances", None)],
    "compute.instances.stop": [("POST", f"{INSTANCE}/stop", None)],
    "compute.instances.setServiceAccount": [
        ("POST", f"{INSTANCE}/stop", None),
        ("POST", f"{INSTANCE}/setServiceAccount", {"scopes": []}),
    ],
    "compute.instances.start": [("POST", f"{INSTANCE}/start", None)],
    "compute.zoneOperations.get": [("GET", f"{P}/zones/us-central2-b/operations/ZONAL", None)],
    "compute.zoneOperations.wait": [("POST", f"{P}/zones/us-central2-b/operations/ZONAL/wait", None)],
    "storage.buckets.get": [("GET", "/storage/v1/b/b", None)],
    "storage.buckets.list": [("GET", "/storage/v1/b?project=sandbox", None)],
    "storage.buckets.getIamPolicy": [("GET", "/storage/v1/b/b/iam", None)],
    "storage.buckets.setIamPolicy": [("PUT", "/storage/v1/b/b/iam", OWN["policy"])],
    "storage.buckets.testIamPermissions": [("GET", "/storage/v1/b/b/iam/testPermissions?permissions=x", None)],
    "storage.buckets.insert": [("POST", "/storage/v1/b?project=sandbox", {"name": "new"})],
    "storage.buckets.patch": [("PATCH", "/storage/v1/b/b", {"versioning": {"enabled": True}})],
    "storage.buckets.getStorageLayout": [("GET", "/storage/v1/b/b/storageLayout", None)],
    "storage.anywhereCaches.list": [("GET", "/storage/v1/b/b/anywhereCaches", None)],
    "storage.objects.get": [("GET", "/storage/v1/b/b/o/o", None)],
    "storage.objects.list": [("GET", "/storage/v1/b/b/o", None)],
    "storage.objects.insert": [("POST", "/upload/storage/v1/b/b/o?uploadType=media&name=n", b"x")],
    "storage.objects.patch": [("PATCH", "/storage/v1/b/b/o/o", {"metadata": {"by": "me"}})],
    "storage.objects.rewrite": [("POST", "/storage/v1/b/b/o/o/rewriteTo/b/b/o/copy", {})],
    "storage.objects.delete": [("DELETE", "/storage/v1/b/b/o/o", None)],
    "serviceusage.services.get": [
        ("GET", f"/{v}/projects/sandbox/services/x.googleapis.com", None) for v in ("v1", "v1beta1")
    ],
    "serviceusage.services.list": [("GET", f"/{v}/projects/sandbox/services", None) for v in ("v1", "v1beta1")],
    "serviceusage.services.enable": [("POST", "/v1/projects/sandbox/services/x.googleapis.com:enable", {})],
    "serviceusage.services.batchGet": [
        ("GET", "/v1/projects/sandbox/services:batchGet?names=projects/sandbox/services/x.googleapis.com", None)
    ],
    "serviceusage.services.consumerQuotaMetrics.list": [
        ("GET", "/v1beta1/projects/sandbox/services/tpu.googleapis.com/consumerQuotaMetrics", None)
    ],
    "serviceusage.operations.get": [("GET", "/v1/USAGE", None)],
    "cloudresourcemanager.projects.get": [("GET", f"/{v}/projects/sandbox", None) for v in _TWICE],
    "cloudresourcemanager.projects.list": [
        ("GET", "/v1/projects", None),
        ("GET", "/v3/projects?parent=folders/1", None),
    ],
    "cloudresourcemanager.projects.undelete": [("POST", f"/{v}/projects/sandbox:undelete", {}) for v in _TWICE],
    "cloudresourcemanager.projects.getIamPolicy": [("POST", f"/{v}/projects/sandbox:getIamPolicy", {}) for v in _TWICE],
    "cloudresourcemanager.projects.setIamPolicy": [
        ("POST", f"/{v}/projects/sandbox:setIamPolicy", OWN) for v in _TWICE
    ],
    "cloudresourcemanager.projects.testIamPermissions": [
        ("POST", f"/{v}/projects/sandbox:testIamPermissions", PERMISSIONS) for v in _TWICE
    ],
    "iam.roles.get": [("GET", "/v1/roles/tpu.admin", None)],
    "iam.projects.roles.get": [("GET", "/v1/projects/sandbox/roles/reader", None)],
    "orgpolicy.projects.policies.getEffectivePolicy": [
        ("GET", f"{POLICIES}/compute.requireOsLogin:getEffectivePolicy", None)
    ],
    "oslogin.users.getLoginProfile": [("GET", "/v1/users/me@example.com/loginProfile", None)],
    "oslogin.users.importSshPublicKey": [("POST", "/v1/users/me@example.com:importSshPublicKey", KEY)],
    "oslogin.users.sshPublicKeys.patch": [
        ("POST", "/v1/users/me@example.com:importSshPublicKey", KEY),
        ("PATCH", f"/v1/users/me@example.com/sshPublicKeys/{FINGERPRINT}", {"expirationTimeUsec": "1767225600000000"}),
    ],
    "cloudbilling.projects.getBillingInfo": [("GET", "/v1/projects/sandbox/billingInfo", None)],
    "cloudbilling.projects.updateBillingInfo": [
        ("PUT", "/v1/projects/sandbox/billingInfo", {"billingAccountName": "billingAccounts/1"})
    ],
    "cloudbilling.billingAccounts.list": [("GET", "/v1/billingAccounts", None)],
}


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> SandboxState:
    sandbox_state = SandboxState.open(tmp_path_factory.mktemp("stocked") / "sandbox.db")
    administration.add_bucket(sandbox_state, "b")
    administration.add_object(sandbox_state, "b", "o", "content")
    administration.add_disk(sandbox_state, "d")
    administration.add_instance(sandbox_state, "i")
    administration.add_cache(sandbox_state, "b", "us-central1-a")
    administration.add_role(sandbox_state, "reader", includedPermissions=["storage.objects.get"])
    administration.set_org_policy(sandbox_state, "compute.requireOsLogin", {"rules": [{"enforce": True}]})
    return sandbox_state


@pytest.mark.parametrize("method", SERVED)
def test_served_method_answers_in_its_schema(stocked: SandboxState, method: str) -> None:
    wire = Wire(stocked)
    names = {
        "OPERATION": wire("POST", f"{P}/setCommonInstanceMetadata", {})["name"],
        "ZONAL": wire("POST", f"{INSTANCE}/stop")["name"],
        "REGIONAL": wire("POST", f"{SUBNETWORK}/setPrivateIpGoogleAccess", {})["name"],
        "USAGE": wire("POST", "/v1/projects/sandbox/services/y.googleapis.com:enable", {})["name"],
    }
    for http_method, path, body in SERVED[method]:
        for word, name in names.items():
            path = path.replace(word, name)  # noqa: PLW2901  # the path with its names in
        answer = wire(http_method, path, body)
        assert isinstance(answer, dict) or http_method == "DELETE"


def test_list_of_served_methods_is_complete() -> None:
    assert {method for method in METHODS if not method.startswith("tpu.")} == {*SERVED}
