"""Which zones come first for a type and some buckets, what is said of each, and how it is shown."""

from __future__ import annotations

import io
import json
from datetime import date
from decimal import Decimal

import pytest

from tpuctl.colocation import Price, Relation, price
from tpuctl.model import NodeSpec, Tier
from tpuctl.model.bucket import Bucket, Placement
from tpuctl.output.terminal import Format, Streams, Terminal
from tpuctl.output.zone_ranks import notes, show_zones
from tpuctl.preflight.fact import Absent, Fact, Known, Unknown
from tpuctl.preflight.facts import BucketFacts
from tpuctl.preflight.grants import Grant
from tpuctl.preflight.wanted import BucketUse
from tpuctl.preflight.zones import BucketFrom, Ranking, Unplaced, ZoneRank, rank

TODAY = date(2026, 7, 1)
CENTRAL, EAST, WEST, EUROPE, TOKYO = (
    *("us-central1-b", "us-east1-d", "us-west1-c"),
    *("europe-west4-a", "asia-northeast1-b"),
)
V6E = NodeSpec(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e")
OFFERS: Fact[dict[str, tuple[str, ...]]] = Known(
    {zone: ("v6e-1", "v6e-8") for zone in (TOKYO, EUROPE, CENTRAL, EAST)} | {"us-central2-b": ("v4-8",)}
)


def at(location: str, kind: str = "region", *regions: str) -> Placement:
    return Placement(location, kind, regions)


def bucket(placement: Placement, name: str = "b") -> BucketFacts:
    found = Bucket.from_api(
        {
            "name": name,
            "location": placement.location,
            "locationType": placement.kind,
            "customPlacementConfig": {"dataLocations": list(placement.data_locations)},
        }
    )
    return BucketFacts(use=BucketUse(name), bucket=Known(found))


def unread(name: str = "b") -> BucketFacts:
    return BucketFacts(use=BucketUse(name), bucket=Unknown("not allowed", "storage.buckets.get"))


@pytest.mark.parametrize(
    ("placements", "zones"),
    [
        ([], [TOKYO, EUROPE, CENTRAL, EAST]),
        ([at("US-EAST1")], [EAST, CENTRAL, TOKYO, EUROPE]),
        ([at("US-EAST1-D", "zone")], [EAST, CENTRAL, TOKYO, EUROPE]),
        ([at("NAM4", "dual-region")], [CENTRAL, EAST, TOKYO, EUROPE]),
        ([at("US", "dual-region", "US-EAST1", "US-WEST1")], [EAST, CENTRAL, TOKYO, EUROPE]),
        ([at("US", "multi-region")], [CENTRAL, EAST, TOKYO, EUROPE]),
        ([at("EU", "multi-region")], [EUROPE, CENTRAL, EAST, TOKYO]),
        ([at("EUR4", "dual-region")], [EUROPE, CENTRAL, EAST, TOKYO]),
        ([at("US-CENTRAL2")], [CENTRAL, EAST, TOKYO, EUROPE]),
        # A multi-region that holds a zone's region comes after the region itself, before the continent.
        ([at("US-EAST1"), at("US", "multi-region")], [EAST, CENTRAL, TOKYO, EUROPE]),
        # The farthest bucket counts first, then the next.
        ([at("US-CENTRAL1"), at("EUROPE-WEST4")], [CENTRAL, EUROPE, EAST, TOKYO]),
        ([at("EUROPE-WEST4"), at("EUROPE-WEST4"), at("US-EAST1")], [EUROPE, EAST, CENTRAL, TOKYO]),
        # What is never seen before says nothing, and the rest still does.
        ([at("MARS1", "planet")], [TOKYO, EUROPE, CENTRAL, EAST]),
        ([at("MARS1", "planet"), at("US-EAST1")], [EAST, CENTRAL, TOKYO, EUROPE]),
    ],
)
def test_the_nearest_zones_come_first(placements: list[Placement], zones: list[str]) -> None:
    found = rank(V6E, today=TODAY, offers=OFFERS, buckets=[bucket(each) for each in placements])

    assert [zone.zone for zone in found.zones] == zones


@pytest.mark.parametrize(
    ("spec", "offers", "zones", "offline"),
    [
        (V6E, OFFERS, [TOKYO, EUROPE, CENTRAL, EAST], None),
        (NodeSpec(accelerator_type="v6e-256", runtime_version=""), OFFERS, [], None),
        # A type of the zone's list that no table knows is as good as any.
        (NodeSpec(accelerator_type="v9-8", runtime_version=""), Known({TOKYO: ("v9-8",)}), [TOKYO], None),
        (NodeSpec(accelerator_type="v9-8", runtime_version=""), None, [], "the API was not asked"),
        # The list has a type of each size, but not of each topology.
        (
            NodeSpec(accelerator_type="v6e-32", runtime_version="", topology="2x16"),
            OFFERS,
            [TOKYO, EUROPE, CENTRAL, EAST],
            None,
        ),
        (
            NodeSpec(accelerator_type="v4-8", runtime_version=""),
            Unknown("the API is down"),
            ["us-central2-b"],
            "the API is down",
        ),
        (
            NodeSpec(accelerator_type="v4-8", runtime_version=""),
            Absent(),
            ["us-central2-b"],
            "the API knows of no zones",
        ),
        (
            NodeSpec(accelerator_type="v5p-8", runtime_version=""),
            Absent("no project `p`"),
            ["europe-west4-b", "us-central1-a", "us-east5-a", "us-east5-b", "us-east5-c", "us-south1-a"],
            "no project `p`",
        ),
    ],
)
def test_the_zones_are_those_of_the_api_else_of_the_documentation(
    spec: NodeSpec, offers: Fact[dict[str, tuple[str, ...]]] | None, zones: list[str], offline: str | None
) -> None:
    found = rank(spec, today=TODAY, offers=offers)

    assert ([zone.zone for zone in found.zones], found.offline) == (zones, offline)


def grant(zone: str = EAST, kind: str = "v6e", tier: str = "on-demand", count: int = 8, until: str = "") -> Grant:
    return Grant(zone, kind, tier, count, date.fromisoformat(until) if until else None)


@pytest.mark.parametrize(
    ("granted", "tier", "covered"),
    [
        (grant(), None, True),
        (grant(), Tier.ON_DEMAND, True),
        (grant(), Tier.SPOT, False),
        (grant(tier="preemptible"), Tier.SPOT, True),
        (grant(kind="v6e-8", count=1), None, True),
        (grant(kind="v6e-4", count=9), None, False),
        (grant(kind="v5e"), None, False),
        (grant(count=7), None, False),
        (grant(until="2026-07-01"), None, True),
        (grant(until="2026-06-30"), None, False),
        (grant(CENTRAL), None, False),
    ],
)
def test_a_grant_wins_among_zones_that_are_as_near(granted: Grant, tier: Tier | None, covered: bool) -> None:
    spec = NodeSpec(accelerator_type="v6e-8", runtime_version="", tier=tier)
    us = [bucket(at("NAM4", "dual-region"))]

    found = rank(spec, today=TODAY, offers=OFFERS, buckets=us, grants=[granted])

    east = next(zone for zone in found.zones if zone.zone == EAST)
    assert east.grant == (granted if covered else None)
    assert found.zones[0].zone == (EAST if covered else CENTRAL)
    # Free capacity far from the data is not what was asked for.
    near = rank(spec, today=TODAY, offers=OFFERS, buckets=[bucket(at("EUROPE-WEST4"))], grants=[granted])
    assert near.zones[0].zone == EUROPE


def test_a_zone_tells_all_that_is_known_of_it() -> None:
    us, dual, hidden = (
        bucket(at("US", "multi-region"), "us"),
        bucket(at("EUR4", "dual-region"), "eur"),
        unread("hidden"),
    )

    found = rank(V6E, today=TODAY, offers=Known({EUROPE: ("v6e-8",)}), buckets=[us, dual, hidden])

    far = Price(Decimal("0.05"), Decimal("0.08"), "2026-06")
    assert found == Ranking(
        "v6e-8",
        (
            ZoneRank(
                zone=EUROPE,
                buckets=(
                    BucketFrom(us.use, at("US", "multi-region"), Relation.OTHER_AREA, far),
                    BucketFrom(
                        dual.use, at("EUR4", "dual-region"), Relation.DUAL_REGION, Price(Decimal(0), Decimal(0))
                    ),
                    BucketFrom(hidden.use, None, Relation.UNKNOWN, None),
                ),
                locations=("EUROPE-WEST4", "EUR4"),
            ),
        ),
        (Unplaced(hidden.use, "not allowed", "storage.buckets.get"),),
    )
    assert (found.zones[0].worst, found.zones[0].span) == (Relation.UNKNOWN, (Decimal(0), Decimal("74.51")))
    assert not found.is_any_colocated


def test_a_bucket_is_placed_by_its_layout_where_it_may_not_be_read_itself() -> None:
    seen = BucketFacts(use=BucketUse("b"), bucket=Unknown("not allowed", "p"), layout=Known(at("US-EAST1")))

    found = rank(V6E, today=TODAY, offers=OFFERS, buckets=[seen])

    assert (found.zones[0].zone, found.zones[0].worst, found.unplaced) == (EAST, Relation.SAME_REGION, ())


def test_own_prices_count_and_wrong_ones_are_refused() -> None:
    far = [bucket(at("US-EAST1"))]
    own = rank(V6E, today=TODAY, offers=Known({EUROPE: ("v6e-8",)}), buckets=far, egress_prices={"us-europe": "0.01"})

    assert own.zones[0].span == (Decimal("9.31"), Decimal("9.31"))
    with pytest.raises(ValueError, match="`us-mars` is not a pair of areas"):
        rank(V6E, today=TODAY, offers=OFFERS, buckets=far, egress_prices={"us-mars": "0.01"})


def zone(name: str, placement: Placement | None = None, **fields: object) -> ZoneRank:
    seen = (
        ()
        if placement is None
        else (BucketFrom(BucketUse("b"), placement, Relation.SAME_AREA, price(placement, name)),)
    )
    return ZoneRank(zone=name, buckets=seen, **fields)  # type: ignore[arg-type]  # a row of a table


def written(
    ranking: Ranking, form: Format = Format.TABLE, *, person: bool = False, sandbox: bool = False
) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(Streams(io.StringIO(), out, err, person, person, person, 130), {"NO_COLOR": "1"})
    show_zones(terminal, ranking, form, sandbox=sandbox)
    return out.getvalue(), err.getvalue()


def test_a_person_sees_a_table_and_what_else_there_is_to_say() -> None:
    offers = Known({CENTRAL: ("v6e-8",), "us-east4-a": ("v6e-8",), EUROPE: ("v6e-8",)})
    found = rank(V6E, today=TODAY, offers=offers, buckets=[bucket(at("US-WEST1"))], grants=[grant(CENTRAL)])

    assert written(found, person=True) == (
        "ZONE            BUCKETS                     TO READ 1 TB                      NOTES\n"
        "us-central1-b   same continent (US-WEST1)   $18.63 (list of 2026-06)          grant: 8 chips of v6e on-demand in us-central1-b\n"
        "us-east4-a      same continent (US-WEST1)   $18.63 (list of 2026-06)          single tenant: only by agreement with Google\n"
        "europe-west4-a  other continent (US-WEST1)  $46.57 to $74.51 (list of 2026-06)\n",
        "no zone with v6e-8 has all of this beside it; a bucket would be in US-CENTRAL1 or NAM4 for us-central1, "
        "US-EAST4 for us-east4, EUROPE-WEST4 or EUR4 for europe-west4\n",
    )
