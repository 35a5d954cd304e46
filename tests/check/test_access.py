"""Access to the objects of a bucket, resolved from the policies of the bucket and of projects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tpuctl.check.facts import Absent, Fact, Known, Unknown
from tpuctl.check.iam import (
    BucketPolicies,
    Granted,
    NotGranted,
    PermissionAccess,
    Uncertain,
    resolve_access,
    roles_of_deleted_account,
)
from tpuctl.decoding import decoder_of
from tpuctl.models.project import IamPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCOUNT = "1-compute@developer.gserviceaccount.com"
MEMBER = f"serviceAccount:{ACCOUNT}"
GET = "storage.objects.get"
VIEWER, USER = "roles/storage.objectViewer", "roles/storage.objectUser"
CUSTOM = "projects/p/roles/reader"
DENIED = Unknown("you may not", "resourcemanager.projects.getIamPolicy")
DEFAULT = {
    "roles/storage.legacyBucketOwner": ["projectEditor:p", "projectOwner:p"],
    "roles/storage.legacyBucketReader": ["projectViewer:p"],
    "roles/storage.legacyObjectOwner": ["projectEditor:p", "projectOwner:p"],
    "roles/storage.legacyObjectReader": ["projectViewer:p"],
}


def policy(bindings: Mapping[str, list[str]], condition: str | None = None) -> Known[IamPolicy]:
    extra: dict[str, Any] = {"condition": {"expression": condition}} if condition else {}
    return Known(
        decoder_of(IamPolicy)(
            {"bindings": [{"role": role, "members": each, **extra} for role, each in bindings.items()]}
        )
    )


def access(
    bucket: Fact[IamPolicy],
    project: Fact[IamPolicy] | None = None,
    *,
    roles: Mapping[str, Fact[frozenset[str]]] | None = None,
    account: str = ACCOUNT,
    **about: Any,
) -> dict[str, PermissionAccess]:
    """Resolve access to a bucket of project p, number 1, whose policy is empty unless it is given."""
    found = project or policy({})
    now = datetime(2026, 1, 1, tzinfo=UTC)
    given: dict[str, Any] = {"project": "1", "projects": {"p": found, "1": found}, "roles": roles or {}, "now": now}
    given |= about
    return resolve_access(account, BucketPolicies(bucket=bucket, **given))


def access_text(found: Mapping[str, PermissionAccess]) -> str:
    """Return which permissions are granted, by which role, and why others are uncertain."""
    lines: dict[str, list[str]] = {}
    for name, access in found.items():
        match access:
            case Granted(role, member, place):
                words = f"{role} {member} {place}".replace(ACCOUNT, "A")
            case Uncertain(doubts):
                words = "perhaps: " + "; ".join(doubt.reason for doubt in doubts)
            case NotGranted():
                continue
        lines.setdefault(words, []).append(name.rpartition(".")[2])
    return " | ".join(f"{','.join(verbs)} {words}" for words, verbs in lines.items())


_SURE = {
    "nothing": (policy({}), None, ""),
    "viewer": (policy({VIEWER: [MEMBER]}), None, f"get,list {VIEWER} serviceAccount:A the bucket"),
    "user": (policy({USER: [MEMBER]}), None, f"create,delete,get,list {USER} serviceAccount:A the bucket"),
    "another account": (policy({USER: ["serviceAccount:2-compute@developer.gserviceaccount.com"]}), None, ""),
    "another kind of member": (
        policy({USER: ["user:someone@example.com", "principal://iam.googleapis.com/x"]}),
        None,
        "",
    ),
    "letters of either case": (
        policy({VIEWER: [MEMBER.replace("compute", "Compute")]}),
        None,
        f"get,list {VIEWER} {MEMBER.replace('compute', 'Compute')} the bucket",
    ),
    "everybody": (policy({VIEWER: ["allUsers"]}), None, f"get,list {VIEWER} allUsers the bucket"),
    "everybody with an account": (
        policy({VIEWER: ["allAuthenticatedUsers"]}),
        None,
        f"get,list {VIEWER} allAuthenticatedUsers the bucket",
    ),
    "a deleted account": (policy({USER: [f"deleted:{MEMBER}?uid=7"]}), None, ""),
    "identities of another provider": (
        policy({USER: ["principalSet://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/w/*"]}),
        None,
        "",
    ),
    "reader of the bucket lists only": (
        policy({"roles/storage.legacyBucketReader": [MEMBER]}),
        None,
        "list roles/storage.legacyBucketReader serviceAccount:A the bucket",
    ),
    "creator": (
        policy({"roles/storage.objectCreator": [MEMBER]}),
        None,
        "create roles/storage.objectCreator serviceAccount:A the bucket",
    ),
    "on the project": (
        policy({}),
        policy({"roles/storage.admin": [MEMBER]}),
        "create,delete,get,list roles/storage.admin serviceAccount:A its project",
    ),
    "on the bucket before the project": (
        policy({USER: [MEMBER]}),
        policy({"roles/storage.admin": [MEMBER]}),
        f"create,delete,get,list {USER} serviceAccount:A the bucket",
    ),
    "basic roles permit nothing by themselves": (policy({}), policy({"roles/owner": [MEMBER]}), ""),
    "storage roles that speak of buckets only": (
        policy({}),
        policy({f"roles/storage.{name}": [MEMBER] for name in ("editor", "viewer", "bucketViewer")}),
        "",
    ),
    "editor of the project": (
        policy(DEFAULT),
        policy({"roles/editor": [MEMBER]}),
        (
            "create,delete,list roles/storage.legacyBucketOwner projectEditor:p the bucket"
            " | get roles/storage.legacyObjectOwner projectEditor:p the bucket"
        ),
    ),
    "owner of the project": (
        policy(DEFAULT),
        policy({"roles/owner": [MEMBER]}),
        (
            "create,delete,list roles/storage.legacyBucketOwner projectOwner:p the bucket"
            " | get roles/storage.legacyObjectOwner projectOwner:p the bucket"
        ),
    ),
    "viewer of the project": (
        policy(DEFAULT),
        policy({"roles/viewer": [MEMBER]}),
        (
            "get roles/storage.legacyObjectReader projectViewer:p the bucket"
            " | list roles/storage.legacyBucketReader projectViewer:p the bucket"
        ),
    ),
    "no basic role, as where an organisation grants none": (policy(DEFAULT), policy({}), ""),
    "a bucket without readers, a role on its project": (
        Unknown("you may not", "storage.buckets.getIamPolicy"),
        policy({USER: [MEMBER]}),
        f"create,delete,get,list {USER} serviceAccount:A its project",
    ),
    "a grant that still lasts": (
        policy({VIEWER: [MEMBER]}, 'request.time < timestamp("2026-01-01T00:00:01Z")'),
        None,
        f"get,list {VIEWER} serviceAccount:A the bucket",
    ),
    "a grant that has just ended": (
        policy({VIEWER: [MEMBER]}, 'request.time < timestamp("2026-01-01T00:00:00Z")'),
        None,
        "",
    ),
    "a condition, and a role without one": (
        Known(IamPolicy((*policy({VIEWER: [MEMBER]}, "c").value.bindings, *policy({VIEWER: [MEMBER]}).value.bindings))),
        None,
        f"get,list {VIEWER} serviceAccount:A the bucket",
    ),
}


@pytest.mark.parametrize(("bucket", "project", "expected"), _SURE.values(), ids=_SURE)
def test_access_known_policies_is_certain(
    bucket: Fact[IamPolicy], project: Fact[IamPolicy] | None, expected: str
) -> None:
    found = access_text(access(bucket, project))

    assert "|".join(sorted(found.split(" | "))) == "|".join(sorted(expected.split(" | ")))


_IN_DOUBT = {
    "condition": (
        policy({VIEWER: [MEMBER]}, "resource.name.startsWith('x')"),
        None,
        f"get,list perhaps: `{VIEWER}` is granted only under the condition `resource.name.startsWith('x')`",
    ),
    "group": (
        policy({VIEWER: ["group:ml@example.com"]}),
        None,
        "get,list perhaps: the members of `group:ml@example.com` cannot be read",
    ),
    "domain": (
        policy({VIEWER: ["domain:example.com"]}),
        None,
        "get,list perhaps: the members of `domain:example.com` cannot be read",
    ),
    "all accounts of a project": (
        policy({VIEWER: ["principalSet://cloudresourcemanager.googleapis.com/projects/1/type/ServiceAccount"]}),
        None,
        (
            "get,list perhaps: the members of "
            "`principalSet://cloudresourcemanager.googleapis.com/projects/1/type/ServiceAccount` cannot be read"
        ),
    ),
    "a kind of member of tomorrow": (
        policy({VIEWER: ["fleet:x"]}),
        None,
        "get,list perhaps: the members of `fleet:x` cannot be read",
    ),
    "a group that edits the project": (
        policy(DEFAULT),
        policy({"roles/editor": ["group:ml@example.com"]}),
        "create,delete,get,list perhaps: the members of `group:ml@example.com` cannot be read",
    ),
    "an editor under a condition": (
        policy(DEFAULT),
        policy({"roles/editor": [MEMBER]}, "request.time < x"),
        "create,delete,get,list perhaps: `roles/editor` is granted only under the condition `request.time < x`",
    ),
    "a role of another project's editors": (
        policy({USER: ["projectEditor:other"]}),
        None,
        "create,delete,get,list perhaps: the IAM policy of project `other` was not read",
    ),
    "no policy of the project": (
        policy(DEFAULT),
        DENIED,
        "create,delete,get,list perhaps: the IAM policy of project `p` could not be read: you may not",
    ),
    "no policy of the project, a bucket without members": (
        policy({}),
        DENIED,
        "create,delete,get,list perhaps: the IAM policy of project `1` could not be read: you may not",
    ),
    "no policy of the bucket": (
        Unknown("it was slow"),
        None,
        "create,delete,get,list perhaps: its policy could not be read: it was slow",
    ),
}


@pytest.mark.parametrize(("bucket", "project", "expected"), _IN_DOUBT.values(), ids=_IN_DOUBT)
def test_access_unread_or_conditional_policies_is_uncertain(
    bucket: Fact[IamPolicy], project: Fact[IamPolicy] | None, expected: str
) -> None:
    assert access_text(access(bucket, project)) == expected


_ROLES: dict[str, tuple[Fact[frozenset[str]] | None, str]] = {
    "known": (Known(frozenset({GET, "storage.buckets.get"})), f"get {CUSTOM} serviceAccount:A the bucket"),
    "known, of nothing here": (Known(frozenset({"tpu.nodes.get"})), ""),
    "deleted": (Absent(), ""),
    "refused": (
        Unknown("you may not", "iam.roles.get"),
        f"create,delete,get,list perhaps: the permissions of `{CUSTOM}` could not be read: you may not",
    ),
    "not asked for": (
        None,
        f"create,delete,get,list perhaps: the permissions of `{CUSTOM}` could not be read: it was not requested",
    ),
}


@pytest.mark.parametrize(("role", "expected"), _ROLES.values(), ids=_ROLES)
def test_access_custom_role_uses_its_permissions(role: Fact[frozenset[str]] | None, expected: str) -> None:
    assert access_text(access(policy({CUSTOM: [MEMBER]}), roles={CUSTOM: role} if role else {})) == expected


def test_role_permissions_api_answer_overrides_table() -> None:
    roles: dict[str, Fact[frozenset[str]]] = {VIEWER: Known(frozenset({GET}))}

    assert access_text(access(policy({VIEWER: [MEMBER]}), roles=roles)) == f"get {VIEWER} serviceAccount:A the bucket"
    assert access_text(access(policy({VIEWER: [MEMBER]}), roles={VIEWER: Unknown("slow")})).startswith("get,list ")


def test_access_without_uniform_access_is_uncertain() -> None:
    reader = policy({"roles/storage.legacyBucketReader": [MEMBER]})

    assert access_text(access(reader, has_uniform_access=False)) == (
        "get perhaps: its objects may have access lists (ACLs) of their own"
        " | list roles/storage.legacyBucketReader serviceAccount:A the bucket"
    )


def test_access_unread_bucket_policy_reports_only_that() -> None:
    found = resolve_access(ACCOUNT, BucketPolicies(bucket=Unknown("you may not"), has_uniform_access=False))

    assert access_text(found) == "create,delete,get,list perhaps: its policy could not be read: you may not"


def test_access_public_access_prevention_ignores_all_users() -> None:
    everybody = policy({VIEWER: ["allUsers", "allAuthenticatedUsers"]})

    assert access_text(access(everybody, prevents_public_access=True)) == ""


@pytest.mark.parametrize(
    ("project", "reason"),
    [
        (None, "its project is unknown"),
        ("7", "the IAM policy of project `7` was not read"),
    ],
)
def test_access_unread_project_policy_is_uncertain(project: str | None, reason: str) -> None:
    found = resolve_access(ACCOUNT, BucketPolicies(bucket=policy({}), project=project, projects={"1": policy({})}))

    assert access_text(found) == f"create,delete,get,list perhaps: {reason}"


def test_deleted_roles_lists_bindings_of_deleted_account() -> None:
    bucket = policy({USER: [f"deleted:{MEMBER}?uid=7"], VIEWER: ["deleted:serviceAccount:other@p?uid=8"]})

    assert roles_of_deleted_account(ACCOUNT, BucketPolicies(bucket=bucket)) == (USER,)
