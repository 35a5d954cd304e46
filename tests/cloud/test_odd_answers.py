"""Unusual answers to checks: refusals of all formats, missing fields, and unknown values of enums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cloud.beside import older, outcome, scripted
from tests.cloud.scripted_api import Reply, in_turn, refuse
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.requests import ApiClient
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.tpu import TpuClient
from tpuctl.errors import TpuctlError
from tpuctl.models.bucket import BucketContents, BucketPlacement
from tpuctl.models.compute_resources import RegionQuota
from tpuctl.models.project import OrgPolicy, QuotaLimit

TPU = "tpu.googleapis.com"
INFO = "type.googleapis.com/google.rpc.ErrorInfo"
QUESTIONS: dict[str, tuple[type[ApiClient], Callable[[Any], Any], str]] = {
    "bucket": (BucketsClient, lambda c: c.bucket("b"), "storage.buckets.get"),
    "firewalls": (ComputeClient, lambda c: c.firewalls("p"), "compute.firewalls.list"),
    "services": (ProjectsClient, lambda c: c.services("p", [TPU]), "serviceusage.services.get"),
    "constraint": (ProjectsClient, lambda c: c.org_policy("p", "a.b"), "orgpolicy.policy.get"),
}


def info(reason: str) -> dict[str, str]:
    return {"@type": INFO, "reason": reason, "domain": "googleapis.com"}


DISABLED = (
    "Organization Policy API has not been used in project 1 before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/orgpolicy.googleapis.com/overview?project=1 then retry."
)
UNKNOWN_PROJECT = (
    "Project 1 is not found and cannot be used for API calls. If it is recently created, enable Compute Engine API by "
    "visiting https://console.developers.google.com/apis/api/compute.googleapis.com/overview?project=1 then retry."
)
PERIMETER = "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: abc"
VIOLATION = {
    "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
    "violations": [{"type": "VPC_SERVICE_CONTROLS", "description": "abc"}],
}
# As it was observed: googleapis/google-cloud-python#17515.
BEYOND = refuse(403, "PERMISSION_DENIED", PERIMETER, VIOLATION, info("SECURITY_POLICY_VIOLATED"))
NO_SCOPE = refuse(403, "PERMISSION_DENIED", "no", info("ACCESS_TOKEN_SCOPE_INSUFFICIENT"))
PAYER = (
    "ada@example.com does not have serviceusage.services.use access to the Google Cloud project. Permission "
    "'serviceusage.services.use' denied on resource (or it may not exist)."
)
HTML = b"<!DOCTYPE html><html><title>Sign in</title></html>"


def failed(name: str, *replies: Reply) -> tuple[str, str | None, str]:
    """Return class, id and text of the error of a query."""
    kind, ask, _ = QUESTIONS[name]
    with scripted(kind, in_turn(*replies)) as (client, _), pytest.raises(TpuctlError) as raised:
        ask(client)
    return type(raised.value).__name__, raised.value.error_id, str(raised.value)


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize(
    ("reply", "kind", "error_id"),
    [
        (Reply(b""), "ServiceUnavailableError", None),
        (Reply(b"null"), "ServiceUnavailableError", None),
        (Reply(HTML), "ServiceUnavailableError", None),
        (Reply(HTML, 403), "ServiceUnavailableError", None),
        (Reply(HTML, 404), "ServiceUnavailableError", None),
        (Reply(HTML, 502), "ServiceUnavailableError", None),
        (Reply({"error": "denied"}, 404), "ServiceUnavailableError", None),
        (refuse(403, "PERMISSION_DENIED", DISABLED, info("SERVICE_DISABLED")), "AccessError", "api-disabled"),
        (older(403, "accessNotConfigured", f"Access Not Configured. {DISABLED}"), "AccessError", "api-disabled"),
        (BEYOND, "AccessError", "perimeter-violated"),
        (older(403, "forbidden", PERIMETER), "AccessError", "perimeter-violated"),
        (older(403, "accessNotConfigured", UNKNOWN_PROJECT), "AccessError", "api-disabled"),
        (older(403, "accountDisabled", "The billing account is disabled in state absent"), "AccessError", "billing-disabled"),
        (refuse(403, "PERMISSION_DENIED", "no", info("CONSUMER_INVALID")), "AccessError", "iam-project-not-found"),
        (refuse(403, "PERMISSION_DENIED", "no", info("BILLING_DISABLED")), "AccessError", "billing-disabled"),
        (refuse(401, "UNAUTHENTICATED", "no", info("ACCESS_TOKEN_EXPIRED")), "CredentialsError", "auth-grant-expired"),
        (NO_SCOPE, "CredentialsError", "auth-insufficient-scopes"),
        (refuse(429, "RESOURCE_EXHAUSTED", "slow down", info("RATE_LIMIT_EXCEEDED")), "QuotaError", "quota-rate"),
        (older(403, "rateLimitExceeded", "Rate Limit Exceeded"), "QuotaError", "quota-rate-older"),
        (refuse(503, "UNAVAILABLE"), "ServiceUnavailableError", None),
    ],
)  # fmt: skip
def test_failure_raises_its_error_class(name: str, reply: Reply, kind: str, error_id: str | None) -> None:
    """None of these means absent, and none names a permission that would not help."""
    found = failed(name, reply)

    assert (found[:2], QUESTIONS[name][2] in found[2]) == ((kind, error_id), False)


@pytest.mark.parametrize("name", QUESTIONS)
def test_permission_is_named_only_if_it_is_missing(name: str) -> None:
    permission = QUESTIONS[name][2]
    named = refuse(
        403, "PERMISSION_DENIED", f"Permission '{permission}' denied on resource", info("IAM_PERMISSION_DENIED")
    )

    for reply in (older(403, "forbidden", "no"), refuse(403, "PERMISSION_DENIED", "no"), named):
        kind, _, text = failed(name, reply)
        assert (kind, text.startswith(f"`{permission}` is not allowed on the ")) == ("AccessError", True)


def test_permission_named_by_the_api_is_used() -> None:
    assert failed("bucket", older(403, "forbidden", PAYER)) == (
        "AccessError",
        "iam-permission-denied",
        f"`serviceusage.services.use` is not allowed on the bucket `gs://b`: {PAYER}",
    )


@pytest.mark.parametrize(
    ("kind", "ask", "answers", "result"),
    [
        # Pages: a token on a page without items, items only on the last.
        (BucketsClient, lambda c: c.caches("b"), [{"nextPageToken": "t"}, {}], ()),
        (ComputeClient, lambda c: c.firewalls("p"), [{"nextPageToken": "t"}, {"kind": "x", "nextPageToken": ""}], ()),
        (ProjectsClient, lambda c: c.quotas("p", TPU), [{"nextPageToken": "t"}, {}], ()),
        (
            TpuClient,
            lambda c: c.accelerator_types("p", "z"),
            [{"nextPageToken": "t"}, {"acceleratorTypes": [{"name": "projects/p/locations/z/acceleratorTypes/v4-8"}]}],
            ("v4-8",),
        ),
        # Nothing in an answer is nothing there, where the API leaves out what is empty.
        (BucketsClient, lambda c: c.contents("b", ""), [{}], BucketContents(0, 0, is_complete=True)),
        (BucketsClient, lambda c: c.test_permissions("b", ["x"]), [{}], frozenset()),
        (BucketsClient, lambda c: c.policy("b").bindings, [{"etag": "CAE="}], ()),
        (ProjectsClient, lambda c: c.billing("p"), [{"name": "projects/p/billingInfo"}], False),
        (ProjectsClient, lambda c: c.services("p", [TPU]), [{}], {TPU: False}),
        (ProjectsClient, lambda c: c.org_policy("p", "a.b"), [{"name": "projects/1/policies/a.b"}], OrgPolicy("a.b")),
        (ComputeClient, lambda c: c.region_quotas("p", "r"), [{}], {}),
        # Numbers as text, as text for some and as numbers for others.
        (
            BucketsClient,
            lambda c: c.contents("b", ""),
            [{"items": [{"name": "a", "size": "5"}, {"name": "b", "size": 6}, {"name": "c"}]}],
            BucketContents(3, 11, is_complete=True),
        ),
        (
            ComputeClient,
            lambda c: c.region_quotas("p", "r"),
            [{"quotas": [{"metric": "NEW_THINGS", "limit": "8", "usage": 1}, {"metric": "NONE"}]}],
            {"NEW_THINGS": RegionQuota("NEW_THINGS", 8.0, 1.0), "NONE": RegionQuota("NONE", 0.0, 0.0)},
        ),
        # Words that this version does not know are kept as they are.
        (
            BucketsClient,
            lambda c: c.layout("b"),
            [{"location": "moon1", "locationType": "Orbit"}],
            BucketPlacement("MOON1", "orbit"),
        ),
        (BucketsClient, lambda c: c.caches("b")[0].is_running, [{"items": [{"zone": "z", "state": "WARMING"}]}], False),
        (
            ProjectsClient,
            lambda c: c.services("p", [TPU]),
            [{"services": [{"name": f"x/{TPU}", "state": "NEW"}]}],
            {TPU: False},
        ),
        (ProjectsClient, lambda c: c.project("p").state, [{"name": "projects/1", "projectId": "p", "state": "NEW"}], "NEW"),
    ],
)  # fmt: skip
def test_missing_fields_pages_numbers_and_new_enum_values_are_accepted(
    kind: type[ApiClient], ask: Callable[[Any], Any], answers: list[Any], result: Any
) -> None:
    with scripted(kind, in_turn(*map(Reply, answers))) as (client, server):
        assert ask(client) == result

    assert len(server.received) == len(answers)
    assert all("pageToken=t" in request.path for request in server.received[1:])


def test_quotas_are_parsed_in_the_formats_of_the_service() -> None:
    """One metric has two limits. A limit of 0 is left out; so are locations without their own limit."""
    metric = f"{TPU}/tpu-v5s-litepod-preemptible"
    in_zone, in_region = "1/{project}/{zone}", "1/{project}/{region}"
    zones = [{"effectiveLimit": "1536"}, {"dimensions": {"zone": "us-west4-a"}}]
    regions = [{"effectiveLimit": "-1", "dimensions": {"region": "us-west4"}}]
    limits = [
        {"metric": metric, "unit": in_zone, "supportedLocations": ["us-west4-a"], "quotaBuckets": zones},
        {"unit": in_region, "quotaBuckets": regions},
        {"unit": "1/min/{project}/{user}"},
    ]
    answer = Reply({"metrics": [{"metric": metric, "consumerQuotaLimits": limits}, {"metric": f"{TPU}/queued"}]})
    with scripted(ProjectsClient, in_turn(answer)) as (client, _):
        assert client.quotas("p", TPU) == (
            QuotaLimit(metric, "", in_zone, 1536),
            QuotaLimit(metric, "", in_zone, 0, {"zone": "us-west4-a"}),
            QuotaLimit(metric, "", in_region, None, {"region": "us-west4"}),
        )


@pytest.mark.parametrize(
    ("kind", "ask", "answer"),
    [
        (BucketsClient, lambda c: c.contents("b", ""), {"items": [{"size": "1"}]}),
        (BucketsClient, lambda c: c.contents("b", ""), {"items": [{"name": "a", "size": "many"}]}),
        (BucketsClient, lambda c: c.bucket("b"), {"kind": "storage#bucket"}),
        (BucketsClient, lambda c: c.policy("b"), {"bindings": {"role": "r"}}),
        (ProjectsClient, lambda c: c.project("p"), {"name": "projects/1"}),
        (ProjectsClient, lambda c: c.quotas("p", TPU), {"metrics": [{"consumerQuotaLimits": [{"quotaBuckets": "x"}]}]}),
        (ComputeClient, lambda c: c.firewalls("p"), {"items": ["ssh"]}),
        (ComputeClient, lambda c: c.firewalls("p"), {"items": [], "nextPageToken": "again"}),
    ],
)  # fmt: skip
def test_unreadable_value_is_unknown_instead_of_empty(
    kind: type[ApiClient], ask: Callable[[Any], Any], answer: Any
) -> None:
    with scripted(kind, in_turn(Reply(answer))) as (client, _):
        assert outcome(lambda: ask(client)) == ("ServiceUnavailableError", None)
