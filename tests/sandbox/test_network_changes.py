"""Changes of networks and virtual machines, and lists filtered by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration
from tpuctl.sandbox.seeding import apply_seed, read_seed

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

P = "/compute/v1/projects/sandbox"
LINK = "https://www.googleapis.com/compute/v1/projects/sandbox"
SUBNETWORK = f"{P}/regions/us-central2/subnetworks/default"


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    return Wire(sandbox_state)


def test_recreated_default_network_has_no_firewall_rules(wire: Wire) -> None:
    apply_seed(wire.state, read_seed("networks: [{name: default, absent: true}]", "s.yaml"))
    assert wire("GET", f"{P}/global/networks/default")[0] == 404
    assert "items" not in wire("GET", f"{P}/global/firewalls")

    wire("POST", f"{P}/global/networks", {"name": "default", "autoCreateSubnetworks": True})

    assert wire("GET", SUBNETWORK)["network"] == f"{LINK}/global/networks/default"
    assert "items" not in wire("GET", f"{P}/global/firewalls")
    assert wire("POST", f"{P}/global/networks", {"name": "default"})[:2] == (409, "alreadyExists")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{P}/global/firewalls", {"name": "ssh", "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}),
        (f"{P}/global/networks", {"name": "own"}),
        (f"{SUBNETWORK}/setPrivateIpGoogleAccess", {"privateIpGoogleAccess": True}),
    ],
)
def test_change_with_a_repeated_request_id_is_carried_out_once(wire: Wire, path: str, body: dict[str, object]) -> None:
    """API field text of `requestId` and of `clientOperationId`."""
    first, again, other = (
        wire("POST", f"{path}?requestId={digit}f6b4a4e-0f0c-4d7e-9f1a-0a4f1c1d2e3f", body) for digit in (1, 1, 2)
    )

    assert first["clientOperationId"] == "1f6b4a4e-0f0c-4d7e-9f1a-0a4f1c1d2e3f"
    assert again == first
    assert other[:2] == (409, "alreadyExists") if "name" in body else other["name"] != first["name"]


def test_legacy_network_has_no_subnetworks(wire: Wire) -> None:
    administration.add_network(wire.state, "ancient", IPv4Range="10.240.0.0/16")

    network = wire("GET", f"{P}/global/networks/ancient")

    assert (network["IPv4Range"], {"autoCreateSubnetworks", "subnetworks"} & set(network)) == ("10.240.0.0/16", set())
    assert wire("GET", f"{P}/regions/us-central2/subnetworks/ancient")[0] == 404


def test_private_google_access_is_set_by_a_regional_operation(wire: Wire) -> None:
    operation = wire("POST", f"{SUBNETWORK}/setPrivateIpGoogleAccess", {"privateIpGoogleAccess": True})

    own = operation["selfLink"].removeprefix("https://www.googleapis.com")
    assert (operation["region"], wire("GET", own)) == (f"{LINK}/regions/us-central2", operation)
    assert wire("GET", f"{P}/global/operations/{operation['name']}")[0] == 404
    assert wire("GET", SUBNETWORK)["privateIpGoogleAccess"] is True
    assert wire("POST", f"{P}/regions/us-central2/subnetworks/no/setPrivateIpGoogleAccess", {})[0] == 404


def test_service_account_can_change_while_the_machine_is_stopped(wire: Wire) -> None:
    administration.add_instance(wire.state, "vm")
    machine = f"{P}/zones/us-central2-b/instances/vm"
    account = {"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
    assert wire("POST", f"{machine}/setServiceAccount", account)[:2] == (400, "resourceNotReady")

    wire("POST", f"{machine}/stop")
    assert wire("GET", machine)["status"] == "TERMINATED"
    wire("POST", f"{machine}/setServiceAccount", account)
    wire("POST", f"{machine}/start")

    found = wire("GET", machine)
    email = f"{administration.project_number('sandbox')}-compute@developer.gserviceaccount.com"
    assert (found["status"], found["serviceAccounts"]) == ("RUNNING", [{**account, "email": email}])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("name=vm", {"vm"}),
        ('name = "vm"', {"vm"}),
        ("(name=vm)", {"vm"}),
        ("name eq vm", {"vm"}),
        ("name eq vm.*", {"vm", "vm-2"}),
        ("name=vm.*", set()),
        ("name=none", set()),
        ("status=RUNNING", {"vm", "vm-2", "other"}),
        ("", {"vm", "vm-2", "other"}),
    ],
)
def test_list_is_filtered_by_name(wire: Wire, given: str, found: set[str]) -> None:
    for name, zone in (("vm", "us-central1-a"), ("vm-2", "us-central2-b"), ("other", "us-central2-b")):
        administration.add_instance(wire.state, name, zone=zone)

    items = wire("GET", f"{P}/aggregated/instances?filter={given}")["items"]

    assert {machine["name"] for part in items.values() for machine in part.get("instances", [])} == found


def test_list_with_an_invalid_filter_is_rejected(wire: Wire) -> None:
    assert wire("GET", f"{P}/aggregated/instances?filter=name eq [")[:2] == (400, "invalid")


def test_firewall_rules_can_deny_and_have_priorities(wire: Wire) -> None:
    administration.add_firewall(wire.state, "no", denied=[{"IPProtocol": "all"}], priority=10, disabled=True)
    administration.remove_firewall(wire.state, "default-allow-ssh")

    rules = {rule["name"]: rule for rule in wire("GET", f"{P}/global/firewalls")["items"]}

    assert (rules["no"]["denied"], rules["no"]["priority"], rules["no"]["disabled"]) == (
        [{"IPProtocol": "all"}],
        10,
        True,
    )
    assert "default-allow-ssh" not in rules
