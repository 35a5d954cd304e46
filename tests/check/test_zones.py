"""Ranking of zones for a type and some buckets, its notes and its output."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from tpuctl.check.colocation import EgressPrice, Relation
from tpuctl.check.facts import Absent, BucketFacts, BucketUse, Fact, Known, ProjectResources, Unknown
from tpuctl.check.report_rendering import ranking_view
from tpuctl.check.zone_ranking import BucketProximity, UnplacedBucket, ZoneQuota, ZoneRank, ZoneRanking, rank_zones
from tpuctl.decoding import decoder_of
from tpuctl.models.bucket import Bucket, BucketPlacement
from tpuctl.models.grants import Grant
from tpuctl.models.node import Node, Tier
from tpuctl.models.project import QuotaLimit
from tpuctl.models.spec import NodeSpec
from tpuctl.output.terminal import OutputFormat, StandardStreams, Terminal, show_view
from tpuctl.prices import Price

TODAY = date(2026, 7, 1)
UNPRICED = Price(None, is_about=False, as_of="2026-08")
CENTRAL, EAST, WEST, EUROPE, TOKYO = (
    *("us-central1-b", "us-east1-d", "us-west1-c"),
    *("europe-west4-a", "asia-northeast1-b"),
)
V6E = NodeSpec(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e")
OFFERS: Fact[dict[str, tuple[str, ...]]] = Known(
    dict.fromkeys((TOKYO, EUROPE, CENTRAL, EAST), ("v6e-1", "v6e-8")) | {"us-central2-b": ("v4-8",)}
)
NOTHING_HELD = Known(ProjectResources())


def at(location: str, kind: str = "region", *regions: str) -> BucketPlacement:
    return BucketPlacement(location, kind, regions)


def bucket(placement: BucketPlacement, name: str = "b") -> BucketFacts:
    found = decoder_of(Bucket)(
        {
            "name": name,
            "location": placement.location,
            "locationType": placement.kind,
            "customPlacementConfig": {"dataLocations": list(placement.data_locations)},
        }
    )
    return BucketFacts(use=BucketUse(name), bucket=Known(found))


def ranked(
    spec: NodeSpec,
    *,
    grants: tuple[Grant, ...] = (),
    egress_prices: Mapping[str, str] | None = None,
    offers: Fact[Mapping[str, tuple[str, ...]]] | None = OFFERS,
    buckets: Sequence[BucketFacts] = (),
    zones: Sequence[str] = (),
    quotas: Fact[tuple[QuotaLimit, ...]] | None = None,
    resources: Fact[ProjectResources] | None = NOTHING_HELD,
) -> ZoneRanking:
    return rank_zones(
        spec,
        project="p",
        today=TODAY,
        zones=zones,
        offers=offers,
        buckets=buckets,
        quotas=quotas,
        resources=resources,
        grants=grants,
        egress_prices=egress_prices,
    )


def unread(name: str = "b") -> BucketFacts:
    return BucketFacts(use=BucketUse(name), bucket=Unknown("not allowed", "storage.buckets.get"))


@pytest.mark.parametrize(
    ("placements", "zones"),
    [
        ([], [TOKYO, EUROPE, CENTRAL, EAST]),
        ([at("US-EAST1")], [EAST, CENTRAL, EUROPE, TOKYO]),
        ([at("US-EAST1-D", "zone")], [EAST, CENTRAL, EUROPE, TOKYO]),
        ([at("NAM4", "dual-region")], [CENTRAL, EAST, EUROPE, TOKYO]),
        ([at("US", "dual-region", "US-EAST1", "US-WEST1")], [EAST, CENTRAL, EUROPE, TOKYO]),
        ([at("US", "multi-region")], [CENTRAL, EAST, EUROPE, TOKYO]),
        ([at("EU", "multi-region")], [EUROPE, CENTRAL, EAST, TOKYO]),
        ([at("EUR4", "dual-region")], [EUROPE, CENTRAL, EAST, TOKYO]),
        ([at("US-CENTRAL2")], [CENTRAL, EAST, EUROPE, TOKYO]),
        # A multi-region that holds a zone's region comes after the region itself, before the continent.
        ([at("US-EAST1"), at("US", "multi-region")], [EAST, CENTRAL, EUROPE, TOKYO]),
        # The farthest bucket counts first, then the next.
        ([at("US-CENTRAL1"), at("EUROPE-WEST4")], [EUROPE, CENTRAL, EAST, TOKYO]),
        ([at("EUROPE-WEST4"), at("EUROPE-WEST4"), at("US-EAST1")], [EUROPE, EAST, CENTRAL, TOKYO]),
        # What is never seen before says nothing, and the rest still does.
        ([at("MARS1", "planet")], [TOKYO, EUROPE, CENTRAL, EAST]),
        ([at("MARS1", "planet"), at("US-EAST1")], [EAST, CENTRAL, EUROPE, TOKYO]),
    ],
)
def test_ranking_nearest_zones_first(placements: list[BucketPlacement], zones: list[str]) -> None:
    found = ranked(V6E, buckets=[bucket(each) for each in placements])

    assert [zone.zone for zone in found.zones] == zones


@pytest.mark.parametrize(
    ("spec", "offers", "zones", "offline"),
    [
        (V6E, OFFERS, [TOKYO, EUROPE, CENTRAL, EAST], None),
        (NodeSpec(accelerator_type="v6e-256", runtime_version=""), OFFERS, [], None),
        # A type of the zone's list that no table knows is as good as any.
        (NodeSpec(accelerator_type="v9-8", runtime_version=""), Known({TOKYO: ("v9-8",)}), [TOKYO], None),
        (NodeSpec(accelerator_type="v9-8", runtime_version=""), None, [], "the API was not called"),
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
            "the API returned no zones",
        ),
        (
            NodeSpec(accelerator_type="v5p-8", runtime_version=""),
            Absent("no project `p`"),
            ["europe-west4-b", "us-central1-a", "us-east5-a", "us-east5-b", "us-east5-c", "us-south1-a"],
            "no project `p`",
        ),
    ],
)
def test_ranking_zones_from_api_else_documentation(
    spec: NodeSpec, offers: Fact[dict[str, tuple[str, ...]]] | None, zones: list[str], offline: str | None
) -> None:
    found = ranked(spec, offers=offers)

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
def test_ranking_prefers_granted_zones(granted: Grant, tier: Tier | None, covered: bool) -> None:
    spec = NodeSpec(accelerator_type="v6e-8", runtime_version="", tier=tier)
    us = [bucket(at("NAM4", "dual-region"))]

    found = ranked(spec, grants=(granted,), buckets=us)

    east = next(zone for zone in found.zones if zone.zone == EAST)
    assert east.grants == ((granted,) if covered else ())
    assert found.zones[0].zone == (EAST if covered else CENTRAL)
    # Free capacity far from the data is not what was asked for.
    near = ranked(
        spec,
        grants=(granted,),
        buckets=[bucket(at("EUROPE-WEST4"))],
    )
    assert near.zones[0].zone == EUROPE


def limit(value: int | None, *, zone: str = "", region: str = "", preemptible: bool = False) -> QuotaLimit:
    name = f"TPUV6E{'Preemptible' if preemptible else ''}PerProjectPer{'Zone' if zone else 'Region'}ForTPUAPI"
    places = {"zone": zone} if zone else {"region": region} if region else {}
    return QuotaLimit("", name, f"1/{{project}}/{{{'zone' if zone else 'region'}}}", value, places)


def node(zone: str = EAST, kind: str = "v6e-8", **fields: Any) -> Node:
    raw = {"name": f"projects/p/locations/{zone}/nodes/n", "acceleratorType": kind, "state": "READY"}
    return Node.from_api(raw | fields)


DEAD_SPOT = node(state="PREEMPTED", schedulingConfig={"spot": True})


@pytest.mark.parametrize(
    ("quotas", "resources", "quota", "is_first"),
    [
        ([], ProjectResources(), None, True),
        ([limit(16)], ProjectResources(), ZoneQuota(16, 16, 8, "chips"), True),
        ([limit(16)], ProjectResources((node(),)), ZoneQuota(16, 8, 8, "chips"), True),
        ([limit(16)], ProjectResources((node(), node())), ZoneQuota(16, 0, 8, "chips"), False),
        ([limit(16)], ProjectResources((node(), node("us-east1-b"))), ZoneQuota(16, 0, 8, "chips"), False),
        ([limit(16)], ProjectResources((node(), node(CENTRAL), node(CENTRAL))), ZoneQuota(16, 8, 8, "chips"), True),
        ([limit(16)], ProjectResources((node(kind="v4-8"), DEAD_SPOT)), ZoneQuota(16, 16, 8, "chips"), True),
        # Limits of the zone and of its region both count: the tighter one is reported.
        (
            [limit(64, region="us-east1"), limit(8, zone=EAST)],
            ProjectResources((node(),)),
            ZoneQuota(8, 0, 8, "chips"),
            False,
        ),
        (
            [limit(8, region="us-east1"), limit(64, zone=EAST)],
            ProjectResources((node(),)),
            ZoneQuota(8, 0, 8, "chips"),
            False,
        ),
        ([limit(64), limit(4, region="us-east1")], ProjectResources(), ZoneQuota(4, 4, 8, "chips"), False),
        ([limit(64), limit(0, region="us-east1")], ProjectResources(), ZoneQuota(0, 0, 8, "chips"), False),
        ([limit(None)], ProjectResources(), ZoneQuota(None, None, 8, "chips"), True),
        ([limit(16)], ProjectResources(unreachable=("us-east1-b",)), ZoneQuota(16, None, 8, "chips"), False),
        (
            [limit(0, region="us-east1")],
            ProjectResources(unreachable=("us-east1-b",)),
            ZoneQuota(0, None, 8, "chips"),
            False,
        ),
        ([limit(0, preemptible=True)], ProjectResources(), None, True),
        ([limit(16)], None, ZoneQuota(16, None, 8, "chips"), True),
    ],
)
def test_ranking_prefers_sufficient_quota(
    quotas: list[QuotaLimit], resources: ProjectResources | None, quota: ZoneQuota | None, is_first: bool
) -> None:
    offers = Known({EAST: ("v6e-8",), "us-west9-z": ("v6e-8",)})
    known = Known(resources) if resources else Unknown("the API is down")

    found = ranked(V6E, offers=offers, quotas=Known(tuple(quotas)), resources=known)

    east = next(zone for zone in found.zones if zone.zone == EAST)
    assert (east.quota, found.zones[0].zone == EAST) == (quota, is_first)


@pytest.mark.parametrize(
    ("resources", "is_covered"),
    [
        (Known(ProjectResources()), True),
        (Known(ProjectResources((node(), node("us-east1-b"), node(kind="v4-8"), DEAD_SPOT))), True),
        (Known(ProjectResources((node(), node()))), False),
        (Known(ProjectResources(unreachable=(CENTRAL,))), True),
        # What cannot be read is never taken for free.
        (Known(ProjectResources(unreachable=(EAST,))), False),
        (Unknown("the API is down"), False),
        (None, False),
    ],
)
def test_ranking_counts_known_remaining_grant(resources: Fact[ProjectResources] | None, is_covered: bool) -> None:
    given = grant(count=16)

    found = ranked(V6E, grants=(given,), resources=resources)

    assert next(zone for zone in found.zones if zone.zone == EAST).grants == ((given,) if is_covered else ())


def test_ranking_zero_quota_is_last() -> None:
    near, none = [bucket(at("NAM4", "dual-region"))], Known((limit(64), limit(0, region="us-central1")))

    found = ranked(V6E, grants=(grant(CENTRAL),), buckets=near, quotas=none)

    assert [zone.zone for zone in found.zones] == [EAST, CENTRAL, EUROPE, TOKYO]


def test_ranking_limited_to_named_zones() -> None:
    found = ranked(V6E, zones=[EAST, TOKYO, "us-central2-b"])

    assert [zone.zone for zone in found.zones] == [TOKYO, EAST]


def test_zone_rank_has_all_facts() -> None:
    us, dual, hidden = (
        bucket(at("US", "multi-region"), "us"),
        bucket(at("EUR4", "dual-region"), "eur"),
        unread("hidden"),
    )

    found = ranked(V6E, offers=Known({EUROPE: ("v6e-8",)}), buckets=[us, dual, hidden])

    far = EgressPrice(Decimal("0.05"), Decimal("0.08"), "2026-06")
    assert found == ZoneRanking(
        "v6e-8",
        (
            ZoneRank(
                zone=EUROPE,
                buckets=(
                    BucketProximity(us.use, at("US", "multi-region"), Relation.OTHER_AREA, far),
                    BucketProximity(
                        dual.use, at("EUR4", "dual-region"), Relation.DUAL_REGION, EgressPrice(Decimal(0), Decimal(0))
                    ),
                    BucketProximity(hidden.use, None, Relation.UNKNOWN, None),
                ),
                locations=("EUROPE-WEST4", "EUR4"),
                price=Price(Decimal("23.76"), is_about=False, as_of="2026-08"),
            ),
        ),
        (UnplacedBucket(hidden.use, "not allowed", "storage.buckets.get"),),
    )
    assert (found.zones[0].worst, found.zones[0].span) == (Relation.UNKNOWN, (Decimal(0), Decimal("74.51")))
    assert found.zones[0].is_apart


def test_ranking_uses_layout_of_unreadable_bucket() -> None:
    seen = BucketFacts(use=BucketUse("b"), bucket=Unknown("not allowed", "p"), layout=Known(at("US-EAST1")))

    found = ranked(V6E, buckets=[seen])

    assert (found.zones[0].zone, found.zones[0].worst, found.unplaced) == (EAST, Relation.SAME_REGION, ())


def test_ranking_own_prices_apply() -> None:
    far = [bucket(at("US-EAST1"))]
    own = ranked(
        V6E,
        offers=Known({EUROPE: ("v6e-8",)}),
        buckets=far,
        egress_prices={"us-europe": "0.01"},
    )

    assert own.zones[0].span == (Decimal("9.31"), Decimal("9.31"))
    with pytest.raises(ValueError, match="`us-mars` is not a pair of areas"):
        ranked(V6E, egress_prices={"us-mars": "0.01"}, buckets=far)


def written(
    ranking: ZoneRanking,
    form: OutputFormat = OutputFormat.TABLE,
    *,
    person: bool = False,
    sandbox: bool = False,
    width: int = 130,
) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(StandardStreams(io.StringIO(), out, err, person, person, person, width), {"NO_COLOR": "1"})
    show_view(ranking_view(ranking), terminal, form, sandbox=sandbox)
    return out.getvalue(), err.getvalue()


HEADER = "zone\tbuckets\tto-read-1-tb\tper-hour\tnotes\n"


@pytest.mark.parametrize("person", [True, False], ids=["terminal", "pipe"])
def test_ranking_as_text_is_table_with_notes(person: bool) -> None:
    offers = Known({CENTRAL: ("v6e-8",), "us-east4-a": ("v6e-8",), EUROPE: ("v6e-8",)})
    found = ranked(
        V6E,
        grants=(grant(CENTRAL),),
        offers=offers,
        buckets=[bucket(at("US-WEST1"))],
    )

    out, err = written(found, person=person, width=150)

    assert out == (
        "ZONE            BUCKETS                     TO READ 1 TB                        PER HOUR  NOTES\n"
        "us-central1-b   same continent (US-WEST1)   $18.63 (list of 2026-06)            $21.60/h  "
        "grant: 8 chips of v6e on-demand in us-central1-b\n"
        "us-east4-a      same continent (US-WEST1)   $18.63 (list of 2026-06)            ?         "
        "single tenant: only by agreement with Google\n"
        "europe-west4-a  other continent (US-WEST1)  $46.57 to $74.51 (list of 2026-06)  $23.76/h\n"
    )
    assert err == (
        "no zone with v6e-8 is near every bucket; co-located buckets would be in US-CENTRAL1 or NAM4 for\n"
        "  us-central1, US-EAST4 for us-east4, EUROPE-WEST4 or EUR4 for europe-west4\n"
    )


def test_ranking_narrow_terminal_breaks_no_word() -> None:
    """Notes go below their row; if that does not fit either, each zone has its own lines."""
    found = ranked(V6E, grants=(grant(EAST),), offers=Known({EAST: ("v6e-8",)}), buckets=[bucket(at("US-WEST1"))])

    assert written(found, person=True, width=90)[0] == (
        "ZONE        BUCKETS                    TO READ 1 TB              PER HOUR\n"
        "us-east1-d  same continent (US-WEST1)  $18.63 (list of 2026-06)  $21.60/h\n"
        "  grant: 8 chips of v6e on-demand in us-east1-d\n"
    )
    assert written(found, person=True, width=40)[0] == (
        "us-east1-d\n"
        "  same continent (US-WEST1)\n"
        "  to read 1 TB: $18.63 (list of 2026-06)\n"
        "  per hour: $21.60/h\n"
        "  grant: 8 chips of v6e on-demand in\n"
        "    us-east1-d\n"
    )


@pytest.mark.parametrize(
    ("uses", "text", "tsv"),
    [
        (("a", "a/x"), "same region (US-EAST1)", "gs://a same region (US-EAST1), gs://a/x same region (US-EAST1)"),
        (
            ("a", "a/x", "eu"),
            "gs://a same region (US-EAST1), gs://eu other continent (EUROPE-WEST4)",
            "gs://a same region (US-EAST1), gs://a/x same region (US-EAST1), gs://eu other continent (EUROPE-WEST4)",
        ),
        (
            ("eu", "b", "a", "a/x"),
            "2 co-located, 1 other continent",
            (
                "gs://eu other continent (EUROPE-WEST4), gs://b same region (US-EAST1), gs://a same region (US-EAST1), "
                "gs://a/x same region (US-EAST1)"
            ),
        ),
    ],
)
def test_ranking_many_buckets_are_counted(uses: tuple[str, ...], text: str, tsv: str) -> None:
    """Several locations in one bucket count once."""
    seen = [
        BucketFacts(
            use=BucketUse(use.partition("/")[0], prefix=use.partition("/")[2]),
            bucket=bucket(at("EUROPE-WEST4" if use == "eu" else "US-EAST1")).bucket,
        )
        for use in uses
    ]
    found = ranked(V6E, offers=Known({EAST: ("v6e-8",)}), buckets=seen)

    assert text in written(found, width=300)[0].splitlines()[1].split("  ")
    assert written(found, OutputFormat.TSV)[0].splitlines()[1].split("\t")[1] == tsv


def test_ranking_as_tsv_has_header_and_tabs() -> None:
    far, own = at("US-EAST1"), {"us-europe": "0.01"}
    offers = Known({EUROPE: ("v6e-8",)})
    found = ranked(V6E, egress_prices=own, offers=offers, buckets=[bucket(far), unread("c")])

    out, err = written(found, OutputFormat.TSV)

    assert out == (
        f"{HEADER}{EUROPE}\tgs://b other continent (US-EAST1), gs://c unknown\t$9.31 or more (your settings)\t$23.76/h\t\n"
    )
    assert err == (
        "`gs://c` is ignored: not allowed; reading it takes the permission `storage.buckets.get`\n"
        "no zone with v6e-8 is near every bucket; co-located buckets would be in EUROPE-WEST4 or EUR4 for europe-west4\n"
    )
    assert written(found, OutputFormat.NAME) == (f"{EUROPE}\n", "")


def with_quota(quota: ZoneQuota) -> ZoneRanking:
    return ZoneRanking("v4-8", (ZoneRank(zone="z-a", quota=quota, price=UNPRICED),))


@pytest.mark.parametrize(
    ("ranking", "out", "err"),
    [
        (
            ZoneRanking("v9-8", (), (), "the API is down"),
            "",
            (
                "the zones are from the documentation, and may be outdated: the API is down\n"
                "no known zone offers v9-8; `tpuctl types` lists all types\n"
            ),
        ),
        (ZoneRanking("v4-8", (ZoneRank(zone="z-a", price=UNPRICED),)), "z-a\t\t\t?\t\n", ""),
        (
            ZoneRanking(
                "v4-8",
                (
                    ZoneRank(
                        zone="z-a",
                        buckets=(BucketProximity(BucketUse("b"), None, Relation.UNKNOWN, None),),
                        price=UNPRICED,
                    ),
                ),
            ),
            "z-a\tunknown\tunknown\t?\t\n",
            "",
        ),
        (
            ZoneRanking(
                "v4-8", (ZoneRank(zone="z-a", quota=ZoneQuota(0, 0, 8, "chips"), single_tenant=True, price=UNPRICED),)
            ),
            "z-a\t\t\t?\tthe quota is 0; single tenant: only by agreement with Google\n",
            "",
        ),
        (with_quota(ZoneQuota(32, 8, 8, "cores")), "z-a\t\t\t?\t8 of 32 cores of quota left\n", ""),
        (with_quota(ZoneQuota(32, 0, 8, "cores")), "z-a\t\t\t?\t0 of 32 cores of quota left, 8 needed\n", ""),
        (with_quota(ZoneQuota(32, None, 8, "cores")), "z-a\t\t\t?\tquota of 32 cores\n", ""),
        (with_quota(ZoneQuota(4, None, 8, "cores")), "z-a\t\t\t?\tquota of 4 cores, 8 needed\n", ""),
        (with_quota(ZoneQuota(None, None, 8, "cores")), "z-a\t\t\t?\t\n", ""),
    ],
)
def test_ranking_missing_values_are_text(ranking: ZoneRanking, out: str, err: str) -> None:
    assert written(ranking, OutputFormat.TSV) == (HEADER + out, err)


def test_ranking_json_has_everything() -> None:
    found = ranked(
        V6E,
        offers=Known({EUROPE: ("v6e-8",)}),
        buckets=[bucket(at("US", "multi-region"), "us"), unread("hidden")],
        grants=(grant(EUROPE),),
    )

    out, err = written(found, OutputFormat.JSON, sandbox=True)

    assert err == ""
    assert json.loads(out) == {
        "schemaVersion": 1,
        "acceleratorType": "v6e-8",
        "zones": [
            {
                "zone": EUROPE,
                "region": "europe-west4",
                "relation": "unknown",
                "pricePerTBLow": 46.57,
                "pricePerTBHigh": 74.51,
                "nodePrice": {"perHour": 23.76, "isAbout": False, "asOf": "2026-08"},
                "singleTenant": False,
                "grants": ["8 chips of v6e on-demand in europe-west4-a"],
                "quotaLimit": None,
                "quotaLeft": None,
                "quotaSuffices": None,
                "coLocated": ["EUROPE-WEST4", "EUR4"],
                "buckets": [
                    {
                        "bucket": "gs://us",
                        "location": "US",
                        "relation": "other-area",
                        "pricePerTBLow": 46.57,
                        "pricePerTBHigh": 74.51,
                        "priceDate": "2026-06",
                    },
                    {
                        "bucket": "gs://hidden",
                        "location": None,
                        "relation": "unknown",
                        "pricePerTBLow": None,
                        "pricePerTBHigh": None,
                        "priceDate": None,
                    },
                ],
            }
        ],
        "unplaced": [{"bucket": "gs://hidden", "reason": "not allowed", "permission": "storage.buckets.get"}],
        "offline": None,
        "sandbox": True,
    }
