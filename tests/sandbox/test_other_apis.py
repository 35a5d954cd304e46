"""The small APIs in the sandbox, and calls to unknown projects, disabled services and projects without billing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import set_tpu_quota
from tpuctl.sandbox.faults import Fault, FaultKind, add_fault
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    pass

NODES = "/v2/projects/sandbox/locations/us-central2-b/nodes"
NUMBER = administration.project_number("sandbox")
P = "/compute/v1/projects/sandbox"
KEY = {"key": "ssh-ed25519 AAAA me"}
PERMISSIONS = {"permissions": ["tpu.nodes.get", "tpu.nodes.create"]}
OWN = {"policy": {"bindings": [{"role": "roles/owner", "members": ["user:a@example.com"]}]}}
_V3_DENIED = (
    "Permission 'resourcemanager.projects.get' denied on resource '//cloudresourcemanager.googleapis.com/projects/typo' "
    "(or it may not exist)."
)


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    return Wire(sandbox_state)


def test_unimplemented_method_is_an_error_with_its_name(wire: Wire) -> None:
    assert wire("GET", "/v1/projects/p/serviceAccounts") == (
        501,
        "UNIMPLEMENTED",
        "Operation is not implemented, or supported, or enabled. The sandbox does not serve iam.projects.serviceAccounts.list.",
    )
    assert wire("DELETE", "/storage/v1/b/b")[:2] == (501, "notImplemented")


def test_http_error_has_the_form_of_its_api(wire: Wire) -> None:
    administration.add_bucket(wire.state, "b")
    with wire.state.write() as session:
        add_fault(session, Fault(FaultKind.HTTP_ERROR, method="storage.*", status=503, message="Busy."))
        add_fault(session, Fault(FaultKind.UNAUTHENTICATED, method="compute.*"))

    assert wire("GET", "/storage/v1/b/b") == (503, "backendError", "Busy.")
    assert wire("GET", P)[:2] == (401, "authError")
    assert (wire("GET", "/storage/v1/b/b")["name"], wire("GET", P)["name"]) == ("b", "sandbox")


def test_disabled_service_error_names_the_console_page(wire: Wire) -> None:
    administration.set_services(wire.state, {"tpu.googleapis.com": "DISABLED"})
    url = f"https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project={NUMBER}"

    message = (
        f"Cloud TPU API has not been used in project {NUMBER} before or it is disabled. Enable it by visiting {url} then "
        "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry."
    )

    refused = wire.send("GET", NODES)

    assert json.loads(refused.body) == {
        "error": {
            "code": 403,
            "message": message,
            "status": "PERMISSION_DENIED",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.Help",
                    "links": [{"description": "Google developers console API activation", "url": url}],
                },
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "SERVICE_DISABLED",
                    "domain": "googleapis.com",
                    "metadata": {"service": "tpu.googleapis.com", "consumer": f"projects/{NUMBER}"},
                },
            ],
        }
    }
    assert wire("GET", P)["name"] == "sandbox"
    listed = wire("GET", "/v1/projects/sandbox/services?filter=state:DISABLED")["services"]
    assert [service["config"]["name"] for service in listed] == ["tpu.googleapis.com"]
    wire("POST", f"/v1/projects/{NUMBER}/services/tpu.googleapis.com:enable", {})
    assert wire("GET", NODES) == {}


def test_calls_without_billing_are_rejected(wire: Wire) -> None:
    administration.set_billing(wire.state, enabled=False)

    for path in (NODES, P):
        code, _, message = wire("GET", path)
        assert (code, message.partition(" by visiting")[0]) == (
            403,
            f"This API method requires billing to be enabled. Please enable billing on project #{NUMBER}",
        )
    assert wire("GET", "/v1/projects/sandbox/billingInfo")["billingEnabled"] is False


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        (
            "GET",
            "/v2/projects/typo/locations",
            (403, "PERMISSION_DENIED", "Permission denied on resource project typo."),
        ),
        ("GET", "/compute/v1/projects/typo", (404, "notFound", "The resource 'projects/typo' was not found")),
        ("GET", "/storage/v1/b?project=typo", (400, "invalid", "Unknown project id: typo")),
        ("GET", "/v1/projects/typo", (403, "PERMISSION_DENIED", "The caller does not have permission")),
        (
            "GET",
            "/v3/projects/typo",
            (403, "PERMISSION_DENIED", _V3_DENIED),
        ),
        (
            "GET",
            "/v1/projects/typo/services",
            (403, "PERMISSION_DENIED", "Project 'typo' not found or permission denied."),
        ),
        ("GET", "/v1/projects/typo/billingInfo", (403, "PERMISSION_DENIED", "The caller does not have permission")),
    ],
)
def test_unknown_project_gives_the_error_of_each_api(wire: Wire, method: str, path: str, answer: Any) -> None:
    assert not isinstance(wire(method, path), tuple) or "storage" in path
    administration.add_project(wire.state, "sandbox")

    assert wire(method, path) == answer
    assert not isinstance(wire(method, path.replace("typo", "sandbox")), tuple)


def test_project_is_found_by_id_and_number(wire: Wire) -> None:
    administration.add_project(wire.state, "mine", displayName="Mine", labels={"a": "b"}, denied=["tpu.nodes.create"])
    number = administration.project_number("mine")

    assert wire("GET", f"/v1/projects/{number}") == {
        "projectNumber": number,
        "projectId": "mine",
        "name": "Mine",
        "lifecycleState": "ACTIVE",
        "createTime": "2026-01-01T00:00:00.000Z",
        "labels": {"a": "b"},
    }
    assert wire("GET", "/v3/projects/mine")["name"] == f"projects/{number}"
    assert wire("POST", "/v3/projects/mine:testIamPermissions", PERMISSIONS) == {"permissions": ["tpu.nodes.get"]}


def test_set_project_policy_with_an_old_etag_is_rejected(wire: Wire) -> None:
    before = wire("POST", "/v3/projects/sandbox:getIamPolicy", {})
    account = f"serviceAccount:{NUMBER}-compute@developer.gserviceaccount.com"
    assert {"role": "roles/editor", "members": [account]} in before["bindings"]

    administration.set_iam_policy(wire.state, OWN["policy"]["bindings"])

    refused = wire("POST", "/v1/projects/sandbox:setIamPolicy", {"policy": before})
    assert refused[:2] == (409, "ABORTED")
    assert wire("POST", "/v1/projects/sandbox:getIamPolicy", {})["bindings"] == OWN["policy"]["bindings"]


def test_role_has_the_permissions_of_included_roles(wire: Wire) -> None:
    admin_role = wire("GET", "/v1/roles/storage.objectAdmin")["includedPermissions"]

    assert {"storage.objects.get", "storage.objects.list", "storage.objects.create", "storage.objects.delete"} < {
        *admin_role
    }
    assert "tpu.nodes.create" in wire("GET", "/v1/roles/owner")["includedPermissions"]
    assert wire("GET", "/v1/roles/none") == (404, "NOT_FOUND", "The role named roles/none was not found.")


def test_imported_key_is_in_the_login_profile(wire: Wire) -> None:
    imported = wire("POST", "/v1/users/Me@example.com:importSshPublicKey", KEY)

    profile = wire("GET", "/v1/users/Me@example.com/loginProfile")
    assert (imported, profile["posixAccounts"][0]["username"]) == ({"loginProfile": profile}, "me_example_com")
    assert [entry["key"] for entry in profile["sshPublicKeys"].values()] == [KEY["key"]]
    assert wire("POST", "/v1/users/me:importSshPublicKey", {"key": "x"})[0] == 400


def test_quotas_are_listed_as_metrics(wire: Wire) -> None:
    """One metric has a limit by zone and one by region; a number that is 0 is omitted."""
    with wire.state.write() as session:
        set_tpu_quota(session, limit=16, generation="v5e serving", tier="spot", zone="us-west4-a")
        set_tpu_quota(session, limit=0, generation="v5e serving", tier="spot", region="us-west4")
        set_tpu_quota(session, limit=64, generation="v6e")
    path = "services/tpu.googleapis.com/consumerQuotaMetrics"

    small, v6e = wire("GET", f"/v1beta1/projects/sandbox/{path}")["metrics"]

    unlimited = {"effectiveLimit": "-1", "defaultLimit": "-1"}
    in_zone = {"effectiveLimit": "16", "defaultLimit": "-1", "dimensions": {"zone": "us-west4-a"}}
    in_region = {"defaultLimit": "-1", "dimensions": {"region": "us-west4"}}
    shown = [(limit["unit"], limit["quotaBuckets"]) for limit in small["consumerQuotaLimits"]]
    assert (small["metric"], shown) == (
        "tpu.googleapis.com/tpu-v5s-litepod-serving-preemptible",
        [("1/{project}/{zone}", [unlimited, in_zone]), ("1/{project}/{region}", [unlimited, in_region])],
    )
    (limit,) = v6e["consumerQuotaLimits"]
    assert (v6e["name"], limit["metric"], limit["quotaBuckets"], "us-east5" in limit["supportedLocations"]) == (
        f"projects/{NUMBER}/{path}/tpu.googleapis.com%2Ftpu-v6e",
        "tpu.googleapis.com/tpu-v6e",
        [{"effectiveLimit": "64", "defaultLimit": "64"}],
        True,
    )
