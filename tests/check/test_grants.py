"""Grants: parsing the settings, and their coverage."""

from __future__ import annotations

from datetime import date

import pytest

from tests.check.offer_facts import node, request, wanted
from tpuctl.accelerators import parse_accelerator_type as parse_type
from tpuctl.check.facts import ProjectResources
from tpuctl.check.quotas import held_capacity
from tpuctl.models.grants import GRANT_TIERS, Grant
from tpuctl.models.node import Tier

WRITTEN = {"zone": "us-central2-b", "type": "v4", "tier": "on-demand", "count": "32"}
DAY = date(2026, 6, 30)


@pytest.mark.parametrize(
    ("record", "grant", "chips", "words"),
    [
        (
            WRITTEN,
            Grant("us-central2-b", "v4", "on-demand", 32, None),
            32,
            "32 chips of v4 on-demand in us-central2-b",
        ),
        (
            {"zone": "us-central1-f", "type": "v2-8", "tier": "on-demand", "count": "5", "until": "2026-06-30"},
            Grant("us-central1-f", "v2-8", "on-demand", 5, DAY),
            20,
            "5 v2-8 on-demand in us-central1-f until 2026-06-30",
        ),
        (
            {**WRITTEN, "zone": "europe-west4-b", "type": "v5litepod", "tier": "spot", "until": ""},
            Grant("europe-west4-b", "v5e", "spot", 32, None),
            32,
            "32 chips of v5e spot in europe-west4-b",
        ),
    ],
)
def test_grant_counts_chips_or_nodes(record: dict[str, str], grant: Grant, chips: int, words: str) -> None:
    assert (Grant.parse(record), Grant.parse(record).chips, str(Grant.parse(record))) == (grant, chips, words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zone": "us-central2"}, "`zone`: `us-central2` is a region, not a zone"),
        ({"zone": "!"}, "`zone`: `!` is not a zone"),
        ({"type": "cpu"}, "`type` is `cpu`: a generation (v2, v3, v4, v5e, v5p, v6e) or a type like v2-8"),
        ({"type": "v4-9"}, "`type` is `v4-9`: did you mean `v4-8`?"),
        (
            {"tier": "reserved"},
            "`tier` is `reserved`: it must be one of on-demand, spot, preemptible",
        ),
        (
            {"tier": "preemptable"},
            "`tier` is `preemptable`: it must be one of on-demand, spot, preemptible; did you mean `preemptible`?",
        ),
        ({"count": "0"}, "`count` is `0`: it must be a whole number, 1 or more"),
        ({"count": "-1"}, "`count` is `-1`: it must be a whole number, 1 or more"),
        ({"count": "many"}, "`count` is `many`: it must be a whole number, 1 or more"),
        ({"until": "31.12.2026"}, "`until` is `31.12.2026`: it must be a day like 2026-12-31"),
        ({"until": "2026-02-30"}, "`until` is `2026-02-30`: it must be a day like 2026-12-31"),
    ],
)
def test_grant_parse_invalid_value_is_explained(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Grant.parse({**WRITTEN, **change})

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("grant", "accelerator_type", "tier", "today", "expected"),
    [
        ("v4", "v4-8", None, DAY, (True, True, False)),
        ("v4", "v4-8", Tier.SPOT, DAY, (True, False, False)),
        ("v4", "v2-8", Tier.ON_DEMAND, DAY, (False, True, False)),
        ("v4-8", "v4-16", Tier.RESERVED, date(2026, 7, 1), (False, False, True)),
        ("v4-8", "v4-8", Tier.ON_DEMAND, date(2026, 6, 29), (True, True, False)),
    ],
)
def test_grant_matches_type_and_tier(
    grant: str, accelerator_type: str, tier: Tier | None, today: date, expected: tuple[bool, bool, bool]
) -> None:
    given = Grant("us-central2-b", grant, "on-demand", 1, DAY)

    assert (given.is_of_type(parse_type(accelerator_type)), given.is_of_tier(tier), given.has_ended(today)) == expected


def test_pool_of_spot_and_preemptible_is_one() -> None:
    given = [Grant("us-central2-b", "v4", tier, 1, None) for tier in GRANT_TIERS]

    assert [[grant.is_of_tier(tier) for tier in GRANT_TIERS] for grant in given] == [
        [True, False, False],
        [False, True, True],
        [False, True, True],
    ]


def test_holdings_count_requests_and_other_nodes() -> None:
    several = {"node": {"acceleratorType": "v4-8"}, "multisliceParams": {"nodeCount": 3, "nodeIdPrefix": "n"}}
    single = {"node": {"acceleratorType": "v5litepod-8", "schedulingConfig": {"preemptible": True}}, "nodeId": "one"}
    owner = "projects/p/locations/us-central2-b/queuedResources/q"
    everything = ProjectResources(
        (
            node("us-central2-b/n-0", owner=owner),
            node("us-central2-b/lost", owner="projects/p/locations/us-central2-b/queuedResources/deleted"),
            node("us-central2-b/dead", state="TERMINATED", tier="spot"),
            node("us-central2-b/strange", "v9-8"),
            node("us-central2-b/trainer"),
        ),
        (
            request("us-central2-b/q", [several]),
            request("us-west4-a/r", [single], state="FAILED"),
            request("us-west4-a/s", [{**single, "node": {"acceleratorType": "v6e-1"}}], spot={}),
            request("us-west4-a/t", [{**single, "nodeId": "two"}], guaranteed={"reserved": True}),
        ),
    )

    found = held_capacity(everything, wanted(replaces=node("us-central2-b/trainer")))

    assert [
        (one.label, one.accelerator.name, str(one.tier), one.size, one.chips, one.is_dead, one.delete) for one in found
    ] == [
        (
            "queued resource `us-central2-b/q`",
            "v4-8",
            "on-demand",
            24,
            12,
            False,
            "tpuctl down us-central2-b/n-0 --project=p --all-nodes",
        ),
        (
            "queued resource `us-west4-a/r`",
            "v5litepod-8",
            "preemptible",
            8,
            8,
            True,
            "tpuctl down us-west4-a/one --project=p",
        ),
        ("queued resource `us-west4-a/s`", "v6e-1", "spot", 1, 1, False, "tpuctl down us-west4-a/one --project=p"),
        (
            "queued resource `us-west4-a/t`",
            "v5litepod-8",
            "reserved",
            8,
            8,
            False,
            "tpuctl down us-west4-a/two --project=p",
        ),
        ("`us-central2-b/lost`", "v4-8", "on-demand", 8, 4, False, "tpuctl delete us-central2-b/lost --project=p"),
        ("`us-central2-b/dead`", "v4-8", "spot", 8, 4, True, "tpuctl delete us-central2-b/dead --project=p"),
    ]


def test_holdings_exclude_replaced_node() -> None:
    several = {"node": {"acceleratorType": "v4-8"}, "multisliceParams": {"nodeCount": 3, "nodeIdPrefix": "n"}}
    everything = ProjectResources((), (request("us-central2-b/q", [several]),))

    assert [one.size for one in held_capacity(everything, wanted(replaces=node("us-central2-b/n-1")))] == [16]
