"""`ComputeClient`: networks, machines in any zone, quotas, and the firewall rule for ssh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cloud.beside import FACES, older, on_face, outcome, scripted
from tests.cloud.scripted_api import Drop, Reply, in_turn
from tests.conftest import Sandbox
from tpuctl.clock import ManualClock
from tpuctl.cloud.projects import ComputeClient
from tpuctl.errors import (
    AccessError,
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    TimedOutError,
)
from tpuctl.models.compute_resources import ComputeInstance, RegionQuota
from tpuctl.sandbox import administration

ZONE = "us-central2-b"
BASE = "https://www.googleapis.com/compute/v1/projects/p"
IAP = "35.235.240.0/20"


@pytest.fixture(params=FACES)
def compute(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[ComputeClient]:
    with on_face(ComputeClient, request.param, sandbox.state) as client:
        yield client


def test_networks_machines_and_quotas_of_a_project_are_read(compute: ComputeClient, sandbox: Sandbox) -> None:
    sandbox_state = sandbox.state
    administration.add_subnetwork(sandbox_state, "default", region="us-central2", privateIpGoogleAccess=True)
    administration.add_disk(sandbox_state, "scratch", zone=ZONE)
    administration.set_region_quota(sandbox_state, "us-central2", "IN_USE_ADDRESSES", limit=8)

    network, subnetwork = compute.network("sandbox", "default"), compute.subnetwork("sandbox", "us-central2", "default")
    assert (network.name, network.is_auto, network.is_legacy) == ("default", True, False)
    assert (subnetwork.region, subnetwork.network, subnetwork.private_google_access) == ("us-central2", "default", True)
    assert compute.disk("sandbox", ZONE, "scratch").kind == "pd-balanced"
    assert compute.region_quotas("sandbox", "us-central2")["IN_USE_ADDRESSES"].limit == 8
    assert outcome(lambda: compute.network("sandbox", "none")) == ("NotFoundError", None)
    assert outcome(lambda: compute.subnetwork("sandbox", "us-central2", "none")) == ("NotFoundError", None)
    assert outcome(lambda: compute.disk("sandbox", ZONE, "none")) == ("NotFoundError", None)


def test_machine_is_found_in_any_zone(compute: ComputeClient, sandbox: Sandbox) -> None:
    administration.add_instance(sandbox.state, "vm", zone="europe-west4-a")
    administration.add_instance(sandbox.state, "other", zone="europe-west4-a")
    assert compute.find_machine("sandbox", "vm").zone == "europe-west4-a"
    with pytest.raises(NotFoundError, match="there is no virtual machine `none` in the project `sandbox`"):
        compute.find_machine("sandbox", "none")

    administration.add_instance(sandbox.state, "vm", zone=ZONE)
    with pytest.raises(ConflictError, match=f"more than one .*: in europe-west4-a, {ZONE}"):
        compute.find_machine("sandbox", "vm")
    # As the hint says.
    assert compute.find_machine("sandbox", "vm", zone=ZONE).zone == ZONE
    with pytest.raises(NotFoundError, match="no virtual machine `vm` in us-east1-b of the project `sandbox`"):
        compute.find_machine("sandbox", "vm", zone="us-east1-b")


@pytest.mark.parametrize(
    ("zone", "expected"), [(None, ServiceUnavailableError), ("c", ServiceUnavailableError), ("a", NotFoundError)]
)
def test_machine_is_absent_if_its_zone_has_answered(zone: str | None, expected: type[Exception]) -> None:
    silent = Reply({"items": {"zones/a": EMPTY}, "unreachables": ["projects/p/zones/c"]})
    with scripted(ComputeClient, in_turn(silent)) as (client, _), pytest.raises(expected):
        client.find_machine("p", "vm", zone=zone)


def test_ssh_firewall_rule_is_created_once(compute: ComputeClient) -> None:
    compute.open_firewall("sandbox", "default", "iap-ssh", [IAP], ["22"])

    rule = next(rule for rule in compute.firewalls("sandbox") if rule.name == "iap-ssh")
    assert (rule.network, rule.is_ingress, rule.denies) == ("default", True, False)
    assert (rule.source_ranges, rule.protocols) == ((IAP,), {"tcp": ("22",)})
    with pytest.raises(AlreadyExistsError):
        compute.open_firewall("sandbox", "default", "iap-ssh", [IAP], ["22"])


def found(zone: str) -> dict[str, Any]:
    return {"instances": [{"name": "vm", "zone": f"{BASE}/zones/{zone}", "status": "RUNNING"}]}


EMPTY = {"warning": {"code": "NO_RESULTS_ON_PAGE"}}
MACHINE = ComputeInstance("vm", "b", "RUNNING", None, ())


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([{"items": {"zones/a": EMPTY, "zones/b": found("b")}}], MACHINE),
        ([{"items": {"zones/a": EMPTY}, "nextPageToken": "t"}, {"items": {"zones/b": found("b")}}], MACHINE),
        # One that was found is there, whoever did not answer.
        ([{"items": {"zones/b": found("b")}, "unreachables": ["projects/p/zones/c"]}], MACHINE),
        ([{"items": {"zones/a": EMPTY}, "unreachables": ["projects/p/zones/c"]}], ServiceUnavailableError),
        ([{"items": {"zones/a": EMPTY}}], NotFoundError),
        ([{}], NotFoundError),
        ([{"items": {"zones/a": found("a"), "zones/b": found("b")}}], ConflictError),
        # A filter that is not kept to.
        ([{"items": {"zones/b": {"instances": [{"name": "vm-2", "zone": "b"}]}}}], NotFoundError),
    ],
)
def test_machine_is_searched_on_all_pages_of_all_zones(pages: list[Any], expected: Any) -> None:
    with scripted(ComputeClient, in_turn(*map(Reply, pages))) as (client, server):
        if isinstance(expected, ComputeInstance):
            assert client.find_machine("p", "vm") == expected
        else:
            with pytest.raises(expected):
                client.find_machine("p", "vm")

    assert server.received[0].path == (
        "/compute/v1/projects/p/aggregated/instances?filter=name%3Dvm&returnPartialSuccess=true&maxResults=500"
        "&fields=items,nextPageToken,unreachables"
    )
    assert len(server.received) == len(pages)


def test_region_quotas_missing_with_a_warning_raise_unavailable() -> None:
    warning = {"quotaStatusWarning": {"code": "QUOTA_INFO_UNAVAILABLE", "message": "try later"}}
    quota = {"quotas": [{"metric": "IN_USE_ADDRESSES", "limit": 8.0, "usage": 3.0}]}
    with scripted(ComputeClient, in_turn(Reply(warning), Reply(quota), Reply({}))) as (client, _):
        with pytest.raises(ServiceUnavailableError, match="try later"):
            client.region_quotas("p", "r")
        assert client.region_quotas("p", "r") == {"IN_USE_ADDRESSES": RegionQuota("IN_USE_ADDRESSES", 8, 3)}
        assert client.region_quotas("p", "r") == {}


def test_quotas_with_a_warning_are_returned() -> None:
    quota = {"quotas": [{"metric": "CPUS", "limit": 8.0}], "quotaStatusWarning": {"code": "X"}}
    with scripted(ComputeClient, in_turn(Reply(quota))) as (client, _):
        assert list(client.region_quotas("p", "r")) == ["CPUS"]


def test_firewall_rule_accepts_a_network_named_by_its_path() -> None:
    network = "projects/host/global/networks/n"
    with scripted(ComputeClient, in_turn(Reply(DONE))) as (client, server):
        client.open_firewall("p", network, "iap-ssh", [IAP], ["22"])

    assert server.received[0].body == {**BODY, "network": network}


def test_refused_firewall_rule_names_its_permission() -> None:
    denied = older(403, "forbidden", "no")
    with (
        scripted(ComputeClient, in_turn(denied)) as (client, _),
        pytest.raises(AccessError, match=r"`compute\.firewalls\.create` is not allowed on the firewall rule `iap-ssh`"),
    ):
        client.open_firewall("p", "n", "iap-ssh", [IAP], ["22"])


def test_firewall_rules_of_all_pages_are_returned() -> None:
    first = {"items": [{"name": "a", "network": f"{BASE}/global/networks/n"}], "nextPageToken": "t"}
    with scripted(ComputeClient, in_turn(Reply(first), Reply({"items": [{"name": "b"}]}))) as (client, _):
        assert [(rule.name, rule.network) for rule in client.firewalls("p")] == [("a", "n"), ("b", "")]


RUNNING = {"name": "operation-1", "status": "RUNNING"}
DONE = {**RUNNING, "status": "DONE"}
BODY = {
    "name": "iap-ssh",
    "network": "projects/p/global/networks/n",
    "direction": "INGRESS",
    "sourceRanges": [IAP],
    "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
}


def test_firewall_rule_is_retried_with_the_same_id_and_awaited() -> None:
    clock = ManualClock()
    answers = in_turn(Drop(), Reply(RUNNING), Reply(RUNNING), Reply(DONE))
    with scripted(ComputeClient, answers, clock=clock) as (client, server):
        client.open_firewall("p", "n", "iap-ssh", [IAP], ["22"])

    first, second, *looks = server.received
    assert (first.method, first.body, first.path) == ("POST", BODY, second.path)
    assert first.path.startswith("/compute/v1/projects/p/global/firewalls?requestId=")
    assert {look.line for look in looks} == {"GET /compute/v1/projects/p/global/operations/operation-1"}
    assert len(looks) == 2


def failed(code: int, word: str, message: str) -> dict[str, Any]:
    errors = [{"code": word, "message": message}]
    return {**DONE, "httpErrorStatusCode": code, "error": {"errors": errors}}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Reply(RUNNING), TimedOutError),
        (Reply(failed(403, "PERMISSIONS_ERROR", "Required 'compute.networks.updatePolicy' permission")), AccessError),
        (Reply(failed(503, "INTERNAL_ERROR", "it broke")), ServiceUnavailableError),
        (older(403, "forbidden", "Required 'compute.firewalls.create' permission for 'projects/p'"), AccessError),
        (older(403, "rateLimitExceeded", "Rate Limit Exceeded"), QuotaError),
        (
            older(409, "alreadyExists", "The resource 'projects/p/global/firewalls/x' already exists"),
            AlreadyExistsError,
        ),
    ],
)
def test_firewall_rule_whose_operation_fails_raises(answer: Reply, kind: type[Exception]) -> None:
    with scripted(ComputeClient, in_turn(answer)) as (client, _), pytest.raises(kind) as caught:
        client.open_firewall("p", "n", "iap-ssh", [IAP], ["22"])

    assert type(caught.value) is kind


def test_missing_permission_is_named() -> None:
    answers = in_turn(older(403, "forbidden", "no"))
    with scripted(ComputeClient, answers) as (client, _), pytest.raises(AccessError) as caught:
        client.subnetwork("p", "us-central2", "default")

    assert (caught.value.message, caught.value.hint) == (
        "`compute.subnetworks.get` is not allowed on the subnetwork `default` of us-central2 in the project `p`: no",
        "ask for a role with `compute.subnetworks.get` for your identity (`tpuctl config show`)",
    )
