"""Facts about one bucket, and the results of the rules for them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tpuctl.check.facts import BucketFacts, BucketUse, CheckFacts, Fact, Known, Unknown, WantedNode
from tpuctl.check.findings import RuleResult
from tpuctl.check.rules.bucket_rules import BUCKET_RULES
from tpuctl.decoding import decoder_of
from tpuctl.models.bucket import Bucket
from tpuctl.models.project import Project
from tpuctl.models.spec import NodeSpec

NOW = datetime(2026, 6, 1, tzinfo=UTC)
RULES = {rule.id: rule for rule in BUCKET_RULES}
USE = BucketUse("b")
READ = BucketUse("b", writes=False)
WRITE = BucketUse("b", reads=False)
DENIED = Unknown("the caller may not", permission="storage.buckets.get")
PAYS: dict[str, Any] = {"billing": {"requesterPays": True}}
LATE = Unknown("no answer within 15s", is_passing=True)


def a_bucket(location: str = "US-CENTRAL2", kind: str = "region", **fields: Any) -> Bucket:
    """Return a bucket by the fields of the API; fields that are None are omitted, as in the API."""
    body = {
        "name": "b",
        "location": location,
        "locationType": kind,
        "projectNumber": "42",
        "storageClass": "STANDARD",
        **fields,
    }
    return decoder_of(Bucket)({name: value for name, value in body.items() if value is not None})


def facts_of(
    bucket: Fact[Bucket] | Bucket,
    use: BucketUse = USE,
    *,
    zone: str = "us-central2-b",
    type_: str = "v4-8",
    project: Fact[Project] | None = None,
    offers: Any = None,
    wanted: dict[str, Any] | None = None,
    **about: Any,
) -> CheckFacts:
    fact = Known(bucket) if isinstance(bucket, Bucket) else bucket
    return CheckFacts(
        now=NOW,
        wanted=WantedNode(
            project="p",
            zone=zone,
            spec=NodeSpec(accelerator_type=type_, runtime_version="v", named=frozenset({"accelerator_type"})),
            **{"buckets": (use,), **(wanted or {})},
        ),
        project=project or Known(Project("p", "42", "ACTIVE")),
        offers=offers,
        buckets=(BucketFacts(use=use, bucket=fact, **about),),
    )


def findings_of(id_: str, facts: CheckFacts) -> list[RuleResult]:
    return list(RULES[id_].judge(facts))


def summaries_of(id_: str, facts: CheckFacts) -> list[tuple[str, str]]:
    return [(str(found.level), found.text) for found in findings_of(id_, facts)]


def commands_of(id_: str, facts: CheckFacts) -> list[str | None]:
    return [remedy.command for found in findings_of(id_, facts) for remedy in found.remedies]
