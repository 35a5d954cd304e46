"""IAM policies of buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import iam, projects
from tpuctl.sandbox.storage import refusals
from tpuctl.sandbox.storage.buckets import KIND, opened

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session


def get_iam_policy(session: Session, call: Call) -> Json:
    """Answer buckets.getIamPolicy."""
    bucket = opened(session, call, "storage.buckets.getIamPolicy")
    name = bucket.document["name"]
    asked = int(call.params.get("optionsRequestedPolicyVersion") or 1)
    return _shown(name, iam.policy(session, KIND, name, default=default_policy(bucket.project), version=asked))


def set_iam_policy(session: Session, call: Call) -> Json:
    """Answer buckets.setIamPolicy: 412 if the etag is not the current one."""
    session.log_request(call.method, str(call.params["bucket"]))
    bucket = opened(session, call, "storage.buckets.setIamPolicy")
    name = bucket.document["name"]
    kept = iam.set_policy(session, KIND, name, call.body, default=default_policy(bucket.project))
    if kept is None:
        raise refusals.condition_not_met()
    return _shown(name, kept)


def test_iam_permissions(session: Session, call: Call) -> Json:
    """Answer buckets.testIamPermissions with the requested permissions that the caller has.

    The call itself needs no permission (documentation of the permissions of each method).
    """
    bucket = opened(session, call, "")
    asked = call.params.get("permissions") or []
    granted = iam.allowed(asked, (*bucket.denied, *projects.denied(session, bucket.project)))
    answer: Json = {"kind": "storage#testIamPermissionsResponse"}
    return {**answer, "permissions": granted} if granted else answer


def default_policy(project: str) -> Json:
    """Return the initial policy of a bucket with uniform access (documentation: the convenience values of basic roles)."""
    owners = [f"projectEditor:{project}", f"projectOwner:{project}"]
    readers = [f"projectViewer:{project}"]
    return {
        "bindings": [
            {"role": "roles/storage.legacyBucketOwner", "members": owners},
            {"role": "roles/storage.legacyBucketReader", "members": readers},
            {"role": "roles/storage.legacyObjectOwner", "members": owners},
            {"role": "roles/storage.legacyObjectReader", "members": readers},
        ]
    }


def _shown(name: str, policy: Json) -> Json:
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{name}", **iam.shown(policy)}
