"""The order of zones, and what the journal remembers of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tpuctl.check.facts import BucketFacts, BucketUse, Known
from tpuctl.check.zone_ranking import rank_zones
from tpuctl.decoding import decoder_of
from tpuctl.models.bucket import Bucket
from tpuctl.models.project import QuotaLimit
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.nodes.journal import Journal
from tpuctl.nodes.past import ZoneMemory
from tpuctl.nodes.zone_order import order_zones
from tpuctl.prices import Price, hourly_price

AT = datetime(2026, 1, 2, tzinfo=UTC)
A, B, C, FAR = "us-central1-a", "us-central1-b", "us-central1-c", "europe-west4-a"
SPEC = NodeSpec(accelerator_type="v6e-8", runtime_version="img")


def at(minutes: int) -> datetime:
    return AT + timedelta(minutes=minutes)


def costs(**dollars: str | None) -> dict[str, Price]:
    return {
        zone: Price(Decimal(text) if text else None, is_about=True, as_of="2026-08")
        for zone, text in zip((A, B, C), dollars.values(), strict=False)
    }


def bucket(location: str) -> BucketFacts:
    found = decoder_of(Bucket)({"name": "b", "location": location, "locationType": "region"})
    return BucketFacts(use=BucketUse("b"), bucket=Known(found))


def no_quota(region: str) -> Known[tuple[QuotaLimit, ...]]:
    name, scope = "TPUV6EPerProjectPerRegionForTPUAPI", "1/{project}/{region}"
    return Known((QuotaLimit("", name, scope, 64), QuotaLimit("", name, scope, 0, {"region": region})))


NO_PRICES: dict[str, Price] = {}
NO_MEMORY: dict[str, ZoneMemory] = {}


@pytest.mark.parametrize(
    ("zones", "facts", "prices", "memories", "order"),
    [
        pytest.param((C, A, B), {}, NO_PRICES, NO_MEMORY, (A, B, C), id="name"),
        pytest.param((), {}, NO_PRICES, NO_MEMORY, (), id="none"),
        pytest.param(
            (A, FAR), {"buckets": [bucket("EUROPE-WEST4")]}, costs(a="1"), {A: ZoneMemory(at(9))}, (FAR, A),
            id="bucket-before-price-and-memory",
        ),
        pytest.param(
            (A, FAR), {"quotas": no_quota("europe-west4")}, {FAR: Price(Decimal(1), is_about=True, as_of="")},
            NO_MEMORY, (A, FAR),
            id="quota-of-0-after-all-others",
        ),
        pytest.param((A, B, C), {}, costs(a="3", b="1", c="2"), NO_MEMORY, (B, C, A), id="price"),
        pytest.param((A, B, C), {}, costs(a=None, b="9", c="2"), NO_MEMORY, (C, B, A), id="unknown-price-last"),
        pytest.param((A, B), {}, costs(a="2"), NO_MEMORY, (A, B), id="missing-price-last"),
        pytest.param(
            (A, B), {}, costs(a="1", b="2"), {B: ZoneMemory(at(9)), A: ZoneMemory(None, at(9))}, (A, B),
            id="price-before-memory",
        ),
        pytest.param((A, B, C), {}, costs(a="1", b="1", c="1"), {C: ZoneMemory(at(1))}, (C, A, B), id="success-first"),
        pytest.param(
            (A, B, C), {}, NO_PRICES, {A: ZoneMemory(at(1)), B: ZoneMemory(at(2))}, (B, A, C),
            id="last-success-first",
        ),
        pytest.param((A, B, C), {}, NO_PRICES, {A: ZoneMemory(None, at(1))}, (B, C, A), id="stock-out-last"),
        pytest.param(
            (A, B, C), {}, NO_PRICES, {A: ZoneMemory(None, at(2)), B: ZoneMemory(None, at(1))}, (C, B, A),
            id="last-stock-out-last",
        ),
        pytest.param(
            (A, B), {}, NO_PRICES, {A: ZoneMemory(at(1), at(2))}, (B, A), id="stock-out-after-success-counts"
        ),
        pytest.param(
            (A, B), {}, NO_PRICES, {B: ZoneMemory(at(2), at(1))}, (B, A), id="success-after-stock-out-counts"
        ),
        pytest.param((A, B), {}, NO_PRICES, {B: ZoneMemory(at(1), at(1))}, (B, A), id="both-at-once-is-a-success"),
        pytest.param((A, B), {}, NO_PRICES, {B: ZoneMemory()}, (A, B), id="empty-memory-says-nothing"),
    ],
)  # fmt: skip
def test_zones_are_ordered_by_data_price_and_memory(
    zones: tuple[str, ...],
    facts: Mapping[str, Any],
    prices: Mapping[str, Price],
    memories: Mapping[str, ZoneMemory],
    order: tuple[str, ...],
) -> None:
    offers = Known(dict.fromkeys(zones, ("v6e-8",)))
    ranking = rank_zones(SPEC, project="p", today=date(2026, 1, 1), offers=offers, **facts)

    assert order_zones(ranking.zones, prices, memories) == order


def test_cheapest_region_comes_first_by_the_price_list() -> None:
    zones = ("asia-northeast1-b", "us-east5-a", "us-central1-b", "us-west9-z")
    offers = Known(dict.fromkeys(zones, ("v6e-8",)))
    ranking = rank_zones(SPEC, project="p", today=date(2026, 1, 1), offers=offers)

    prices = {zone: hourly_price("v6e-8", zone, "spot") for zone in zones}

    assert order_zones(ranking.zones, prices, {}) == ("us-central1-b", "asia-northeast1-b", "us-east5-a", "us-west9-z")


def test_memories_of_several_nodes_are_merged_by_zone(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for zone, node, event, error, minutes in (
        (A, "one", "usable", None, 1),
        (A, "two", "note", "no_capacity", 3),
        (A, "three", "usable", None, 2),
        (B, "one", "note", "no_capacity", 4),
        (C, "one", "note", "quota", 5),
    ):
        name = NodeName("p", zone, node)
        journal.append(name, "create", AT, spec=SPEC.to_json())
        journal.append(name, event, at(minutes), error=error)

    assert journal.zone_memories("p", "v6e-8", None) == {
        A: ZoneMemory(at(2), at(3)),
        B: ZoneMemory(None, at(4)),
        C: ZoneMemory(),
    }
    assert journal.zone_memories("p", "v6e-4", None) == {}
    assert Journal(tmp_path / "none").zone_memories("p", "v6e-8", None) == {}
