"""The price of reading if sources disagree on a region's group: never the lowest alone."""

from __future__ import annotations

import pytest

from tpuctl.check.colocation import egress_price
from tpuctl.models.bucket import BucketPlacement


@pytest.mark.parametrize(
    ("bucket", "zone", "expected"),
    [
        (
            "NORTHAMERICA-SOUTH1 region",
            "us-central2-b",
            "$18.63 to $139.70 per TB ($0.02 to $0.15/GiB, list price of 2026-06; sources disagree)",
        ),
        (
            "ASIA-SOUTHEAST2 region",
            "asia-northeast1-b",
            "$74.51 to $139.70 per TB ($0.08 to $0.15/GiB, list price of 2026-06; sources disagree)",
        ),
        (
            "ASIA dual-region asia-southeast1,asia-southeast2",
            "us-central2-b",
            "$74.51 to $139.70 per TB ($0.08 to $0.15/GiB, list price of 2026-06; sources disagree)",
        ),
        (
            "SOUTHAMERICA-EAST1 region",
            "northamerica-south1-a",
            "$74.51 to $139.70 per TB ($0.08 to $0.15/GiB, list price of 2026-06)",
        ),
        ("ASIA-SOUTHEAST2 region", "asia-southeast2-a", "free"),
    ],
)
def test_disputed_price_shows_both_sources(bucket: str, zone: str, expected: str) -> None:
    location, kind, named = (*bucket.split(), "")[:3]

    assert (
        str(egress_price(BucketPlacement(location, kind, tuple(named.upper().split(",")) if named else ()), zone))
        == expected
    )


def test_own_price_is_not_disputed() -> None:
    costs = egress_price(BucketPlacement("NORTHAMERICA-SOUTH1", "region"), "us-central2-b", own={"us-us": "0.03"})

    assert str(costs) == "$27.94 per TB ($0.03/GiB, the price in your settings)"
