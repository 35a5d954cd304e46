"""Whether a bucket exists, its project, who pays for requests, and whether it has objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.bucket_facts import (
    DENIED,
    LATE,
    PAYS,
    RULES,
    USE,
    WRITE,
    a_bucket,
    commands_of,
    facts_of,
    findings_of,
    summaries_of,
)
from tpuctl.check.facts import Absent, BucketUse, Fact, Known, Purpose, Unknown
from tpuctl.check.findings import Level
from tpuctl.check.rules.bucket_rules import BUCKET_RULES
from tpuctl.models.bucket import Bucket, BucketContents, BucketPlacement


def test_rules_are_sorted_and_explained() -> None:
    assert list(RULES) == [f"TPU{number}" for number in range(101, 109)]
    assert all(len(rule.text) > 100 for rule in RULES.values())


@pytest.mark.parametrize("bucket", [DENIED, LATE, Absent()])
def test_unread_bucket_is_reported_by_one_rule(bucket: Fact[Bucket]) -> None:
    facts = facts_of(bucket, layout=LATE)

    assert [rule.id for rule in BUCKET_RULES if list(rule.judge(facts))] == ["TPU102"]


_ASK = "ask the bucket's owner for the permission `storage.buckets.get`, which the role `roles/storage.legacyBucketReader` has"
_OPEN = "its project, billing, storage class, retention and versioning"


@pytest.mark.parametrize(
    ("bucket", "layout", "expected"),
    [
        (
            Absent(),
            None,
            (
                "error",
                "there is no bucket `gs://b`",
                ("every read and write fails; bucket names are global, so a similar name may belong to someone else"),
                "compare the name with the buckets of the project",
                False,
            ),
        ),
        (
            DENIED,
            Known(BucketPlacement("US-CENTRAL2", "region")),
            (
                "unknown",
                "`gs://b` could not be read: the caller may not",
                f"not checked: {_OPEN}",
                _ASK,
                False,
            ),
        ),
        (
            LATE,
            DENIED,
            (
                "unknown",
                "`gs://b` could not be read: no answer within 15s",
                f"not checked: its location, {_OPEN}",
                "check again; reading it takes the permission `storage.buckets.get`",
                True,
            ),
        ),
        (
            DENIED,
            LATE,
            (
                "unknown",
                "`gs://b` could not be read: the caller may not",
                f"not checked: its location, {_OPEN}",
                _ASK,
                True,
            ),
        ),
    ],
)
def test_unreadable_bucket_is_unknown(bucket: Fact[Bucket], layout: Any, expected: tuple[Any, ...]) -> None:
    (found,) = findings_of("TPU102", facts_of(bucket, layout=layout))

    remedy = found.remedies[0].text if found.remedies else None
    assert (str(found.level), found.text, found.why, remedy, found.is_passing) == expected


@pytest.mark.parametrize(
    ("number", "project", "expected"),
    [
        ("42", None, []),
        (
            "7",
            None,
            [("warning", "`gs://b` belongs to the project with the number 7, not to `p` (42)")],
        ),
        (None, None, []),
        ("7", DENIED, []),
        ("7", Absent(), []),
    ],
)
def test_bucket_project_is_compared(number: str | None, project: Any, expected: list[tuple[str, str]]) -> None:
    assert summaries_of("TPU103", facts_of(a_bucket(projectNumber=number), project=project)) == expected


_UNPAID = ("error", "`gs://b` is requester-pays, and no billing project is named")


@pytest.mark.parametrize(
    ("bucket", "payer", "expected", "commands"),
    [
        (a_bucket(), None, [], []),
        (a_bucket(**PAYS), None, [_UNPAID], [None, "gcloud storage buckets update gs://b --no-requester-pays"]),
        (a_bucket(projectNumber="7", **PAYS), None, [_UNPAID], [None]),
        (a_bucket(**PAYS), "payer", [("note", "requests to `gs://b` are billed to `payer`")], []),
        (Unknown("it pays", error_id="storage-requester-pays"), None, [_UNPAID], [None]),
        (Unknown("it pays", error_id="other"), None, [], []),
        (Absent(), None, [], []),
    ],
)
def test_requester_pays_needs_billing_project(
    bucket: Any, payer: str | None, expected: list[tuple[str, str]], commands: list[str | None]
) -> None:
    facts = facts_of(bucket, wanted={"billing_project": payer})

    assert summaries_of("TPU104", facts) == expected
    assert commands_of("TPU104", facts) == commands


_LISTING = Unknown("the caller may not", permission="storage.objects.list")


@pytest.mark.parametrize(
    ("use", "contents", "expected"),
    [
        (USE, None, []),
        (WRITE, Known(BucketContents(0, 0, is_complete=True)), []),
        (USE, Absent(), []),
        (USE, Known(BucketContents(0, 0, is_complete=True)), [("note", "`gs://b` is empty")]),
        (USE, Known(BucketContents(0, 0, is_complete=False)), [("note", "the first page of `gs://b` lists no data")]),
        (
            BucketUse("b", writes=False),
            Known(BucketContents(0, 0, is_complete=True)),
            [("warning", "`gs://b` is empty")],
        ),
        (
            BucketUse("b", "x"),
            Known(BucketContents(0, 0, is_complete=True)),
            [("warning", "`gs://b/x/` has no objects")],
        ),
        (USE, Known(BucketContents(1, 512, is_complete=True)), []),
        (
            BucketUse("b", "x"),
            Known(BucketContents(1000, 3_400_000, is_complete=False)),
            [],
        ),
        (USE, _LISTING, [("unknown", "the list of objects in `gs://b` could not be read: the caller may not")]),
        (USE, LATE, [("unknown", "the list of objects in `gs://b` could not be read: no answer within 15s")]),
    ],
)
def test_prefix_without_objects_is_warning(use: BucketUse, contents: Any, expected: list[tuple[str, str]]) -> None:
    assert summaries_of("TPU108", facts_of(a_bucket(), use, contents=contents)) == expected


def test_empty_bucket_of_serving_node_is_warning() -> None:
    empty = facts_of(
        a_bucket(), contents=Known(BucketContents(0, 0, is_complete=True)), wanted={"purpose": Purpose.SERVE}
    )

    (found,) = findings_of("TPU108", empty)
    assert (found.level, found.why) == (Level.WARNING, "a program that reads it finds no data")


def test_refused_listing_names_permission() -> None:
    (refused,) = findings_of("TPU108", facts_of(a_bucket(), contents=_LISTING))
    (late,) = findings_of("TPU108", facts_of(a_bucket(), contents=LATE))

    assert (refused.facts, refused.is_passing, [remedy.text for remedy in refused.remedies]) == (
        {"permission": "storage.objects.list"},
        False,
        [
            (
                "ask the bucket's owner for the permission `storage.objects.list`, which the role "
                "`roles/storage.objectViewer` has"
            )
        ],
    )
    assert (late.is_passing, [remedy.text for remedy in late.remedies]) == (
        True,
        ["check again; reading it takes the permission `storage.objects.list`"],
    )


@pytest.mark.parametrize("id_", ["TPU102", "TPU108"])
def test_unpaid_bucket_is_reported_once(id_: str) -> None:
    unpaid = Unknown("it pays", permission="storage.objects.list", error_id="storage-requester-pays")

    assert findings_of(id_, facts_of(unpaid, contents=unpaid)) == []
