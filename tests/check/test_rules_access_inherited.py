"""Roles that a folder or an organisation may grant, and buckets that may be meant as read-only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.check.access_cases import ACCOUNT, MEMBER, NAMED, bucket, facts, policy
from tpuctl.check.facts import BucketUse, CheckFacts, Fact, Known, Unknown
from tpuctl.check.findings import Finding, Level, evaluate_rules
from tpuctl.check.rules.iam_rules import account_may_read, account_may_write
from tpuctl.decoding import decoder_of
from tpuctl.models.project import Project

VIEWER, USER = "roles/storage.objectViewer", "roles/storage.objectUser"
GET, LIST, CREATE, DELETE = (f"storage.objects.{verb}" for verb in ("get", "list", "create", "delete"))


def findings(given: CheckFacts) -> tuple[Finding, ...]:
    return evaluate_rules(given, (account_may_read, account_may_write)).findings


def levels(given: CheckFacts) -> str:
    """Return rule, level and subject of each finding."""
    return "; ".join(f"{one.id} {one.level} {one.found.subject}" for one in findings(given))


BELOW = Known(decoder_of(Project)({"name": "projects/1", "projectId": "p", "state": "ACTIVE", "parent": "folders/3"}))


@pytest.mark.parametrize(
    ("found", "project", "named", "expected"),
    [
        ({}, BELOW, None, "TPU201 warning gs://b"),
        ({VIEWER: [MEMBER]}, BELOW, None, "TPU202 warning gs://b"),
        ({VIEWER: ["group:g@example.com"]}, BELOW, None, "TPU202 warning gs://b; TPU201 unknown gs://b"),
        ({USER: ["group:g@example.com"]}, BELOW, None, "TPU201 unknown gs://b"),
        ({USER: [MEMBER]}, BELOW, None, ""),
        # Below what a project is that could not be read is not known.
        ({}, Unknown("no"), NAMED, "TPU201 warning gs://b"),
    ],
)
def test_missing_role_below_folder_is_warning(
    found: dict[str, list[str]], project: Fact[Project], named: str | None, expected: str
) -> None:
    # A bucket of the project that the request names by its number.
    given = facts(bucket("b", policy(found)), project=project, spec={"service_account": named})
    by_number = replace(given, wanted=replace(given.wanted, project="1")) if named else given

    assert levels(by_number) == expected


def test_possibly_inherited_role_names_its_parent() -> None:
    (finding,) = findings(facts(bucket("b", policy({})), project=BELOW))
    found = finding.found

    assert found.text == (
        f"the node's account `{ACCOUNT}` may not read or write to it: it lacks `{CREATE}`, `{DELETE}`, `{GET}` and "
        f"`{LIST}`, unless `folders/3`, above project `p`, grants it"
    )
    assert found.why is not None
    assert found.why.endswith("roles inherited from folders and organisations are not read")


@pytest.mark.parametrize(
    ("use", "found", "expected"),
    [
        (
            BucketUse("b", "x"),
            {VIEWER: [MEMBER]},
            ["or declare it as read-only: `--data-bucket=gs://b/x` instead of `--bucket`"],
        ),
        (BucketUse("b", "x"), {}, []),
        (BucketUse("b", "x", reads=False), {}, []),
    ],
)
def test_readable_bucket_suggests_data_bucket(use: BucketUse, found: dict[str, list[str]], expected: list[str]) -> None:
    given = facts(bucket("b", policy(found), use=use))

    (refused,) = (one.found for one in findings(given) if one.level is Level.ERROR)
    assert [remedy.text for remedy in refused.remedies[1:]] == expected
