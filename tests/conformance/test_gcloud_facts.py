"""gcloud and the clients of tpuctl read the same quotas, services, billing, regions, caches and policies of a project."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.conformance.conftest import PROJECT, Service
from tpuctl.clock import ManualClock
from tpuctl.cloud.endpoint import ApiEndpoint, TransportOptions
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.requests import ApiClient
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.transport import HttpFactory
from tpuctl.decoding import decoder_of
from tpuctl.models.bucket import AnywhereCache
from tpuctl.models.compute_resources import RegionQuota
from tpuctl.models.project import IamPolicy, QuotaLimit
from tpuctl.sandbox import administration
from tpuctl.sandbox.administration import set_tpu_quota

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.gcloud

C = TypeVar("C", bound=ApiClient)
TPU, IAP = "tpu.googleapis.com", "iap.googleapis.com"


@contextmanager
def client(kind: type[C], service: Service) -> Iterator[C]:
    factory = HttpFactory(TransportOptions(), endpoint=ApiEndpoint.parse(service.url))
    try:
        yield kind(factory, ManualClock(), endpoint=service.url)
    finally:
        factory.close()


def read_gcloud(service: Service, *words: str) -> Any:
    """Return the JSON output of gcloud."""
    answer = service.any_gcloud(*words, "--format=json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_tpu_quotas_are_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    with service.state.write() as session:
        set_tpu_quota(session, limit=16, generation="v6e", tier="spot", zone="us-east5-b")
        set_tpu_quota(session, limit=0, generation="v6e", tier="spot", region="us-east5")
        set_tpu_quota(session, limit=64, generation="v4")

    listed = read_gcloud(
        service, "alpha", "services", "quota", "list", f"--service={TPU}", f"--consumer=projects/{PROJECT}"
    )

    with client(ProjectsClient, service) as projects:
        found = projects.quotas(PROJECT, TPU)
    assert [limit for metric in listed for limit in QuotaLimit.all_from_api(metric)] == list(found)
    assert {(limit.metric.rpartition("/")[2], limit.value) for limit in found} >= {
        ("tpu-v6e-preemptible", 16),
        ("tpu-v6e-preemptible", 0),
    }


def test_enabled_services_are_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    administration.set_services(service.state, {IAP: "DISABLED", TPU: "ENABLED"})

    listed = read_gcloud(service, "services", "list", "--enabled")

    names = [entry["config"]["name"] for entry in listed]
    with client(ProjectsClient, service) as projects:
        assert projects.services(PROJECT, [*names, IAP]) == {**dict.fromkeys(names, True), IAP: False}
    assert TPU in names


def test_billing_is_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    described = read_gcloud(service, "billing", "projects", "describe", PROJECT)

    with client(ProjectsClient, service) as projects:
        assert (projects.billing(PROJECT), described["billingEnabled"]) == (True, True)


def test_region_quotas_are_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    described = read_gcloud(service, "compute", "regions", "describe", "us-central2")

    with client(ComputeClient, service) as compute:
        found = compute.region_quotas(PROJECT, "us-central2")
    assert list(map(decoder_of(RegionQuota), described["quotas"])) == list(found.values())


def test_bucket_caches_are_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    administration.add_bucket(service.state, "cached", location="US")
    administration.add_cache(service.state, "cached", "us-central1-a")
    administration.add_cache(service.state, "cached", "us-east5-a", state="DISABLED")

    listed = read_gcloud(service, "storage", "buckets", "anywhere-caches", "list", "gs://cached")

    with client(BucketsClient, service) as buckets:
        found = buckets.caches("cached")
    assert found == (AnywhereCache("us-central1-a", "RUNNING"), AnywhereCache("us-east5-a", "DISABLED"))
    assert [(entry["zone"], entry["state"]) for entry in listed] == [(cache.zone, cache.state) for cache in found]


def test_bucket_policy_with_a_condition_is_the_same_in_gcloud_and_tpuctl(service: Service) -> None:
    soon = {"title": "t", "expression": "request.time < timestamp('2027-01-01T00:00:00Z')"}
    binding = {"role": "roles/storage.objectViewer", "members": ["user:ada@example.com"], "condition": soon}
    administration.add_bucket(service.state, "guarded")
    administration.set_iam_policy(service.state, [binding], bucket="guarded")

    described = read_gcloud(service, "storage", "buckets", "get-iam-policy", "gs://guarded")

    with client(BucketsClient, service) as buckets:
        found = buckets.policy("guarded")
    assert decoder_of(IamPolicy)(described).bindings == found.bindings
    assert found.bindings[0].condition == soon["expression"]
