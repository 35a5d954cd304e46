"""gcloud and the findings of `tpuctl check`: it shows the same buckets, and the suggested commands fix the problems."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.conftest import PROJECT, Service
from tests.sandbox.wire import Wire
from tpuctl.sandbox import administration

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.gcloud

ACCOUNT = f"serviceAccount:{administration.project_number(PROJECT)}-compute@developer.gserviceaccount.com"
IAP = "35.235.240.0/20"
P = f"/compute/v1/projects/{PROJECT}"
SUBNETWORK = f"{P}/regions/us-central2/subnetworks/private"
MONTH = "2592000"  # in seconds
BUCKETS: dict[str, dict[str, Any]] = {
    "regional": {
        "location": "US-CENTRAL2",
        "retentionPolicy": {"retentionPeriod": MONTH, "effectiveTime": "2026-01-01T00:00:00Z", "isLocked": True},
        "versioning": {"enabled": True},
        "storageClass": "ARCHIVE",
    },
    "dual": {"location": "EUR4"},
    "chosen": {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}},
    "multi": {"location": "EU", "softDeletePolicy": {"retentionDurationSeconds": "0"}},
    "zonal": {"location": "US-CENTRAL1-A"},
}


def gcloud_bucket(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compared values of a bucket as gcloud shows it."""
    retention, deletion = described.get("retention_policy", {}), described["soft_delete_policy"]
    return {
        "location": (described["location"], described["location_type"], described.get("data_locations")),
        "class": described["default_storage_class"],
        "retention": (retention.get("retentionPeriod"), retention.get("isLocked")),
        "soft delete": deletion["retentionDurationSeconds"],
        "versioning": described.get("versioning_enabled"),
        "uniform": described["uniform_bucket_level_access"],
    }


def api_bucket(bucket: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same values of a bucket as the API shows it."""
    retention, deletion = bucket.get("retentionPolicy", {}), bucket["softDeletePolicy"]
    placed = bucket.get("customPlacementConfig", {}).get("dataLocations")
    return {
        "location": (bucket["location"], bucket["locationType"], placed),
        "class": bucket["storageClass"],
        "retention": (retention.get("retentionPeriod"), retention.get("isLocked")),
        "soft delete": deletion["retentionDurationSeconds"],
        "versioning": bucket.get("versioning", {}).get("enabled"),
        "uniform": bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"],
    }


def _sort_key(binding: Mapping[str, Any]) -> str:
    return json.dumps(binding, sort_keys=True)


@pytest.mark.parametrize("name", BUCKETS)
def test_bucket_described_by_gcloud_has_the_stored_values(service: Service, name: str) -> None:
    bucket = administration.add_bucket(service.state, name, **BUCKETS[name])

    answer = service.any_gcloud("storage", "buckets", "describe", f"gs://{name}", "--format=json")

    assert (answer.err, gcloud_bucket(json.loads(answer.out))) == ("", api_bucket(bucket))


def test_gcloud_fixes_for_a_bucket_and_a_service_take_effect(service: Service) -> None:
    wire = Wire(service.state)
    owner: dict[str, Any] = {"role": "roles/storage.admin", "members": ["user:owner@example.com"]}
    soon: dict[str, Any] = {
        "role": "roles/storage.objectAdmin",
        "members": [ACCOUNT],
        "condition": {"title": "t", "expression": "true"},
    }
    administration.add_bucket(
        service.state, "fixed", versioning={"enabled": True}, retentionPolicy={"retentionPeriod": MONTH}
    )
    administration.set_iam_policy(service.state, [owner, soon], bucket="fixed")
    administration.set_services(service.state, {"tpu.googleapis.com": "DISABLED"})

    # If the policy has a condition, gcloud requires `--condition=None` for a binding without one.
    grant = ("--role=roles/storage.objectAdmin", f"--member={ACCOUNT}", "--condition=None", "--format=json")
    granted = service.any_gcloud("storage", "buckets", "add-iam-policy-binding", "gs://fixed", *grant)
    flags = ("--clear-retention-period", "--no-versioning", "--clear-soft-delete")
    updated = service.any_gcloud("storage", "buckets", "update", "gs://fixed", *flags)
    enabled = service.any_gcloud("services", "enable", "tpu.googleapis.com")

    assert (granted.code, updated.code, enabled.code) == (0, 0, 0)
    added: dict[str, Any] = {"role": "roles/storage.objectAdmin", "members": [ACCOUNT]}
    policy = wire("GET", "/storage/v1/b/fixed/iam?optionsRequestedPolicyVersion=3")
    assert sorted(policy["bindings"], key=_sort_key) == sorted([owner, soon, added], key=_sort_key)
    assert json.loads(granted.out)["bindings"] == policy["bindings"]
    assert api_bucket(wire("GET", "/storage/v1/b/fixed")) == api_bucket({
        **administration.add_bucket(service.state, "plain"),
        "versioning": {"enabled": False},
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
    })  # fmt: skip
    assert wire("GET", f"/v1/projects/{PROJECT}/services/tpu.googleapis.com")["state"] == "ENABLED"


def test_gcloud_fix_for_the_storage_class_of_objects_takes_effect(service: Service) -> None:
    """gcloud only patches an object that has the class already, and rewrites one with another class."""
    administration.add_bucket(service.state, "cold", location="US-CENTRAL2", storageClass="ARCHIVE")
    administration.add_object(service.state, "cold", "a/frozen", b"1")
    administration.add_object(service.state, "cold", "a/warm", b"2", storageClass="STANDARD")

    answer = service.any_gcloud("storage", "objects", "update", "gs://cold/**", "--storage-class=STANDARD")

    assert answer.code == 0, answer.err
    items = Wire(service.state)("GET", "/storage/v1/b/cold/o")["items"]
    assert [(item["name"], item["storageClass"]) for item in items] == [
        ("a/frozen", "STANDARD"),
        ("a/warm", "STANDARD"),
    ]


def test_gcloud_fixes_for_a_network_take_effect(service: Service) -> None:
    wire = Wire(service.state)
    administration.remove_network(service.state, "default")
    administration.add_network(service.state, "own", autoCreateSubnetworks=False)
    administration.add_subnetwork(
        service.state, "private", region="us-central2", network="own", ipCidrRange="10.9.0.0/20"
    )
    region = ("--region=us-central2", "--enable-private-ip-google-access")
    rule = ("--network=default", "--direction=INGRESS", "--allow=tcp:22", f"--source-ranges={IAP}")

    created = service.any_gcloud("compute", "networks", "create", "default", "--subnet-mode=auto")
    opened = service.any_gcloud("compute", "firewall-rules", "create", "allow-iap", *rule)
    updated = service.any_gcloud("compute", "networks", "subnets", "update", "private", *region)

    assert (created.code, opened.code, updated.code) == (0, 0, 0)
    (firewall,) = wire("GET", f"{P}/global/firewalls")["items"]
    assert (firewall["network"].rpartition("/")[2], firewall["sourceRanges"], firewall["allowed"]) == (
        "default",
        [IAP],
        [{"IPProtocol": "tcp", "ports": ["22"]}],
    )
    assert wire("GET", f"{P}/global/networks/default")["autoCreateSubnetworks"] is True
    assert wire("GET", SUBNETWORK)["privateIpGoogleAccess"] is True


def test_gcloud_describes_the_effective_policy(service: Service) -> None:
    administration.set_org_policy(service.state, "compute.vmExternalIpAccess", {"rules": [{"denyAll": True}]})

    described = service.any_gcloud(
        "org-policies", "describe", "compute.vmExternalIpAccess", "--effective", "--format=json"
    )

    path = f"/v2/projects/{PROJECT}/policies/compute.vmExternalIpAccess:getEffectivePolicy"
    assert (json.loads(described.out), described.err) == (Wire(service.state)("GET", path), "")


def test_gcloud_describes_the_default_of_a_restricting_constraint(service: Service) -> None:
    constraint = "iam.disableCrossProjectServiceAccountUsage"

    described = service.any_gcloud("org-policies", "describe", constraint, "--effective", "--format=json")

    assert (json.loads(described.out)["spec"], described.err) == ({"rules": [{"enforce": True}]}, "")
