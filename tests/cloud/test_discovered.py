"""Every request of a check exists in the API's discovery document, and its field mask includes everything that is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import httplib2
import pytest

from tests.cloud.discovered import Found, Known, Sent, load, methods, parse_mask, resource, understand
from tpuctl.clock import ManualClock
from tpuctl.cloud.discovery_documents import find_method
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.requests import ApiClient
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.tpu import TpuClient
from tpuctl.decoding import decoder_of
from tpuctl.models.bucket import AnywhereCache, Bucket, BucketPlacement
from tpuctl.models.compute_resources import (
    ComputeInstance,
    ComputeNetwork,
    FirewallRule,
    PersistentDisk,
    RegionQuota,
    Subnetwork,
)
from tpuctl.models.project import IamPolicy, OrgPolicy, Project, QuotaLimit, Reservation

TPU = "tpu.googleapis.com"
ASKED: list[tuple[type[ApiClient], Callable[[Any], Any], tuple[str, ...]]] = [
    (BucketsClient, lambda c: c.bucket("b"), ("storage.buckets.get",)),
    (BucketsClient, lambda c: c.layout("b"), ("storage.buckets.getStorageLayout",)),
    (BucketsClient, lambda c: c.policy("b"), ("storage.buckets.getIamPolicy",)),
    (BucketsClient, lambda c: c.test_permissions("b", ["x", "y"]), ("storage.buckets.testIamPermissions",)),
    (BucketsClient, lambda c: c.contents("b", "d/"), ("storage.objects.list",)),
    (BucketsClient, lambda c: c.caches("b"), ("storage.anywhereCaches.list",) * 2),
    (BucketsClient, lambda c: c.grant("b", "r", "m"), ("storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy")),
    (ProjectsClient, lambda c: c.project("d.example:p"), ("cloudresourcemanager.projects.get",)),
    (ProjectsClient, lambda c: c.policy("p"), ("cloudresourcemanager.projects.getIamPolicy",)),
    (ProjectsClient, lambda c: c.services("p", [TPU, "x"]), ("serviceusage.services.batchGet",)),
    (ProjectsClient, lambda c: c.services("p", list(map(str, range(31)))), ("serviceusage.services.list",) * 2),
    (ProjectsClient, lambda c: c.enable("p", TPU), ("serviceusage.services.enable",)),
    (ProjectsClient, lambda c: c.quotas("p", TPU), ("serviceusage.services.consumerQuotaMetrics.list",) * 2),
    (ProjectsClient, lambda c: c.billing("p"), ("cloudbilling.projects.getBillingInfo",)),
    (ProjectsClient, lambda c: c.org_policy("p", "a.b"), ("orgpolicy.projects.policies.getEffectivePolicy",)),
    (ProjectsClient, lambda c: c.role("roles/a.b"), ("iam.roles.get",)),
    (ProjectsClient, lambda c: c.role("projects/p/roles/r"), ("iam.projects.roles.get",)),
    (ComputeClient, lambda c: c.project_metadata("p"), ("compute.projects.get",)),
    (ComputeClient, lambda c: c.network("p", "n"), ("compute.networks.get",)),
    (ComputeClient, lambda c: c.subnetwork("p", "us-east1", "n"), ("compute.subnetworks.get",)),
    (ComputeClient, lambda c: c.firewalls("p"), ("compute.firewalls.list",) * 2),
    (ComputeClient, lambda c: c.region_quotas("p", "us-east1"), ("compute.regions.get",)),
    (ComputeClient, lambda c: c.disk("p", "us-east1-a", "n"), ("compute.disks.get",)),
    (
        ComputeClient,
        lambda c: c.open_firewall("p", "default", "f", ["10.0.0.0/8"], ["22"]),
        ("compute.firewalls.insert",),
    ),
    (TpuClient, lambda c: c.locations("p"), ("tpu.projects.locations.list",) * 2),
    (TpuClient, lambda c: c.accelerator_types("p", "z"), ("tpu.projects.locations.acceleratorTypes.list",) * 2),
    (TpuClient, lambda c: c.runtime_versions("p", "z"), ("tpu.projects.locations.runtimeVersions.list",) * 2),
    (TpuClient, lambda c: c.offers("p"), ("tpu.projects.locations.acceleratorTypes.list",) * 2),
    (TpuClient, lambda c: c.reservations("p", "z"), ("tpu.projects.locations.reservations.list",) * 2),
    (TpuClient, lambda c: c.list_nodes("p"), ("tpu.projects.locations.nodes.list",) * 2),
    (TpuClient, lambda c: c.list_queued_resources("p"), ("tpu.projects.locations.queuedResources.list",) * 2),
]  # fmt: skip


class _Service:
    """An http object that answers like the discovery documents, with the requested fields or with all fields."""

    def __init__(self, *, whole: bool) -> None:
        self.whole = whole
        self.found: list[Found] = []

    def request(self, uri: str, method: str = "GET", body: str | None = None, **_: Any) -> tuple[Any, bytes]:
        found = understand(Sent(method, uri, json.loads(body) if body else None))
        self.found.append(found)
        answer = found.answer(whole=self.whole, is_last="pageToken" in uri)
        return httplib2.Response({"status": "200"}), json.dumps(answer).encode()


def _asked(kind: type[ApiClient], ask: Callable[[Any], Any], *, whole: bool) -> tuple[Any, _Service]:
    service = _Service(whole=whole)
    return ask(kind(lambda: service, ManualClock(), random=Random(1))), service  # noqa: S311  # the same in each run


@pytest.mark.parametrize(("kind", "ask", "methods"), ASKED)
def test_requests_are_methods_of_the_discovery_documents(
    kind: type[ApiClient], ask: Callable[[Any], Any], methods: tuple[str, ...]
) -> None:
    """Method, path, each parameter, each field of a mask and of a body."""
    _, service = _asked(kind, ask, whole=False)

    assert [(found.id, found.complaints) for found in service.found] == [(method, ()) for method in methods]


@pytest.mark.parametrize(("kind", "ask", "methods"), ASKED)
def test_field_mask_includes_every_field_that_is_read(
    kind: type[ApiClient], ask: Callable[[Any], Any], methods: tuple[str, ...]
) -> None:
    del methods
    assert _asked(kind, ask, whole=False)[0] == _asked(kind, ask, whole=True)[0]


def test_requests_are_built_from_the_parsed_methods_of_the_documents() -> None:
    """`requests` reads one method out of the text of a document. Each method must be as the parsed document has it."""
    for document in ("tpu.v2", "storage.v1", "serviceusage.v1beta1"):
        whole = load(*document.split(".", 1))
        for method in methods(whole):
            short = method["id"].partition(".")[2]
            assert find_method(f"{document} {short}") == (method["httpMethod"], whole["servicePath"] + method["path"])


def test_machine_is_found_in_a_masked_answer() -> None:
    for whole in (False, True):
        machine, service = _asked(ComputeClient, _found, whole=whole)
        assert [(found.id, found.complaints) for found in service.found] == [
            ("compute.instances.aggregatedList", ())
        ] * 2
        assert machine == "there is more than one virtual machine `n` in the project `p`: in some zone, some zone"


def _found(client: ComputeClient) -> str:
    with pytest.raises(Exception, match="more than one") as raised:
        client.find_machine("p", "n")
    return str(raised.value)


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (Sent("GET", "https://storage.googleapis.com/storage/v1/b/b?userproject=p"), "no parameter userproject"),
        (Sent("GET", "https://storage.googleapis.com/storage/v1/b/b?projection=all"), "projection has no value all"),
        (
            Sent("GET", "https://storage.googleapis.com/storage/v1/b/b?fields=name,billing(payer)"),
            "the answer has no field payer",
        ),
        (
            Sent("POST", "https://cloudresourcemanager.googleapis.com/v3/projects/p:getIamPolicy", {"version": 3}),
            "the body has no field version",
        ),
    ],
)
def test_unknown_request_is_detected(sent: Sent, complaint: str) -> None:
    assert understand(sent).complaints == (complaint,)


@pytest.mark.parametrize(
    "url",
    [
        "https://orgpolicy.googleapis.com/v2/projects/p/policies/a/b:getEffectivePolicy",
        "https://tpu.googleapis.com/v2/projects/p/locations/z/reservations",
        "https://compute.googleapis.com/compute/v1/projects/p/aggregated/networks",
    ],
)
def test_unknown_path_is_detected(url: str) -> None:
    with pytest.raises(LookupError):
        understand(Sent("GET", url))


@pytest.mark.parametrize(
    ("read", "schema"),
    [
        (decoder_of(Bucket), ("storage", "v1", "Bucket")),
        (decoder_of(BucketPlacement), ("storage", "v1", "BucketStorageLayout")),
        (decoder_of(AnywhereCache), ("storage", "v1", "AnywhereCache")),
        (decoder_of(IamPolicy), ("storage", "v1", "Policy")),
        (decoder_of(IamPolicy), ("cloudresourcemanager", "v3", "Policy")),
        (decoder_of(Project), ("cloudresourcemanager", "v3", "Project")),
        (decoder_of(OrgPolicy), ("orgpolicy", "v2", "GoogleCloudOrgpolicyV2Policy")),
        (QuotaLimit.all_from_api, ("serviceusage", "v1beta1", "ConsumerQuotaMetric")),
        (decoder_of(ComputeNetwork), ("compute", "v1", "Network")),
        (decoder_of(Subnetwork), ("compute", "v1", "Subnetwork")),
        (decoder_of(FirewallRule), ("compute", "v1", "Firewall")),
        (decoder_of(RegionQuota), ("compute", "v1", "Quota")),
        (decoder_of(ComputeInstance), ("compute", "v1", "Instance")),
        (decoder_of(PersistentDisk), ("compute", "v1", "Disk")),
        (decoder_of(Reservation), ("tpu", "v2alpha1", "Reservation")),
    ],
)
def test_model_reads_only_fields_of_the_discovery_document(
    read: Callable[[Any], Any], schema: tuple[str, str, str]
) -> None:
    assert read(resource(*schema))


def test_unknown_field_is_detected() -> None:
    with pytest.raises(LookupError, match="no field wanted"):
        Known({"there": 1}).get("wanted")


def test_field_mask_is_parsed() -> None:
    assert parse_mask("items(name,a/b),nextPageToken") == {"items": {"name": {}, "a": {"b": {}}}, "nextPageToken": {}}
