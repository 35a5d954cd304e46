"""Organisation policies in the sandbox: as they take effect, and what they refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

POLICIES = "/v2/projects/sandbox/policies"
NUMBER = administration.project_number("sandbox")
NODES = "/v2/projects/sandbox/locations/us-central2-b/nodes?nodeId=n"
BODY = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
EXTERNAL = {"networkConfig": {"enableExternalIps": True}}
SECURE = {"shieldedInstanceConfig": {"enableSecureBoot": True}}
NOT_FOUND = (404, "NOT_FOUND", "Requested entity was not found.")
DENY_ALL: dict[str, Any] = {"rules": [{"denyAll": True}]}


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    return Wire(sandbox_state)


@pytest.mark.parametrize(
    ("constraint", "spec", "effective"),
    [
        ("compute.requireOsLogin", None, {"enforce": False}),
        ("compute.vmExternalIpAccess", None, {"allowAll": True}),
        ("compute.disableNestedVirtualization", None, {"enforce": False}),
        ("gcp.restrictNonCmekServices", None, {"allowAll": True}),
        ("iam.disableServiceAccountCreation", None, {"enforce": False}),
        ("iam.disableCrossProjectServiceAccountUsage", None, {"enforce": True}),
        ("iam.disableCrossProjectServiceAccountUsage", {"rules": [{"enforce": False}]}, {"enforce": False}),
        ("compute.sharedReservationsOwnerProjects", None, {"denyAll": True}),
        ("storage.retentionPolicySeconds", None, {"allowAll": True}),
        ("custom.ours", None, {"enforce": False}),
        ("compute.requireOsLogin", {"rules": [{"enforce": True}]}, {"enforce": True}),
        ("compute.requireOsLogin", {"reset": True}, {"enforce": False}),
        ("compute.vmExternalIpAccess", DENY_ALL, {"denyAll": True}),
        (
            "compute.vmExternalIpAccess",
            {"rules": [{"denyAll": True, "condition": {"expression": "resource.matchTag('1/a', 'b')"}}]},
            {"allowAll": True},
        ),
        (
            "gcp.resourceLocations",
            {"rules": [{"values": {"allowedValues": ["in:us-locations"]}}]},
            {"values": {"allowedValues": ["in:us-locations"]}},
        ),
    ],
)
def test_effective_policy_is_the_set_one_or_the_default(wire: Wire, constraint: str, spec: Any, effective: Any) -> None:
    if spec:
        administration.set_org_policy(wire.state, constraint, spec)

    assert wire("GET", f"{POLICIES}/{constraint}:getEffectivePolicy") == {
        "name": f"projects/{NUMBER}/policies/{constraint}",
        "spec": {"rules": [effective]},
    }


def test_unknown_constraint_is_not_found(wire: Wire) -> None:
    assert wire("GET", f"{POLICIES}/compute.noSuchThing:getEffectivePolicy") == NOT_FOUND


@pytest.mark.parametrize(
    ("constraint", "spec", "change", "refused"),
    [
        ("compute.vmExternalIpAccess", DENY_ALL, {}, False),
        ("compute.vmExternalIpAccess", {"rules": [{"allowAll": True}]}, EXTERNAL, False),
        ("compute.vmExternalIpAccess", DENY_ALL, EXTERNAL, True),
        ("compute.vmExternalIpAccess", DENY_ALL, {"networkConfigs": [{}, {"enableExternalIps": True}]}, True),
        ("compute.requireShieldedVm", {"rules": [{"enforce": True}]}, SECURE, False),
        ("compute.requireShieldedVm", {"rules": [{"enforce": False}]}, {}, False),
        ("compute.requireShieldedVm", {"rules": [{"enforce": True}]}, {}, True),
    ],
)
def test_create_node_against_a_policy_is_rejected(
    wire: Wire, constraint: str, spec: Any, change: Any, refused: bool
) -> None:
    administration.set_org_policy(wire.state, constraint, spec)

    answer = wire("POST", NODES, {**BODY, **change})

    if refused:
        assert answer[:2] == (400, "INVALID_ARGUMENT")
        assert answer[2].startswith(f"Cloud TPU received a bad request. Constraint constraints/{constraint} violated")
    else:
        assert answer["done"] is False


def test_create_queued_resource_against_a_policy_is_rejected(wire: Wire) -> None:
    administration.set_org_policy(wire.state, "compute.requireShieldedVm", {"rules": [{"enforce": True}]})
    spec = {"parent": "projects/sandbox/locations/us-central2-b", "nodeId": "n", "node": BODY}
    path = "/v2/projects/sandbox/locations/us-central2-b/queuedResources?queuedResourceId=q"

    assert wire("POST", path, {"tpu": {"nodeSpec": [spec]}})[0] == 400
