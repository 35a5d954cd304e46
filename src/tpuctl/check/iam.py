"""Whether an account may use the objects of a bucket, decided from the IAM policies that were read.

Policies do not show everything: roles inherited from a folder or an organisation, policies of managed folders, deny
policies and access boundaries are not read. Callers say so where it matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from tpuctl.check.facts import (
    OBJECT_PERMISSIONS,
    Absent,
    BucketFacts,
    BucketUse,
    CheckFacts,
    Fact,
    Known,
    Purpose,
    Unknown,
    WantedNode,
    value_or_none,
)
from tpuctl.check.findings import refer_to_rule
from tpuctl.durations import parse_timestamp
from tpuctl.models.project import IamBinding, IamPolicy
from tpuctl.yaml_reader import load_data

READ_PERMISSIONS = ("storage.objects.get", "storage.objects.list")
WRITE_PERMISSIONS = ("storage.objects.create", "storage.objects.delete")
# Members that stand for the holders of a basic role in a project [documentation: convenience values].
_BASIC_ROLES = {"projectOwner": "roles/owner", "projectEditor": "roles/editor", "projectViewer": "roles/viewer"}
_BUCKET_PLACE = "the bucket"
# The condition that the console writes for a grant with an end time.
_END_CONDITION = re.compile(r"""\s*request\.time\s*<\s*timestamp\(["']([^"']+)["']\)\s*""")


@dataclass(frozen=True, slots=True)
class Caveat:
    """Why the access is unknown.

    `permission` on `place` is what it takes to read the missing policy; None if no reading would answer the question.
    `project` is the project whose policy is unknown. `is_denied`: the caller lacks `permission`. `is_passing`: a later
    read may succeed.
    """

    reason: str
    permission: str | None = None
    place: str | None = None
    project: str | None = None
    is_denied: bool = False
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class Granted:
    """A role grants the permission. The account has the role through `member` of a binding on `place`."""

    role: str
    member: str
    place: str


@dataclass(frozen=True, slots=True)
class NotGranted:
    """None of the policies grants the permission, and all of them are known."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """The access is unknown, for the reasons in `doubts`."""

    doubts: tuple[Caveat, ...]


PermissionAccess = Granted | NotGranted | Uncertain


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPolicies:
    """The policies that decide the access to one bucket.

    `project` is the project of the bucket, by id or number; None if unknown. `projects` has the policy of each project
    under its id and its number. `roles` has the permissions of roles that are missing in `data/roles.yaml`. Without
    uniform access, objects may have access lists of their own. With public access prevention, grants to `allUsers` have
    no effect [documentation of Cloud Storage]. A grant with an end time counts until that time, compared with `now`.
    """

    bucket: Fact[IamPolicy]
    project: str | None = None
    projects: Mapping[str, Fact[IamPolicy]] = field(default_factory=dict)
    roles: Mapping[str, Fact[frozenset[str]]] = field(default_factory=dict)
    has_uniform_access: bool = True
    prevents_public_access: bool = False
    now: datetime | None = None

    @classmethod
    def of(cls, bucket: BucketFacts, facts: CheckFacts) -> BucketPolicies | None:
        """Return the policies of a bucket; None if its policy was not requested, or the bucket does not exist."""
        if bucket.policy is None or isinstance(bucket.policy, Absent) or isinstance(bucket.bucket, Absent):
            return None
        known, project, policy = value_or_none(bucket.bucket), value_or_none(facts.project), bucket.policy
        if isinstance(policy, Unknown):
            policy = refer_to_rule(policy, bucket.bucket, "TPU102")
        names = (facts.wanted.project, project.number) if project else (facts.wanted.project,)
        return cls(
            bucket=policy,
            project=known.project_number or None if known else None,
            projects=dict.fromkeys(names, facts.project_policy) if facts.project_policy else {},
            roles=facts.roles,
            has_uniform_access=known is not None and known.uniform_access,
            prevents_public_access=known is not None and known.public_access_prevention == "enforced",
            now=facts.now,
        )


def needed_permissions(wanted: WantedNode, use: BucketUse) -> tuple[str, ...]:
    """Return the permissions that the node's account needs on a bucket. A node that serves does not write."""
    return (
        *(READ_PERMISSIONS if use.reads else ()),
        *(WRITE_PERMISSIONS if use.writes and wanted.purpose is Purpose.TRAIN else ()),
    )


def resolve_access(account: str, policies: BucketPolicies) -> dict[str, PermissionAccess]:
    """Return the access for each of OBJECT_PERMISSIONS."""
    entries = _policy_entries(account, policies)
    return {permission: _permission_access(permission, entries, policies) for permission in OBJECT_PERMISSIONS}


def roles_of_deleted_account(account: str, policies: BucketPolicies) -> tuple[str, ...]:
    """Return the roles that the bucket still grants to a deleted account with the same address.

    A new account with the address of a deleted one has none of its roles [documentation of IAM].
    """
    policy = value_or_none(policies.bucket)
    start = f"deleted:serviceAccount:{account}?".lower()
    bindings = policy.bindings if policy else ()
    return tuple(entry.role for entry in bindings if any(member.lower().startswith(start) for member in entry.members))


def roles_to_read(facts: CheckFacts) -> frozenset[str]:
    """Return the roles that decide and are missing in the table: custom roles and rare predefined ones."""
    found: set[str] = set()
    for bucket in facts.buckets if facts.account else ():
        policies = BucketPolicies.of(bucket, facts)
        if facts.account is None or policies is None:
            continue
        access = resolve_access(facts.account, policies)
        if not all(isinstance(access[name], Granted) for name in needed_permissions(facts.wanted, bucket.use)):
            entries = _policy_entries(facts.account, policies)
            found |= {entry.role for entry in entries if isinstance(entry.permits, Unknown)}
    return frozenset(found)


class _PolicyEntry(NamedTuple):
    """A role that the account has, or may have."""

    role: str
    member: str
    place: str
    permits: Fact[frozenset[str]]
    doubts: tuple[Caveat, ...]


def _permission_access(permission: str, entries: list[_PolicyEntry], policies: BucketPolicies) -> PermissionAccess:
    doubts: list[Caveat] = []
    for entry in entries:
        match entry.permits:
            case Known(permits) if permission in permits and not entry.doubts:
                return Granted(entry.role, entry.member, entry.place)
            case Known(permits) if permission in permits:
                doubts += entry.doubts
            case Unknown() as fact:
                what = f"the permissions of `{entry.role}`"
                doubts += (*entry.doubts, _unread_caveat(fact, what, "iam.roles.get", f"role `{entry.role}`"))
            case Known() | Absent():  # a custom role that was deleted grants nothing [documentation of IAM]
                pass
    # The API names a bucket's project by number, members name it by id. If the bucket's own policy is missing, only that is
    # reported: it has to be read first.
    if isinstance(policies.bucket, Unknown):
        doubts.append(_unread_caveat(policies.bucket, "its policy", "storage.buckets.getIamPolicy", _BUCKET_PLACE))
    elif policies.project is None:
        doubts.append(Caveat("its project is unknown"))
    elif not any(doubt.project for doubt in doubts):
        policy = policies.projects.get(policies.project)
        if not isinstance(policy, Known | Absent):
            doubts.append(_project_policy_caveat(policies.project, policy))
    has_lists = isinstance(policies.bucket, Known) and not policies.has_uniform_access
    if permission == "storage.objects.get" and has_lists:
        doubts.append(Caveat("its objects may have access lists (ACLs) of their own"))
    return Uncertain(tuple(dict.fromkeys(doubts))) if doubts else NotGranted()


def _policy_entries(account: str, policies: BucketPolicies) -> list[_PolicyEntry]:
    places = [(_BUCKET_PLACE, policies.bucket)]
    if policies.project is not None and (of_project := policies.projects.get(policies.project)):
        places.append(("its project", of_project))
    found = []
    for place, policy in places:
        for binding in policy.value.bindings if isinstance(policy, Known) else ():
            # What the role permits, by the API or by the table.
            permits, listed = policies.roles.get(binding.role), role_permissions(binding.role)
            if not isinstance(permits, Known) and listed is not None:
                permits = Known(listed)
            permits = permits or Unknown("it was not requested")
            condition = _condition_caveats(binding, policies)
            if condition is None or (isinstance(permits, Known) and permits.value.isdisjoint(OBJECT_PERMISSIONS)):
                continue
            for member in binding.members:
                doubts = _membership_caveats(account, member, policies)
                if doubts is not None:
                    found.append(_PolicyEntry(binding.role, member, place, permits, doubts + condition))
    return found


def _membership_caveats(account: str, member: str, policies: BucketPolicies) -> tuple[Caveat, ...] | None:
    """Return the doubts about whether `member` is, or includes, the account. Return None if it does not."""
    kind, _, name = member.partition(":")
    match kind:
        case "allUsers" | "allAuthenticatedUsers":
            return None if policies.prevents_public_access else ()
        case "serviceAccount" | "user":
            return () if name.lower() == account.lower() else None
        case "deleted" | "principal":
            return None
        case "principalSet" if name.startswith("//iam.googleapis.com/"):
            return None  # identities of another provider, never service accounts
        case "projectOwner" | "projectEditor" | "projectViewer":
            return _basic_role_caveats(account, _BASIC_ROLES[kind], name, policies)
        case _:  # group, domain, principalSet of a project, and kinds unknown to this version
            return (Caveat(f"the members of `{member}` cannot be read"),)


def _basic_role_caveats(account: str, role: str, project: str, policies: BucketPolicies) -> tuple[Caveat, ...] | None:
    policy = policies.projects.get(project)
    if isinstance(policy, Absent):
        return None
    if not isinstance(policy, Known):
        return (_project_policy_caveat(project, policy),)
    found: tuple[Caveat, ...] | None = None
    for binding in policy.value.bindings:
        condition = _condition_caveats(binding, policies)
        for member in binding.members if binding.role == role and condition is not None else ():
            # A project's own policy has no such members, so the recursion ends.
            is_basic = member.partition(":")[0] in _BASIC_ROLES
            doubts = None if is_basic else _membership_caveats(account, member, policies)
            if doubts is not None:
                doubts += condition or ()
                if not doubts:
                    return ()
                found = (found or ()) + doubts
    return found


def _condition_caveats(binding: IamBinding, policies: BucketPolicies) -> tuple[Caveat, ...] | None:
    """Return the doubts that a condition leaves; None for a grant that has ended."""
    if not binding.condition:
        return ()
    ends = _END_CONDITION.fullmatch(binding.condition)
    end = parse_timestamp(ends[1]) if ends else None
    if end is None or policies.now is None:
        return (Caveat(f"`{binding.role}` is granted only under the condition `{binding.condition}`"),)
    return () if policies.now < end else None


def _project_policy_caveat(project: str, policy: Unknown | None) -> Caveat:
    words, place = f"the IAM policy of project `{project}`", f"project `{project}`"
    if policy is None:
        return Caveat(f"{words} was not read", project=project)
    return _unread_caveat(policy, words, "resourcemanager.projects.getIamPolicy", place, project=project)


def _unread_caveat(fact: Unknown, what: str, permission: str, place: str, *, project: str | None = None) -> Caveat:
    return Caveat(
        f"{what} could not be read: {fact.reason}",
        fact.permission or permission,
        place,
        project,
        is_denied=fact.permission is not None,
        is_passing=fact.is_passing,
    )


def role_permissions(role: str) -> frozenset[str] | None:
    """Return what a role such as `roles/storage.objectViewer` permits; None if the table lacks it.

    The table, `data/roles.yaml`, has the roles that accounts of TPUs usually have, and only permissions that matter here;
    for objects in Cloud Storage it is complete.
    """
    name = role.removeprefix("roles/")
    return _predefined_permissions(name) if name != role and name in _roles_table() else None


def _predefined_permissions(name: str) -> frozenset[str]:
    entry = _roles_table()[name]
    included = (_predefined_permissions(other) for other in entry.get("includes", ()))
    return frozenset(entry.get("permissions", ())).union(*included)


@cache
def _roles_table() -> dict[str, Any]:
    return dict(load_data("roles.yaml"))
