"""The cost of reading a bucket from another place, and the effect of a cache."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.bucket_facts import DENIED, LATE, READ, USE, WRITE, a_bucket, facts_of, findings_of, summaries_of
from tpuctl.check.facts import Absent, BucketUse, Known, Unknown
from tpuctl.check.findings import Level, RuleResult
from tpuctl.models.bucket import AnywhereCache, BucketContents, BucketPlacement

_RUNNING, _PAUSED = AnywhereCache("us-central1-a", "RUNNING"), AnywhereCache("us-central1-a", "PAUSED")


@pytest.mark.parametrize(
    ("use", "caches", "levels"),
    [
        (READ, Known((_RUNNING,)), ["note"]),
        (READ, Known((_PAUSED,)), ["warning"]),
        (READ, Known((AnywhereCache("us-central1-b", "running"),)), ["warning"]),
        (READ, Known(()), ["warning"]),
        (READ, Absent(), ["warning"]),
        (READ, None, ["warning"]),
        (READ, LATE, ["warning", "unknown"]),
        (USE, Known((_RUNNING,)), ["warning"]),
        (WRITE, Known((_RUNNING,)), ["warning"]),
    ],
)
def test_running_cache_in_zone_makes_note(use: BucketUse, caches: Any, levels: list[str]) -> None:
    facts = facts_of(a_bucket("US", "multi-region"), use, zone="us-central1-a", caches=caches)

    assert [level for level, _ in summaries_of("TPU101", facts)] == levels


def test_unread_caches_are_reported_once() -> None:
    denied = Unknown("the caller may not", permission="storage.anywhereCaches.list")

    _, found = findings_of("TPU101", facts_of(a_bucket("US", "multi-region"), caches=denied))
    (elsewhere,) = findings_of("TPU101", facts_of(a_bucket("EUROPE-WEST4"), caches=denied))

    # No cache can be in the TPU's zone where the bucket's own location is another.
    assert elsewhere.level is Level.ERROR

    assert found == RuleResult(
        level=Level.UNKNOWN,
        subject="gs://b",
        text="the Anywhere Caches of `gs://b` in us-central2-b could not be read: the caller may not",
        remedies=found.remedies,
        facts={"permission": "storage.anywhereCaches.list"},
    )
    assert [remedy.text for remedy in found.remedies] == [
        (
            "ask the bucket's owner for the permission `storage.anywhereCaches.list`, which the role `roles/storage.admin` has"
            ""
        )
    ]


@pytest.mark.parametrize(
    ("use", "dataset_size", "contents", "size"),
    [
        (USE, None, None, None),
        (USE, 1500 * 10**9, None, 1500 * 10**9),
        (USE, None, Known(BucketContents(10, 1500 * 10**9, is_complete=True)), 1500 * 10**9),
        (USE, 10**12, Known(BucketContents(10, 1500 * 10**9, is_complete=True)), 10**12),
        (USE, None, Known(BucketContents(1000, 1500 * 10**9, is_complete=False)), None),
        (USE, None, Known(BucketContents(0, 0, is_complete=True)), None),
        (USE, None, LATE, None),
        (WRITE, 1500 * 10**9, None, None),
    ],
)
def test_epoch_price_needs_known_size(
    use: BucketUse, dataset_size: int | None, contents: Any, size: int | None
) -> None:
    facts = facts_of(a_bucket("US-CENTRAL1"), use, wanted={"dataset_size": dataset_size}, contents=contents)

    (found,) = findings_of("TPU101", facts)

    cost = {10**12: 18.63, 1500 * 10**9: 27.94}.get(size) if size else None
    assert (found.facts["datasetSize"], found.facts["costPerEpochLow"], found.facts["costPerEpochHigh"]) == (
        size,
        cost,
        cost,
    )
    assert ("one epoch, reading all" in (found.why or "")) == (size is not None)


def test_written_bucket_names_price_of_reading_back() -> None:
    (found,) = findings_of("TPU101", facts_of(a_bucket("US-CENTRAL1"), WRITE))

    assert found.why == (
        "every write crosses between regions: it is slower, and reading it back is billed: $18.63 per TB ($0.02/GiB, list "
        "price of 2026-06)"
    )
    assert [remedy.command for remedy in found.remedies] == [
        "tpuctl check --project=p --zone=us-central1-b --type=v6e-8 --checkpoint-bucket=gs://b",
        "gcloud storage buckets create gs://b-us-central2 --project=p --location=US-CENTRAL2 --uniform-bucket-level-access",
    ]


def test_zero_price_comes_from_settings() -> None:
    (found,) = findings_of("TPU101", facts_of(a_bucket("US-CENTRAL1"), wanted={"egress_prices": {"us-us": "0"}}))

    assert (
        found.why
        == "every read crosses between regions: it is slower; it is free according to the price in your settings"
    )


def test_epoch_price_is_shown_as_text() -> None:
    facts = facts_of(a_bucket("US-CENTRAL1"), wanted={"dataset_size": 1500 * 10**9, "egress_prices": {"us-us": "0.01"}})

    (found,) = findings_of("TPU101", facts)

    assert found.why == (
        "every read crosses between regions: it is slower, and billed: $9.31 per TB ($0.01/GiB, the price in "
        "your settings); one epoch, reading all 1.5 TB once, costs $13.97"
    )
    assert found.facts["priceDate"] is None


def test_placement_from_layout_is_enough() -> None:
    facts = facts_of(DENIED, layout=Known(BucketPlacement("EUROPE-WEST4", "region")))

    assert [level for level, _ in summaries_of("TPU101", facts)] == ["error"]
