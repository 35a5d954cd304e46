"""Where a bucket is in relation to a TPU, and what reading it costs."""

from __future__ import annotations

from decimal import Decimal
from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpuctl.accelerators import load_accelerators
from tpuctl.check.colocation import (
    Relation,
    area_of,
    best_locations,
    egress_price,
    is_colocated,
    load_locations,
    own_prices,
    placement_relation,
    regions_within,
    retrieval_price,
)
from tpuctl.models.bucket import BucketPlacement

TB = 10**12


def _placement(text: str) -> BucketPlacement:
    """Return the placement of `EUR4 dual-region`, `US dual-region us-east1,us-west1`."""
    location, kind, named = (*text.split(), "", "")[:3]
    return BucketPlacement(location, kind, tuple(named.upper().split(",")) if named else ())


@pytest.mark.parametrize(
    ("bucket", "zone", "expected"),
    [
        # Regions.
        ("EUROPE-WEST4 region", "europe-west4-a", "same-region"),
        ("EUROPE-WEST4 region", "europe-west1-b", "same-area"),
        ("EUROPE-WEST4 region", "us-central2-b", "other-area"),
        ("EUROPE-WEST1 region", "europe-west10-a", "same-area"),
        ("US-CENTRAL1 region", "us-central1-ai1a", "same-region"),
        ("NORTHAMERICA-NORTHEAST1 region", "us-central1-a", "same-area"),
        ("ASIA-NORTHEAST1 region", "asia-northeast1-b", "same-region"),
        ("AUSTRALIA-SOUTHEAST1 region", "asia-northeast1-b", "other-area"),
        ("ME-WEST1 region", "europe-west4-a", "other-area"),
        ("AFRICA-SOUTH1 region", "europe-west4-a", "other-area"),
        ("SOUTHAMERICA-EAST1 region", "us-east1-d", "other-area"),
        # us-central2 is a region of its own.
        ("US-CENTRAL2 region", "us-central2-b", "same-region"),
        ("US-CENTRAL1 region", "us-central2-b", "same-area"),
        ("US-CENTRAL2 region", "us-central1-a", "same-area"),
        ("NAM4 dual-region", "us-central2-b", "same-area"),
        ("US multi-region", "us-central2-b", "multi-region"),
        # Predefined dual-regions, each half and one beside.
        ("ASIA1 dual-region", "asia-northeast1-b", "dual-region"),
        ("ASIA1 dual-region", "asia-northeast2-a", "dual-region"),
        ("ASIA1 dual-region", "asia-east1-c", "same-area"),
        ("EUR4 dual-region", "europe-north1-a", "dual-region"),
        ("EUR4 dual-region", "europe-west4-a", "dual-region"),
        ("EUR4 dual-region", "europe-west1-b", "same-area"),
        ("EUR4 dual-region", "us-central1-a", "other-area"),
        ("EUR5 dual-region", "europe-west1-b", "dual-region"),
        ("EUR5 dual-region", "europe-west2-b", "dual-region"),
        ("EUR5 dual-region", "europe-west4-b", "same-area"),
        ("EUR7 dual-region", "europe-west2-b", "dual-region"),
        ("EUR7 dual-region", "europe-west3-b", "dual-region"),
        ("EUR7 dual-region", "europe-west4-b", "same-area"),
        ("EUR8 dual-region", "europe-west3-b", "dual-region"),
        ("EUR8 dual-region", "europe-west6-b", "dual-region"),
        ("EUR8 dual-region", "europe-west4-b", "same-area"),
        ("NAM4 dual-region", "us-central1-a", "dual-region"),
        ("NAM4 dual-region", "us-east1-d", "dual-region"),
        ("NAM4 dual-region", "us-east5-a", "same-area"),
        # Configurable ones, where only the two regions count.
        ("US dual-region us-east1,us-west1", "us-east1-d", "dual-region"),
        ("US dual-region us-east1,us-west1", "us-west1-c", "dual-region"),
        ("US dual-region us-east1,us-west1", "us-central1-a", "same-area"),
        ("EU dual-region europe-west1,europe-west4", "europe-west4-b", "dual-region"),
        ("EU dual-region europe-west1,europe-west4", "europe-west2-b", "same-area"),
        ("ASIA dual-region asia-east1,asia-southeast1", "asia-east1-c", "dual-region"),
        ("ASIA dual-region asia-east1,asia-southeast1", "us-east1-d", "other-area"),
        ("CA dual-region northamerica-northeast1,northamerica-northeast2", "northamerica-northeast1-a", "dual-region"),
        ("IN dual-region asia-south1,asia-south2", "asia-south1-a", "dual-region"),
        ("DE dual-region europe-west3,europe-west10", "us-central2-b", "other-area"),
        ("AU dual-region australia-southeast1,australia-southeast2", "us-central2-b", "other-area"),
        # Two regions are a dual-region, whatever the other fields say.
        ("AU zone australia-southeast1,australia-southeast2", "australia-southeast1-a", "dual-region"),
        ("AU zone australia-southeast1,australia-southeast2", "us-central2-b", "other-area"),
        ("IN multi-region asia-south1,asia-south2", "asia-south2-a", "dual-region"),
        ("EU multi-region europe-west1,europe-west3", "europe-west4-a", "same-area"),
        ("DE planet europe-west3,europe-west10", "europe-west4-a", "same-area"),
        # Multi-regions: the United States only, the European Union only.
        ("US multi-region", "us-central1-a", "multi-region"),
        ("US multi-region", "northamerica-northeast1-a", "same-area"),
        ("US multi-region", "northamerica-south1-a", "same-area"),
        ("US multi-region", "europe-west4-a", "other-area"),
        ("EU multi-region", "europe-west4-a", "multi-region"),
        ("EU multi-region", "europe-west2-b", "same-area"),
        ("EU multi-region", "europe-west6-b", "same-area"),
        ("EU multi-region", "us-central1-a", "other-area"),
        ("ASIA multi-region", "asia-northeast1-b", "multi-region"),
        ("ASIA multi-region", "australia-southeast1-a", "other-area"),
        # Zones.
        ("US-CENTRAL1-A zone", "us-central1-a", "same-zone"),
        ("US-CENTRAL1-A zone", "us-central1-b", "same-region"),
        ("US-CENTRAL1-A zone", "us-east1-d", "same-area"),
        ("US-CENTRAL1-A zone", "europe-west4-a", "other-area"),
        # Never seen before.
        ("EUR9 dual-region", "europe-west4-a", "unknown"),
        ("US dual-region", "us-central1-a", "unknown"),
        ("EU9 multi-region", "europe-west4-a", "unknown"),
        ("EUROPE-WEST4 planet", "europe-west4-a", "unknown"),
        ("EUROPE-WEST4", "europe-west4-a", "unknown"),
        ("MARS-CENTRAL1 region", "us-central1-a", "unknown"),
        ("US-CENTRAL1 region", "mars-central1-a", "unknown"),
        ("MARS-CENTRAL1 region", "mars-central1-a", "same-region"),
        ("EU dual-region europe-west4,mars-central1", "europe-west4-a", "dual-region"),
        ("EU dual-region europe-west4,mars-central1", "europe-west1-b", "unknown"),
        ("A zone", "us-central1-a", "unknown"),
    ],
)
def test_relation_by_location(bucket: str, zone: str, expected: str) -> None:
    assert placement_relation(_placement(bucket), zone) == expected


def test_is_colocated_only_within_region() -> None:
    assert [how for how in Relation if how.is_colocated] == ["same-zone", "same-region", "dual-region"]
    assert [how.rank for how in Relation] == [0, 1, 2, 3, 4, 5, 6]
    assert is_colocated(BucketPlacement("EUR4", "dual-region"), "europe-west4-a")
    assert not is_colocated(BucketPlacement("EU", "multi-region"), "europe-west4-a")
    assert not is_colocated(BucketPlacement("EUR9", "dual-region"), "europe-west4-a")


@given(st.text(max_size=20), st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3), st.text(max_size=30))
def test_relation_never_raises(location: str, kind: str, named: list[str], zone: str) -> None:
    placement = BucketPlacement(location, kind, tuple(named))

    costs = egress_price(placement, zone)

    assert costs is None or costs.is_free or placement_relation(placement, zone) is not Relation.UNKNOWN


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("us-central2", ("US-CENTRAL2",)),
        ("us-central1", ("US-CENTRAL1", "NAM4")),
        ("europe-west4", ("EUROPE-WEST4", "EUR4")),
        ("europe-west2", ("EUROPE-WEST2", "EUR5", "EUR7")),
        ("europe-west3", ("EUROPE-WEST3", "EUR7", "EUR8")),
        ("asia-northeast1", ("ASIA-NORTHEAST1", "ASIA1")),
    ],
)
def test_best_locations_by_region(region: str, expected: tuple[str, ...]) -> None:
    assert best_locations(region) == expected
    kinds = ["region", *["dual-region"] * (len(expected) - 1)]
    assert all(
        placement_relation(BucketPlacement(location, kind), f"{region}-a").is_colocated
        for location, kind in zip(expected, kinds, strict=True)
    )


@pytest.mark.parametrize(
    ("bucket", "zone", "expected"),
    [
        ("EUROPE-WEST4 region", "europe-west4-a", "free"),
        ("EUR4 dual-region", "europe-north1-a", "free"),
        ("US-CENTRAL1-A zone", "us-central1-b", "free"),
        ("US multi-region", "us-central1-a", "$18.63 per TB ($0.02/GiB, list price of 2026-06)"),
        ("EU multi-region", "europe-west4-a", "$18.63 per TB ($0.02/GiB, list price of 2026-06)"),
        ("ASIA multi-region", "asia-northeast1-b", "$74.51 per TB ($0.08/GiB, list price of 2026-06)"),
        ("US-CENTRAL1 region", "us-central2-b", "$18.63 per TB ($0.02/GiB, list price of 2026-06)"),
        ("NORTHAMERICA-NORTHEAST1 region", "us-east1-d", "$18.63 per TB ($0.02/GiB, list price of 2026-06)"),
        ("EU multi-region", "europe-west2-b", "$18.63 per TB ($0.02/GiB, list price of 2026-06)"),
        ("ASIA-EAST1 region", "asia-northeast1-b", "$74.51 per TB ($0.08/GiB, list price of 2026-06)"),
        (
            "EUROPE-WEST4 region",
            "us-central2-b",
            "$46.57 to $74.51 per TB ($0.05 to $0.08/GiB, list price of 2026-06)",
        ),
        (
            "AUSTRALIA-SOUTHEAST1 region",
            "us-east5-a",
            "$74.51 to $139.70 per TB ($0.08 to $0.15/GiB, list price of 2026-06)",
        ),
        ("EUR9 dual-region", "europe-west4-a", "None"),
    ],
)
def test_price_per_terabyte(bucket: str, zone: str, expected: str) -> None:
    assert str(egress_price(_placement(bucket), zone)) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "$0.00"),
        (1, "less than $0.01"),
        (2**30, "$0.02"),
        (TB, "$18.63"),
        (1500 * 10**9, "$27.94"),
        (100 * TB, "$1,862.65"),
    ],
)
def test_price_of_bytes(size: int, expected: str) -> None:
    costs = egress_price(BucketPlacement("US", "multi-region"), "us-central1-a")

    assert costs is not None
    assert costs.of(size) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"us-europe": "0.05"}, "$46.57 per TB ($0.05/GiB, the price in your settings)"),
        ({"europe-us": "0.0125"}, "$11.64 per TB ($0.0125/GiB, the price in your settings)"),
        ({" US-Europe ": " 0.05 "}, "$46.57 per TB ($0.05/GiB, the price in your settings)"),
        ({"us-europe": "0"}, "free"),
        ({"us-asia": "0.01"}, "$46.57 to $74.51 per TB ($0.05 to $0.08/GiB, list price of 2026-06)"),
    ],
)
def test_own_price_overrides_list(own: dict[str, str], expected: str) -> None:
    assert str(egress_price(BucketPlacement("EUROPE-WEST4", "region"), "us-central2-b", own=own)) == expected


_AREAS = "us, europe, asia, australia, southamerica, me, africa"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"us-mars": "0.05"}, f"`us-mars` is not a pair of areas: write two of {_AREAS}, such as `us-europe`"),
        ({"us": "0.05"}, f"`us` is not a pair of areas: write two of {_AREAS}, such as `us-europe`"),
        ({"": "0.05"}, f"`` is not a pair of areas: write two of {_AREAS}, such as `us-europe`"),
        (
            {"us-europe-asia": "1"},
            f"`us-europe-asia` is not a pair of areas: write two of {_AREAS}, such as `us-europe`",
        ),
        ({"us-europe": "cheap"}, "`cheap` for `us-europe` is not a price: write dollars per GiB, such as `0.05`"),
        ({"us-europe": "-1"}, "`-1` for `us-europe` is not a price: write dollars per GiB, such as `0.05`"),
        ({"us-europe": "nan"}, "`nan` for `us-europe` is not a price: write dollars per GiB, such as `0.05`"),
        ({"us-europe": "inf"}, "`inf` for `us-europe` is not a price: write dollars per GiB, such as `0.05`"),
        ({"us-europe": ""}, "`` for `us-europe` is not a price: write dollars per GiB, such as `0.05`"),
    ],
)
def test_own_price_invalid_value_is_named(own: dict[str, str], expected: str) -> None:
    with pytest.raises(ValueError, match="is not a") as error:
        own_prices(own)

    assert str(error.value) == expected


def test_own_prices_follow_table_order() -> None:
    assert own_prices({"europe-us": "0.05", "asia-asia": "0.01"}) == {
        "us-europe": Decimal("0.05"),
        "asia-asia": Decimal("0.01"),
    }


@pytest.mark.parametrize(
    ("storage_class", "expected"),
    [
        ("STANDARD", "free"),
        ("RAPID", "free"),
        ("NEARLINE", "$9.31 per TB ($0.01/GiB, list price of 2026-06)"),
        ("COLDLINE", "$18.63 per TB ($0.02/GiB, list price of 2026-06)"),
        ("ARCHIVE", "$46.57 per TB ($0.05/GiB, list price of 2026-06)"),
        ("GLACIAL", "None"),
    ],
)
def test_retrieval_price_by_class(storage_class: str, expected: str) -> None:
    assert str(retrieval_price(storage_class)) == expected


def test_price_table_is_complete() -> None:
    table = load_locations()

    assert set(table["prices"]) == set(map("-".join, combinations_with_replacement(table["areas"], 2)))
    for found in table["prices"].values():
        low, high = Decimal(found[0]), Decimal(found[-1])
        assert 0 < low <= high <= Decimal("0.15")


def test_every_tpu_zone_has_an_area() -> None:
    zones = {zone for by_size in load_accelerators().zones.values() for zones in by_size.values() for zone in zones}

    assert {zone for zone in zones if area_of(zone.rpartition("-")[0]) is None} == set()


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [
        ("US-CENTRAL1-A zone", ("us-central1",)),
        ("US-CENTRAL1 region", ("us-central1",)),
        ("EUR4 dual-region", ("europe-north1", "europe-west4")),
        ("US dual-region us-east1,us-west1", ("us-east1", "us-west1")),
        ("US multi-region", ()),
        ("EUR9 dual-region", ()),
        ("EUROPE-WEST4 planet", ()),
    ],
)
def test_regions_within_by_location(bucket: str, expected: tuple[str, ...]) -> None:
    assert regions_within(_placement(bucket)) == expected
