"""Compute Engine in the sandbox: a project's metadata, zones and their quotas, networks, disks and machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration

if TYPE_CHECKING:
    from tpuctl.sandbox.state import SandboxState

P = "/compute/v1/projects/sandbox"
LINK = "https://www.googleapis.com/compute/v1/projects/sandbox"


@pytest.fixture
def wire(sandbox_state: SandboxState) -> Wire:
    return Wire(sandbox_state)


def _not_found(path: str) -> tuple[int, str, str]:
    return 404, "notFound", f"The resource 'projects/sandbox/{path}' was not found"


def test_set_metadata_with_an_old_fingerprint_is_rejected(wire: Wire) -> None:
    before = wire("GET", P)["commonInstanceMetadata"]
    wanted = {"fingerprint": before["fingerprint"], "items": [{"key": "ssh-keys", "value": "me:ssh-rsa A"}]}

    operation = wire("POST", f"{P}/setCommonInstanceMetadata", wanted)

    assert (operation["status"], operation["operationType"], operation["targetLink"]) == (
        "DONE",
        "compute.projects.setCommonInstanceMetadata",
        LINK,
    )
    own = operation["selfLink"].removeprefix("https://www.googleapis.com")
    assert wire("GET", own) == wire("POST", f"{own}/wait") == operation
    assert wire("GET", "/compute/alpha/projects/sandbox")["commonInstanceMetadata"]["items"] == wanted["items"]
    refused = wire.send("POST", f"{P}/setCommonInstanceMetadata", wanted)
    message = "Supplied fingerprint does not match current metadata fingerprint."
    errors = [{"message": message, "domain": "global", "reason": "conditionNotMet"}]
    assert (refused.status, json.loads(refused.body)) == (
        412,
        {"error": {"code": 412, "message": message, "errors": errors}},
    )


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("global/operations/operation-1", _not_found("global/operations/operation-1")),
        ("zones/us-central2-b/operations/o", _not_found("zones/us-central2-b/operations/o")),
        ("regions/us-central2/operations/o", _not_found("regions/us-central2/operations/o")),
        ("zones/mars-a", _not_found("zones/mars-a")),
        ("regions/mars", _not_found("regions/mars")),
        ("global/networks/none", _not_found("global/networks/none")),
        ("global/firewalls/none", _not_found("global/firewalls/none")),
        ("regions/us-east1/subnetworks/none", _not_found("regions/us-east1/subnetworks/none")),
        ("zones/us-central2-b/disks/none", _not_found("zones/us-central2-b/disks/none")),
        ("zones/us-central2-b/instances/none", _not_found("zones/us-central2-b/instances/none")),
        ("zones/mars-a/instances/x", (400, "invalid", "Invalid value for field 'zone': 'mars-a'. Unknown zone.")),
        ("regions/mars/subnetworks", (400, "invalid", "Invalid value for field 'region': 'mars'. Unknown region.")),
    ],
)
def test_missing_resource_gives_the_error_of_compute(wire: Wire, path: str, answer: Any) -> None:
    assert wire("GET", f"{P}/{path}") == answer


def test_lists_have_pages_and_accept_gclouds_parameters(wire: Wire) -> None:
    seen, token = [], ""
    while True:
        page = wire("GET", f"{P}/zones?maxResults=20&returnPartialSuccess=true&filter=x&pageToken={token}")
        seen += [zone["name"] for zone in page["items"]]
        token = page.get("nextPageToken", "")
        if not token:
            break

    whole = [zone["name"] for zone in wire("GET", f"{P}/zones")["items"]]
    assert (seen, "us-central2-b" in seen, "us-east1-b" in seen) == (whole, True, True)
    assert wire("GET", f"{P}/zones?pageToken=x")[0] == 400
    assert wire("GET", f"{P}/zones/us-central2-b")["region"] == f"{LINK}/regions/us-central2"


def test_region_quotas_count_the_addresses_of_workers(wire: Wire) -> None:
    administration.add_node(wire.state, "slice", acceleratorType="v4-32")
    administration.add_node(wire.state, "stopped", state="STOPPED")
    administration.add_node(wire.state, "inside", networkConfig={"enableExternalIps": False})
    administration.set_region_quota(wire.state, "us-central2", "IN_USE_ADDRESSES", limit=8)
    administration.set_region_quota(wire.state, "us-central2", "CPUS", limit=24, usage=20)

    region = wire("GET", f"{P}/regions/us-central2")

    quotas = {quota["metric"]: (quota["usage"], quota["limit"]) for quota in region["quotas"]}
    assert (quotas["IN_USE_ADDRESSES"], quotas["CPUS"]) == ((4.0, 8.0), (20.0, 24.0))
    listed = {entry["name"]: entry for entry in wire("GET", f"{P}/regions")["items"]}
    assert listed["us-central2"] == region


def test_project_has_the_default_network_with_its_subnetworks(wire: Wire) -> None:
    network = wire("GET", f"{P}/global/networks/default")
    assert wire("GET", f"{P}/global/networks")["items"] == [network]
    assert f"{LINK}/regions/us-central2/subnetworks/default" in network["subnetworks"]

    administration.add_subnetwork(wire.state, "default", region="us-central2", privateIpGoogleAccess=True)
    administration.add_network(wire.state, "own", autoCreateSubnetworks=False)
    administration.add_subnetwork(wire.state, "part", region="us-east1", network="own", ipCidrRange="10.0.0.0/24")

    changed = wire("GET", f"{P}/regions/us-central2/subnetworks/default")
    assert (changed["privateIpGoogleAccess"], changed["network"]) == (True, f"{LINK}/global/networks/default")
    assert wire("GET", f"{P}/global/networks/own")["subnetworks"] == [f"{LINK}/regions/us-east1/subnetworks/part"]
    names = [subnetwork["name"] for subnetwork in wire("GET", f"{P}/regions/us-east1/subnetworks")["items"]]
    assert names == ["default", "part"]
    items = wire("GET", f"{P}/aggregated/subnetworks")["items"]
    assert [entry["name"] for entry in items["regions/us-east1"]["subnetworks"]] == names
    page = wire("GET", f"{P}/aggregated/subnetworks?maxResults=1")
    empty = [scope for scope, part in page["items"].items() if part.get("warning", {}).get("code")]
    assert (len(empty), bool(page["nextPageToken"])) == (len(items) - 1, True)


def test_create_node_in_an_existing_network_succeeds(wire: Wire) -> None:
    nodes = "/v2/projects/sandbox/locations/us-central2-b/nodes?nodeId=n"
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "networkConfig": {"network": "own"}}

    assert wire("POST", nodes, body)[:2] == (400, "INVALID_ARGUMENT")
    administration.add_network(wire.state, "own")
    assert wire("POST", nodes, body)["done"] is False


@pytest.mark.parametrize(
    ("block", "is_accepted"),
    [
        pytest.param("10.240.1.0/29", True, id="of eight addresses"),
        pytest.param("10.240.1.0/28", False, id="larger"),
        pytest.param("10.240.1.1/29", False, id="begins within the block"),
        pytest.param("10.240.1.0", False, id="an address"),
        pytest.param("x", False, id="another text"),
    ],
)
def test_node_accepts_only_the_block_that_the_api_documents(wire: Wire, block: str, is_accepted: bool) -> None:
    nodes = "/v2/projects/sandbox/locations/us-central2-b/nodes"
    body = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base", "cidrBlock": block}

    answer = wire("POST", f"{nodes}?nodeId=n", body)

    if is_accepted:
        assert wire("GET", f"{nodes}/n")["cidrBlock"] == block
    else:
        assert isinstance(answer, tuple)
        assert answer[:2] == (400, "INVALID_ARGUMENT")


def test_firewall_rules_are_added_and_removed_default_ones_too(wire: Wire) -> None:
    rules = f"{P}/global/firewalls"
    rule = {"name": "allow-x", "allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]}

    assert wire("POST", rules, rule)["operationType"] == "insert"
    assert wire("POST", rules, rule) == (
        409,
        "alreadyExists",
        "The resource 'projects/sandbox/global/firewalls/allow-x' already exists",
    )
    assert wire("POST", rules, {"name": "No"})[1] == "invalid"
    assert wire("POST", rules, {"name": "no", "network": "none"})[2] == (
        f"Invalid value for field 'resource.network': '{LINK}/global/networks/none'. "
        "The referenced network resource cannot be found."
    )
    administration.remove_firewall(wire.state, "default-allow-ssh")
    assert wire("GET", f"{rules}/default-allow-ssh")[0] == 404
    listed = [(entry["name"], entry["sourceRanges"], entry["network"]) for entry in wire("GET", rules)["items"]]
    network = f"{LINK}/global/networks/default"
    assert listed == [
        ("allow-x", ["0.0.0.0/0"], network),
        ("default-allow-icmp", ["0.0.0.0/0"], network),
        ("default-allow-internal", ["10.128.0.0/9"], network),
        ("default-allow-rdp", ["0.0.0.0/0"], network),
    ]


def test_disks_and_machines_are_those_added(wire: Wire) -> None:
    zone = f"{P}/zones/us-central2-b"
    disk = administration.add_disk(wire.state, "data", users=[f"{LINK}/zones/us-central2-b/instances/vm"])
    machine = administration.add_instance(wire.state, "vm", status="TERMINATED", machineType="n2-standard-8")

    assert [wire("GET", f"{zone}/disks/data")] == wire("GET", f"{zone}/disks")["items"] == [disk]
    assert [wire("GET", f"{zone}/instances/vm")] == wire("GET", f"{zone}/instances")["items"] == [machine]
    account = f"{administration.project_number('sandbox')}-compute@developer.gserviceaccount.com"
    assert (machine["status"], machine["serviceAccounts"][0]["email"], machine["machineType"].rpartition("/")[2]) == (
        "TERMINATED",
        account,
        "n2-standard-8",
    )
    for kind, entry in (("disks", disk), ("instances", machine)):
        assert wire("GET", f"{P}/aggregated/{kind}")["items"]["zones/us-central2-b"] == {kind: [entry]}
    assert "items" not in wire("GET", f"{P}/zones/us-east1-b/disks")
