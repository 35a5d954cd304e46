"""Rules about the roles of the node's account on the buckets."""

from __future__ import annotations

import pytest

from tests.check.access_cases import ACCOUNT, MEMBER, NAMED, bucket, facts, policy
from tpuctl.check.facts import Absent, BucketFacts, BucketUse, CheckFacts, Fact, Known, Purpose, Unknown
from tpuctl.check.findings import GrantBucketRole, Level, Remedy, RuleResult, evaluate_rules
from tpuctl.check.iam import roles_to_read
from tpuctl.check.rules.iam_rules import IAM_RULES
from tpuctl.models.project import Project

VIEWER, USER, CUSTOM = "roles/storage.objectViewer", "roles/storage.objectUser", "projects/p/roles/reader"
GET, LIST, CREATE, DELETE = (f"storage.objects.{verb}" for verb in ("get", "list", "create", "delete"))
EDITORS = {
    "roles/storage.legacyBucketOwner": ["projectEditor:p"],
    "roles/storage.legacyObjectOwner": ["projectEditor:p"],
}
UNREADABLE = Unknown("you may not", "storage.buckets.getIamPolicy")


def summaries(given: CheckFacts) -> dict[str, RuleResult]:
    """Return the findings by rule, without notes about scopes."""
    found = [(finding.id, finding.found) for finding in evaluate_rules(given, IAM_RULES).findings]
    return {id_: one for id_, one in found if (id_, one.level) != ("TPU203", Level.NOTE)}


def levels(given: CheckFacts) -> str:
    """Return rule, level, subject and verb of each finding."""
    return "; ".join(f"{id_} {found.level} {found.subject}" for id_, found in summaries(given).items())


_LEVELS = {
    "a role that does both": (bucket("b", policy({USER: [MEMBER]})), ""),
    "a role that reads": (bucket("b", policy({VIEWER: [MEMBER]})), "TPU202 error gs://b"),
    "a role that writes": (
        bucket("b", policy({"roles/storage.legacyBucketWriter": [MEMBER]})),
        "TPU201 error gs://b",
    ),
    "no role": (bucket("b", policy({})), "TPU201 error gs://b"),
    "perhaps a role": (bucket("b", policy({USER: ["group:g@example.com"]})), "TPU201 unknown gs://b"),
    "reads, writes perhaps": (
        bucket("b", policy({VIEWER: [MEMBER], USER: ["group:g@example.com"]})),
        "TPU202 unknown gs://b",
    ),
    "reads perhaps, does not write": (
        bucket("b", policy({VIEWER: ["group:g@example.com"]})),
        "TPU202 error gs://b; TPU201 unknown gs://b",
    ),
    "only read": (bucket("b", policy({VIEWER: [MEMBER]}), use=BucketUse("b", writes=False)), ""),
    "only written": (bucket("b", policy({}), use=BucketUse("b", reads=False)), "TPU202 error gs://b"),
    "neither": (bucket("b", policy({}), use=BucketUse("b", reads=False, writes=False)), ""),
    "policy unreadable": (bucket("b", UNREADABLE), "TPU201 unknown gs://b"),
    "policy unreadable, only written": (
        bucket("b", UNREADABLE, use=BucketUse("b", reads=False)),
        "TPU202 unknown gs://b",
    ),
    "policy not asked for": (bucket("b", None), ""),
    "no such bucket": (bucket("b", Absent(), bucket=Absent()), ""),
    "a bucket of another project": (bucket("b", policy({}), project="2"), "TPU201 unknown project 2"),
    "a bucket of another project that names the account": (
        bucket("b", policy({USER: [MEMBER]}), project="2"),
        "",
    ),
    "metadata and policy unreadable": (bucket("b", UNREADABLE, bucket=Unknown("no")), "TPU201 unknown gs://b"),
    "metadata unreadable, policy not": (bucket("b", policy({}), bucket=Unknown("no")), "TPU201 unknown gs://b"),
}


@pytest.mark.parametrize(("given", "expected"), _LEVELS.values(), ids=_LEVELS)
def test_account_access_is_judged_per_bucket(given: BucketFacts, expected: str) -> None:
    assert levels(facts(given)) == expected


def test_serving_node_needs_no_write_access() -> None:
    assert levels(facts(bucket("b", policy({VIEWER: [MEMBER]})), purpose=Purpose.SERVE)) == ""


@pytest.mark.parametrize("project", [Unknown("no", "resourcemanager.projects.get"), Absent()])
def test_access_unknown_account_is_left_to_project_rule(project: Fact[Project]) -> None:
    assert levels(facts(bucket("b", policy({})), project=project)) == ""


def test_access_named_account_needs_no_project() -> None:
    given = facts(
        bucket("b", policy({USER: [f"serviceAccount:{NAMED}"]})), project=Unknown("no"), spec={"service_account": NAMED}
    )

    assert levels(given) == ""


def test_missing_permissions_are_named_with_grant() -> None:
    given = facts(
        bucket("b", policy({VIEWER: [f"deleted:{MEMBER}?uid=7"]}), requester_pays=True), billing_project="payer"
    )

    grant = GrantBucketRole("b", USER, MEMBER, "payer")
    assert summaries(given) == {
        "TPU201": RuleResult(
            level=Level.ERROR,
            subject="gs://b",
            text=(
                f"the node's account `{ACCOUNT}` may not read or write to it: it lacks `{CREATE}`, `{DELETE}`, "
                f"`{GET}` and `{LIST}`"
            ),
            why="reads by the node's programs fail with 403, and the node is billed by then; "
            "the default account is an editor of its project only if no organisation policy "
            "(`iam.automaticIamGrantsForDefaultServiceAccounts`) prevents it; "
            f"`{VIEWER}` on the bucket is for a deleted account of that name, not for the new one; "
            "grants of managed folders are not read; if one of them is enough, continue with `--skip-check TPU201`",
            remedies=(Remedy.by(grant, f"grant it `{USER}` on the bucket"),),
            facts={"account": ACCOUNT, "missingPermissions": [CREATE, DELETE, GET, LIST], "role": USER},
        )
    }
    assert grant.command == (
        f"gcloud storage buckets add-iam-policy-binding gs://b --member={MEMBER} --role={USER} --condition=None "
        "--billing-project=payer"
    )


def test_read_only_use_gets_viewer_grant() -> None:
    given = facts(
        bucket("b", policy({}), use=BucketUse("b", writes=False)),
        spec={"service_account": NAMED},
        billing_project="payer",
    )

    found = summaries(given)["TPU201"]
    assert (found.text, found.remedies[0].change) == (
        f"the node's account `{NAMED}` may not read it: it lacks `{GET}` and `{LIST}`",
        GrantBucketRole("b", VIEWER, f"serviceAccount:{NAMED}"),
    )


def test_access_granted_by_roles_of_editors_is_silent() -> None:
    given = facts(bucket("b", policy(EDITORS)), project_policy=policy({"roles/editor": [MEMBER]}))

    assert summaries(given) == {}


@pytest.mark.parametrize(
    ("caller", "words", "permissions"),
    [
        (
            Known(frozenset({GET, LIST})),
            "; your own account may get and list objects there, which says nothing certain about the node's account",
            [GET, LIST],
        ),
        (
            Known(frozenset[str]()),
            "; your own account may not use its objects, which says nothing certain about the node's account",
            [],
        ),
        (Unknown("slow"), "", None),
        (None, "", None),
    ],
)
def test_unread_policy_is_unknown_and_shows_caller(
    caller: Fact[frozenset[str]] | None, words: str, permissions: list[str] | None
) -> None:
    grant = GrantBucketRole("b", USER, MEMBER)
    assert summaries(facts(bucket("b", UNREADABLE, caller=caller))) == {
        "TPU201": RuleResult(
            level=Level.UNKNOWN,
            subject="gs://b",
            text=f"unknown whether the node's account `{ACCOUNT}` may read and write to it: "
            f"its policy could not be read: you may not{words}",
            remedies=(
                Remedy("ask for the permission `storage.buckets.getIamPolicy` on the bucket, and check again"),
                Remedy(f"or grant it `{USER}` on gs://b, which settles it", grant.command),
            ),
            facts={
                "account": ACCOUNT,
                "buckets": ["b"],
                "undecidedPermissions": [CREATE, DELETE, GET, LIST],
                "permission": "storage.buckets.getIamPolicy",
                "callerPermissions": permissions,
            },
        )
    }


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (
            Unknown("no answer within 15s", is_passing=True),
            "check again; reading it takes the permission `storage.buckets.getIamPolicy` on the bucket",
        ),
        (
            Unknown("the API is disabled"),
            "fix that and check again; reading it takes the permission `storage.buckets.getIamPolicy` on the bucket",
        ),
    ],
)
def test_passing_gap_is_marked(reason: Unknown, advice: str) -> None:
    found = summaries(facts(bucket("b", reason)))["TPU201"]

    assert (found.remedies[0].text, found.is_passing) == (advice, reason.is_passing)


def test_unread_project_policy_is_reported_once() -> None:
    given = facts(
        bucket("a", policy(EDITORS)),
        bucket("b", policy(EDITORS)),
        bucket("c", policy({USER: [MEMBER]})),
        project_policy=Unknown("you may not", "resourcemanager.projects.getIamPolicy"),
    )

    findings = [
        finding.found for finding in evaluate_rules(given, IAM_RULES).findings if finding.level is Level.UNKNOWN
    ]
    commands = [GrantBucketRole(name, USER, MEMBER).command for name in ("a", "b")]
    assert [(found.subject, found.text, [remedy.command for remedy in found.remedies]) for found in findings] == [
        (
            "project p",
            (
                f"unknown whether the node's account `{ACCOUNT}` may read and write to gs://a and gs://b: "
                "the IAM policy of project `p` could not be read: you may not"
            ),
            [None, *commands],
        )
    ]


def test_bucket_with_several_prefixes_is_judged_once() -> None:
    given = facts(
        bucket("b", policy({VIEWER: [MEMBER]}), use=BucketUse("b", "data", writes=False)),
        bucket("b", policy({VIEWER: [MEMBER]}), use=BucketUse("b", "checkpoints", reads=False)),
    )

    assert levels(given) == "TPU202 error gs://b"


def test_many_reasons_are_shortened() -> None:
    groups = [f"group:g{number}@example.com" for number in range(7)]

    assert summaries(facts(bucket("b", policy({USER: groups}))))["TPU201"].text.endswith(
        "the members of `group:g3@example.com` cannot be read; and 3 more reasons"
    )


_ROLES: dict[str, tuple[CheckFacts, set[str]]] = {
    "custom": (facts(bucket("b", policy({CUSTOM: [MEMBER], VIEWER: [MEMBER]}))), {CUSTOM}),
    "of a project": (facts(bucket("b", policy({})), project_policy=policy({"roles/rare": [MEMBER]})), {"roles/rare"}),
    "perhaps": (facts(bucket("b", policy({CUSTOM: ["group:g@example.com"]}))), {CUSTOM}),
    "of another account": (facts(bucket("b", policy({CUSTOM: ["user:me@example.com"]}))), set()),
    "all is granted without": (facts(bucket("b", policy({CUSTOM: [MEMBER], USER: [MEMBER]}))), set()),
    "in the table": (facts(bucket("b", policy({VIEWER: [MEMBER]}))), set()),
    "of a project that the bucket is not of": (
        facts(bucket("b", policy({}), project="2"), project_policy=policy({"roles/rare": [MEMBER]})),
        set(),
    ),
    "account unknown": (facts(bucket("b", policy({CUSTOM: [MEMBER]})), project=Unknown("no")), set()),
    "policy unknown": (facts(bucket("b", UNREADABLE)), set()),
}


@pytest.mark.parametrize(("given", "expected"), _ROLES.values(), ids=_ROLES)
def test_roles_to_read_only_deciding_roles(given: CheckFacts, expected: set[str]) -> None:
    assert roles_to_read(given) == expected
