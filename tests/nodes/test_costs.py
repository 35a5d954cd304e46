"""What nodes cost, in pure functions: prices of all families, the cost so far, sums, grants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tpuctl.models.billing import UNKNOWN_AMOUNT, Dollars, sum_dollars
from tpuctl.models.grants import Grant
from tpuctl.models.node import Node, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName
from tpuctl.nodes.costs import CostFacts, NodeCost, group_costs, node_costs
from tpuctl.nodes.past import past_of
from tpuctl.prices import hourly_price

START = datetime(2026, 1, 1, tzinfo=UTC)
EAST = "us-east5-b"


def at(hours: float) -> datetime:
    return START + timedelta(hours=hours)


@pytest.mark.parametrize(
    ("kind", "zone", "tier", "expected"),
    [
        pytest.param("v5litepod-8", "us-central1-a", None, "$9.60/h", id="v5e-counts-chips"),
        pytest.param("v5litepod-8", "us-central1-a", Tier.SPOT, "about $1.96/h", id="v5e-spot"),
        pytest.param("v5litepod-256", "europe-west4-b", Tier.ON_DEMAND, "$399.36/h", id="v5e-slice-in-europe"),
        pytest.param("v5p-8", "us-central1-a", None, "$16.80/h", id="v5p-counts-cores"),
        pytest.param("v5p-256", "us-east5-a", None, "$537.60/h", id="v5p-slice"),
        pytest.param("v5p-8", "europe-west4-b", Tier.SPOT, "about $5.39/h", id="v5p-spot-is-rounded-to-cents"),
        pytest.param("v6e-1", EAST, None, "$2.70/h", id="v6e-one-chip"),
        pytest.param("v6e-8", EAST, Tier.PREEMPTIBLE, "about $9.72/h", id="v6e-preemptible-is-spot"),
        pytest.param("v6e-256", "asia-northeast1-b", None, "$829.44/h", id="v6e-slice-in-asia"),
        pytest.param("v6e-8", EAST, Tier.RESERVED, "?", id="reserved"),
        pytest.param("v6e-8", EAST, Tier.FLEX_START, "?", id="flex-start"),
        pytest.param("v6e-8", EAST, Tier.BEST_EFFORT, "?", id="best-effort"),
        pytest.param("v6e-8", "us-central2-b", None, "?", id="region-without-price"),
        pytest.param("v2-8", "us-central1-b", None, "?", id="family-without-price"),
        pytest.param("v4-8", "us-central2-b", None, "about $12.88/h", id="price-of-a-single-source"),
        pytest.param("v9-8", EAST, None, "?", id="unknown-type"),
    ],
)
def test_price_by_type_region_and_tier(kind: str, zone: str, tier: Tier | None, expected: str) -> None:
    assert str(hourly_price(kind, zone, tier)) == expected


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        pytest.param([], "$0.00", id="none"),
        pytest.param(["1.5", "2"], "$3.50", id="exact"),
        pytest.param(["1.5", None], "at least $1.50", id="unknown-is-not-zero"),
        pytest.param([None, None], "?", id="all-unknown"),
        pytest.param(["1.5", "about 2"], "about $3.50", id="about"),
        pytest.param(["about 1.5", None], "at least $1.50", id="about-and-unknown"),
        pytest.param(["about 1", "at-least 1"], "at least $2.00", id="about-and-at-least"),
        pytest.param(["1234567.891"], "$1,234,567.89", id="cents"),
    ],
)
def test_sum_says_how_exact_it_is(amounts: list[str | None], expected: str) -> None:
    def parse(text: str | None) -> Dollars:
        if text is None:
            return UNKNOWN_AMOUNT
        *words, number = text.split()
        return Dollars(Decimal(number), is_about="about" in words, at_least="at-least" in words)

    assert str(sum_dollars(map(parse, amounts))) == expected


def node(name: str = "n", **fields: Any) -> Node:
    defaults = {"id": "1", "state": "READY", "acceleratorType": "v6e-8", "createTime": "2026-01-01T00:00:00Z"}
    return Node(NodeName("p", fields.pop("zone", EAST), name), {**defaults, **fields})


def costs_of(
    *nodes: Node,
    grants: Sequence[Grant] = (),
    requests: Sequence[QueuedResource] = (),
    entries: Sequence[dict[str, Any]] = (),
) -> list[NodeCost]:
    return node_costs(nodes, CostFacts(at(10), requests, grants, lambda _: past_of(entries)))


def label(hours: float) -> dict[str, str]:
    return {"tpuctl-expires": str(int(at(hours).timestamp()))}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "$21.60 | 0 | about $216.00 | ", id="ready"),
        pytest.param({"schedulingConfig": {"spot": True}}, "about $9.72 | 0 | about $97.20 | ", id="spot"),
        pytest.param({"labels": label(12)}, "$21.60 | 0 | about $216.00 | ", id="until-expiry"),
        pytest.param({"labels": label(9)}, "$21.60 | 0 | about $216.00 | expired 1h ago", id="expired"),
        pytest.param(
            {"labels": {"tpuctl-expires": "soon"}},
            "$21.60 | 0 | about $216.00 | never expires: label tpuctl-expires=soon is not a time", id="no-time",
        ),
        pytest.param({"createTime": "2026-01-01T12:00:00Z"}, "$21.60 | 12 | about $0.00 | ", id="created-in-the-future"),
        pytest.param({"createTime": ""}, "$21.60 | - | ? | ", id="no-time-of-creation"),
        pytest.param({"acceleratorType": "v4-8"}, "? | 0 | ? | no known price of v4-8 (on-demand)", id="no-price"),
        pytest.param({"state": "CREATING"}, "$0.00 | - | $0.00 | not billed", id="creating"),
        pytest.param(
            {"state": "CREATING", "acceleratorType": "v4-8"}, "$0.00 | - | $0.00 | not billed", id="creating-no-price"
        ),
        pytest.param({"state": "STARTING"}, "$0.00 | - | $0.00 | not billed", id="starting"),
        pytest.param({"state": "RESTARTING"}, "$0.00 | - | ? | not billed", id="restarting"),
        pytest.param(
            {"state": "STOPPED"}, "? | - | ? | only its disk is billed; the price of disks is unknown", id="stopped"
        ),
        pytest.param({"state": "PREEMPTED"}, "$0.00 | - | ? | not billed", id="preempted"),
        pytest.param(
            {"state": "NEW_STATE"}, "? | - | ? | unknown whether NEW_STATE is billed", id="state-of-a-later-api"
        ),
    ],
)  # fmt: skip
def test_cost_of_a_node_by_its_state(fields: dict[str, Any], expected: str) -> None:
    (cost,) = costs_of(node(**fields))

    since = "-" if cost.since is None else (cost.since - START) // timedelta(hours=1)
    assert f"{cost.per_hour} | {since} | {cost.so_far} | {cost.note}" == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("0 create, 4 READY 1", "0 about $216.00", id="never-started"),
        pytest.param("2 stop 1, 6 start 1, 6.5 READY 1", "6 about $86.40", id="started"),
        pytest.param("6 start 1, 7 stop 1, 9 start 1", "9 about $21.60", id="last-start"),
        pytest.param("9 start 1, 6 start 1", "9 about $21.60", id="two-machines-wrote"),
        pytest.param("6 start 0", "0 about $216.00", id="start-of-an-earlier-node"),
    ],
)
def test_cost_so_far_counts_from_the_last_start(lines: str, expected: str) -> None:
    entries = []
    for line in lines.split(", "):
        hours, word, *node_id = line.split()
        state = {} if word.islower() else {"state": word}
        entry = {"event": "state" if state else word, "at": at(float(hours)).isoformat(), "id": "".join(node_id)}
        entries.append({**entry, **state})

    (cost,) = costs_of(node(), entries=entries)

    assert cost.since is not None
    assert f"{(cost.since - START) // timedelta(hours=1)} {cost.so_far}" == expected


GRANT = Grant(EAST, "v6e", "on-demand", 16, None)


@pytest.mark.parametrize(
    ("grant", "nodes", "expected"),
    [
        pytest.param(GRANT, [node("a"), node("b")], "$0.00 $0.00", id="both-fit"),
        pytest.param(GRANT, [node("a", createTime="2026-01-01T03:00:00Z"), node("b"), node("c")],
                     "$21.60 $0.00 $0.00", id="oldest-first"),
        pytest.param(GRANT, [node("a", state="PREEMPTED"), node("b"), node("c")], "$0.00 $0.00 $0.00", id="dead-use-none"),
        pytest.param(GRANT, [node("a", zone="us-east5-a")], "$21.60", id="other-zone"),
        pytest.param(GRANT, [node("a", schedulingConfig={"spot": True})], "about $9.72", id="other-tier"),
        pytest.param(GRANT, [node("a", acceleratorType="v6e-32")], "$86.40", id="fits-in-part"),
        pytest.param(GRANT, [node("a", state="STOPPED")], "?", id="disk-is-not-granted"),
        pytest.param(Grant(EAST, "v6e", "on-demand", 16, date(2025, 12, 31)), [node("a")], "$21.60", id="ended"),
        pytest.param(Grant(EAST, "v6e", "on-demand", 16, date(2026, 1, 1)), [node("a")], "$0.00", id="last-day"),
    ],
)  # fmt: skip
def test_grant_makes_nodes_free(grant: Grant, nodes: list[Node], expected: str) -> None:
    assert " ".join(str(cost.per_hour) for cost in costs_of(*nodes, grants=[grant])) == expected


def test_equal_grants_count_each() -> None:
    grant = Grant(EAST, "v6e", "on-demand", 8, None)

    assert [str(cost.per_hour) for cost in costs_of(node("a"), node("b"), node("c"), grants=[grant, grant])] == [
        "$0.00",
        "$0.00",
        "$21.60",
    ]


def test_grant_is_named_by_the_note() -> None:
    (cost,) = costs_of(node(), grants=[Grant(EAST, "v6e", "on-demand", 8, date(2026, 1, 1))])

    assert (str(cost.so_far), cost.note) == (
        "$0.00", "covered by the grant 8 chips of v6e on-demand in us-east5-b until 2026-01-01"
    )  # fmt: skip


def test_flex_start_node_has_no_price() -> None:
    """A node does not show that it is flex-start; its queued resource does."""
    name = f"projects/p/locations/{EAST}/queuedResources/q"
    request = QueuedResource(name, {"name": name, "provisioningModel": "FLEX_START"})

    (cost,) = costs_of(node(queuedResource=name.replace("/p/", "/123/")), requests=[request])

    assert (cost.tier, str(cost.per_hour)) == (Tier.FLEX_START, "?")


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        pytest.param("label:team", ["vision 1 $21.60", " 2 at least $9.72"], id="label"),
        pytest.param("owner", [" 2 at least $21.60", "ada 1 about $9.72"], id="owner"),
        pytest.param("zone", ["us-east5-b 2 about $31.32", "us-central1-b 1 ?"], id="zone"),
        pytest.param("type", ["v6e-8 2 about $31.32", "v2-8 1 ?"], id="type"),
        pytest.param("tier", ["on-demand 2 at least $21.60", "spot 1 about $9.72"], id="tier"),
        pytest.param("project", ["p 3 at least $31.32"], id="project"),
    ],
)
def test_groups_have_the_sums_of_their_nodes(by: str, expected: list[str]) -> None:
    nodes = (
        node("a", labels={"team": "vision"}),
        node("b", labels={"tpuctl-owner": "ada"}, schedulingConfig={"spot": True}),
        node("c", acceleratorType="v2-8", zone="us-central1-b"),
    )

    assert [f"{one.value} {len(one.nodes)} {one.per_hour}" for one in group_costs(costs_of(*nodes), by)] == expected
