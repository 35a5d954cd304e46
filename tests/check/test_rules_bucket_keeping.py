"""The cost of storing and changing objects in a bucket, and what the bucket forbids."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.bucket_facts import READ, USE, WRITE, a_bucket, commands_of, facts_of, findings_of, summaries_of
from tpuctl.check.facts import BucketUse, Purpose

SERVES = {"purpose": Purpose.SERVE}


@pytest.mark.parametrize(
    ("class_", "use", "level", "why"),
    [
        ("STANDARD", USE, None, None),
        ("RAPID", USE, None, None),
        ("MULTI_REGIONAL", USE, None, None),
        (
            "NEARLINE",
            READ,
            "note",
            "every read is billed, $9.31 per TB ($0.01/GiB, list price of 2026-06) in addition to the network",
        ),
        (
            "COLDLINE",
            USE,
            "warning",
            (
                "every read is billed, $18.63 per TB ($0.02/GiB, list price of 2026-06) in addition to the "
                "network; each checkpoint is billed for 90 days, even if it is deleted earlier"
            ),
        ),
        ("ARCHIVE", WRITE, "warning", "each checkpoint is billed for 365 days, even if it is deleted earlier"),
        ("GLACIAL", USE, "unknown", None),
    ],
)
def test_storage_class_levels(class_: str, use: BucketUse, level: str | None, why: str | None) -> None:
    found = findings_of("TPU105", facts_of(a_bucket(storageClass=class_), use))

    assert [(str(one.level), one.why) for one in found] == ([(level, why)] if level else [])


def test_storage_class_autoclass_is_note() -> None:
    autoclass = facts_of(a_bucket(storageClass="ARCHIVE", autoclass={"enabled": True}))

    assert summaries_of("TPU105", autoclass) == [
        ("note", "Autoclass chooses the storage class of each object in `gs://b`")
    ]
    assert summaries_of("TPU105", facts_of(a_bucket(storageClass=""))) == []


def test_storage_class_remedies_change_it() -> None:
    assert commands_of("TPU105", facts_of(a_bucket(storageClass="ARCHIVE"), BucketUse("b", "data"))) == [
        "gcloud storage buckets update gs://b --default-storage-class=STANDARD",
        "gcloud storage objects update 'gs://b/data/**' --storage-class=STANDARD",
    ]


_UPDATE = "gcloud storage buckets update gs://b"


@pytest.mark.parametrize(
    ("fields", "expected", "commands"),
    [
        ({}, [], []),
        (
            {"retentionPolicy": {"retentionPeriod": "0"}},
            [],
            [],
        ),
        (
            {"retentionPolicy": {"retentionPeriod": "86400"}},
            [
                (
                    "error",
                    "checkpoints in `gs://b` cannot be deleted or overwritten: a retention policy keeps them for 1 day",
                )
            ],
            [f"{_UPDATE} --clear-retention-period"],
        ),
        (
            {"retentionPolicy": {"retentionPeriod": "90000", "isLocked": True}},
            [
                (
                    "error",
                    (
                        "checkpoints in `gs://b` cannot be deleted or overwritten: a locked retention policy keeps them for "
                        "25 hours"
                    ),
                )
            ],
            [None],
        ),
        (
            {"retentionPolicy": {"retentionPeriod": "61"}, "defaultEventBasedHold": True},
            [
                (
                    "error",
                    (
                        "checkpoints in `gs://b` cannot be deleted or overwritten: a retention policy keeps them for 61 "
                        "seconds, and new objects get an event-based hold"
                    ),
                )
            ],
            [f"{_UPDATE} --clear-retention-period", f"{_UPDATE} --no-default-event-based-hold"],
        ),
    ],
)
def test_retention_or_hold_is_error(
    fields: dict[str, Any], expected: list[tuple[str, str]], commands: list[str | None]
) -> None:
    assert summaries_of("TPU106", facts_of(a_bucket(**fields))) == expected
    assert commands_of("TPU106", facts_of(a_bucket(**fields), WRITE)) == commands
    assert summaries_of("TPU106", facts_of(a_bucket(**fields), READ)) == []
    assert summaries_of("TPU106", facts_of(a_bucket(**fields), wanted=SERVES)) == []


@pytest.mark.parametrize("is_locked", [False, True])
def test_retention_suggests_data_bucket(*, is_locked: bool) -> None:
    kept = a_bucket(retentionPolicy={"retentionPeriod": "86400", "isLocked": is_locked})
    advised = [found.remedies[-1].text for use in (USE, WRITE) for found in findings_of("TPU106", facts_of(kept, use))]

    only_read = "or declare it as read-only: `--data-bucket=gs://b` instead of `--bucket`"
    assert [text == only_read for text in advised] == [True, False]


_BILLED = "deleted or overwritten checkpoints in `gs://b` are still billed"
_VERSIONING = {"versioning": {"enabled": True}}
_SOFT_DELETE = {"softDeletePolicy": {"retentionDurationSeconds": "604800"}}
_LIFECYCLE = {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"numNewerVersions": 1}}]}}


@pytest.mark.parametrize(
    ("fields", "expected", "commands"),
    [
        ({}, [], []),
        (
            {"softDeletePolicy": {"retentionDurationSeconds": "0"}},
            [],
            [],
        ),
        (_SOFT_DELETE, [("note", f"{_BILLED}: soft delete keeps them for 7 days")], [f"{_UPDATE} --clear-soft-delete"]),
        (
            _VERSIONING,
            [("warning", f"{_BILLED}: versioning keeps old versions until you delete them")],
            [f"{_UPDATE} --no-versioning"],
        ),
        (
            {**_VERSIONING, **_LIFECYCLE},
            [("note", f"{_BILLED}: versioning keeps old versions until a lifecycle rule deletes them")],
            [f"{_UPDATE} --no-versioning"],
        ),
        (
            {**_VERSIONING, "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"isLive": False}}]}},
            [("note", f"{_BILLED}: versioning keeps old versions until a lifecycle rule deletes them")],
            [f"{_UPDATE} --no-versioning"],
        ),
        (
            {**_VERSIONING, "lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]}},
            [("warning", f"{_BILLED}: versioning keeps old versions until you delete them")],
            [f"{_UPDATE} --no-versioning"],
        ),
        (
            {**_VERSIONING, **_SOFT_DELETE},
            [
                (
                    "warning",
                    (
                        f"{_BILLED}: versioning keeps old versions until you delete them, and soft delete keeps them for "
                        "7 days"
                    ),
                )
            ],
            [f"{_UPDATE} --no-versioning", f"{_UPDATE} --clear-soft-delete"],
        ),
    ],
)
def test_versioning_and_soft_delete_levels(
    fields: dict[str, Any], expected: list[tuple[str, str]], commands: list[str | None]
) -> None:
    assert summaries_of("TPU107", facts_of(a_bucket(**fields))) == expected
    assert commands_of("TPU107", facts_of(a_bucket(**fields))) == commands
    assert summaries_of("TPU107", facts_of(a_bucket(**fields), READ)) == []
    assert summaries_of("TPU107", facts_of(a_bucket(**fields), wanted=SERVES)) == []
