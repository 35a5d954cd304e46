"""gcloud and what `tpuctl check` looks at: it reads the same of a bucket, and the commands that mend things mend them."""

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


def of_gcloud(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return what gcloud says of a bucket."""
    retention, deletion = shown.get("retention_policy", {}), shown["soft_delete_policy"]
    return {
        "location": (shown["location"], shown["location_type"], shown.get("data_locations")),
        "class": shown["default_storage_class"],
        "retention": (retention.get("retentionPeriod"), retention.get("isLocked")),
        "soft delete": deletion["retentionDurationSeconds"],
        "versioning": shown.get("versioning_enabled"),
        "uniform": shown["uniform_bucket_level_access"],
    }


def of_world(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the sandbox's world says of it."""
    retention, deletion = kept.get("retentionPolicy", {}), kept["softDeletePolicy"]
    placed = kept.get("customPlacementConfig", {}).get("dataLocations")
    return {
        "location": (kept["location"], kept["locationType"], placed),
        "class": kept["storageClass"],
        "retention": (retention.get("retentionPeriod"), retention.get("isLocked")),
        "soft delete": deletion["retentionDurationSeconds"],
        "versioning": kept.get("versioning", {}).get("enabled"),
        "uniform": kept["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"],
    }


def _written(binding: Mapping[str, Any]) -> str:
    return json.dumps(binding, sort_keys=True)


@pytest.mark.parametrize("name", BUCKETS)
def test_gcloud_describes_a_bucket_as_the_world_has_it(service: Service, name: str) -> None:
    kept = administration.add_bucket(service.state, name, **BUCKETS[name])

    answer = service.any_gcloud("storage", "buckets", "describe", f"gs://{name}", "--format=json")

    assert (answer.err, of_gcloud(json.loads(answer.out))) == ("", of_world(kept))


def test_what_mends_a_bucket_and_a_service(service: Service) -> None:
    wire = Wire(service.state)
    owner: dict[str, Any] = {"role": "roles/storage.admin", "members": ["user:owner@example.com"]}
    soon: dict[str, Any] = {
        "role": "roles/storage.objectAdmin",
        "members": [ACCOUNT],
        "condition": {"title": "t", "expression": "true"},
    }
    administration.add_bucket(
        service.state, "mended", versioning={"enabled": True}, retentionPolicy={"retentionPeriod": MONTH}
    )
    administration.set_iam_policy(service.state, [owner, soon], bucket="mended")
    administration.set_services(service.state, {"tpu.googleapis.com": "DISABLED"})

    # With a condition in the policy gcloud insists on being told that the new binding has none.
    grant = ("--role=roles/storage.objectAdmin", f"--member={ACCOUNT}", "--condition=None", "--format=json")
    granted = service.any_gcloud("storage", "buckets", "add-iam-policy-binding", "gs://mended", *grant)
    flags = ("--clear-retention-period", "--no-versioning", "--clear-soft-delete")
    updated = service.any_gcloud("storage", "buckets", "update", "gs://mended", *flags)
    enabled = service.any_gcloud("services", "enable", "tpu.googleapis.com")

    assert (granted.code, updated.code, enabled.code) == (0, 0, 0)
    added: dict[str, Any] = {"role": "roles/storage.objectAdmin", "members": [ACCOUNT]}
    policy = wire("GET", "/storage/v1/b/mended/iam?optionsRequestedPolicyVersion=3")
    assert sorted(policy["bindings"], key=_written) == sorted([owner, soon, added], key=_written)
    assert json.loads(granted.out)["bindings"] == policy["bindings"]
    assert of_world(wire("GET", "/storage/v1/b/mended")) == of_world({
        **administration.add_bucket(service.state, "plain"),
        "versioning": {"enabled": False},
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
    })  # fmt: skip
    assert wire("GET", f"/v1/projects/{PROJECT}/services/tpu.googleapis.com")["state"] == "ENABLED"


def test_what_mends_the_class_of_objects(service: Service) -> None:
    """What has the class already is only patched, what has another is written anew."""
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


def test_what_mends_a_network(service: Service) -> None:
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
    (made,) = wire("GET", f"{P}/global/firewalls")["items"]
    assert (made["network"].rpartition("/")[2], made["sourceRanges"], made["allowed"]) == (
        "default",
        [IAP],
        [{"IPProtocol": "tcp", "ports": ["22"]}],
    )
    assert wire("GET", f"{P}/global/networks/default")["autoCreateSubnetworks"] is True
    assert wire("GET", SUBNETWORK)["privateIpGoogleAccess"] is True


def test_gcloud_says_what_a_policy_comes_to(service: Service) -> None:
    administration.set_org_policy(service.state, "compute.vmExternalIpAccess", {"rules": [{"denyAll": True}]})

    shown = service.any_gcloud("org-policies", "describe", "compute.vmExternalIpAccess", "--effective", "--format=json")

    path = f"/v2/projects/{PROJECT}/policies/compute.vmExternalIpAccess:getEffectivePolicy"
    assert (json.loads(shown.out), shown.err) == (Wire(service.state)("GET", path), "")


def test_gcloud_says_what_nobody_has_set(service: Service) -> None:
    """A constraint that restricts by default."""
    constraint = "iam.disableCrossProjectServiceAccountUsage"

    shown = service.any_gcloud("org-policies", "describe", constraint, "--effective", "--format=json")

    assert (json.loads(shown.out)["spec"], shown.err) == ({"rules": [{"enforce": True}]}, "")
