"""Policies, buckets and node facts for the tests of access."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tpuctl.check.facts import BucketFacts, BucketUse, CheckFacts, Fact, Known, WantedNode
from tpuctl.decoding import decoder_of
from tpuctl.models.bucket import Bucket
from tpuctl.models.project import IamPolicy, Project
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCOUNT = "1-compute@developer.gserviceaccount.com"
MEMBER = f"serviceAccount:{ACCOUNT}"
NAMED = "trainer@p.iam.gserviceaccount.com"
EDITORS = {
    "roles/storage.legacyBucketOwner": ["projectEditor:p"],
    "roles/storage.legacyObjectOwner": ["projectEditor:p"],
}


def policy(bindings: Mapping[str, list[str]]) -> Known[IamPolicy]:
    return Known(
        decoder_of(IamPolicy)({"bindings": [{"role": role, "members": each} for role, each in bindings.items()]})
    )


def bucket(name: str, found: Fact[IamPolicy] | None, **fields: Any) -> BucketFacts:
    """Return a bucket of the node's own project, with uniform access, that is read and written."""
    about = {
        "name": name,
        "projectNumber": fields.pop("project", "1"),
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
        "billing": {"requesterPays": fields.pop("requester_pays", False)},
    }
    given: dict[str, Any] = {"use": BucketUse(name), "bucket": Known(decoder_of(Bucket)(about)), "policy": found}
    return BucketFacts(**(given | fields))


def facts(
    *buckets: BucketFacts, spec: Mapping[str, Any] | None = None, project: Fact[Project] | None = None, **fields: Any
) -> CheckFacts:
    """Return the facts about a new node in project p, number 1, whose policy is empty."""
    wanted = WantedNode(
        project="p",
        zone="us-central2-b",
        name=NodeName("p", "us-central2-b", "trainer"),
        spec=NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base", **(spec or {})),
        **{key: fields.pop(key) for key in ("purpose", "creates", "node", "billing_project") if key in fields},
    )
    given: dict[str, Any] = {"project": project or Known(Project("p", "1", "ACTIVE")), "project_policy": policy({})}
    return CheckFacts(now=datetime(2026, 1, 1, tzinfo=UTC), wanted=wanted, buckets=buckets, **(given | fields))
