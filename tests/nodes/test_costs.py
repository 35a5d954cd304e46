"""What nodes cost, in pure functions: billed time from what was seen, prices of all families, sums, grants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpuctl.models.billing import UNKNOWN_AMOUNT, Dollars, sum_dollars
from tpuctl.models.grants import Grant
from tpuctl.models.node import Node, NodeState, Tier
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName
from tpuctl.nodes.costs import (
    BilledTime,
    CostFacts,
    NodeCost,
    SeenState,
    billed_time,
    cost_of_history,
    cost_of_time,
    group_costs,
    node_costs,
)
from tpuctl.prices import Price, hourly_price, price_table

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
        pytest.param("v4-8", "us-central2-b", None, "?", id="family-without-price"),
        pytest.param("v9-8", EAST, None, "?", id="unknown-type"),
    ],
)
def test_price_by_type_region_and_tier(kind: str, zone: str, tier: Tier | None, expected: str) -> None:
    assert str(hourly_price(kind, zone, tier)) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param("10 READY", "10 since 0 about", id="nothing-seen"),
        pytest.param("10 CREATING", "0", id="still-creating"),
        pytest.param("0 CREATING a, 1 READY a, 10 READY", "9 since 1", id="creation-seen"),
        pytest.param("0 CREATING a, 1 READY b, 10 READY", "10 since 0 about", id="end-of-creation-not-seen"),
        pytest.param("0 CREATING a, 10 READY", "10 since 0 about", id="ready-since-the-journal"),
        pytest.param("0 CREATING a, 1 READY a, 4 STOPPED a, 10 STOPPED", "3 at-least", id="stop-seen"),
        pytest.param("0 CREATING a, 1 READY a, 10 STOPPED", "9 at-most", id="stop-not-seen"),
        pytest.param("10 STOPPED", "10 at-most", id="stopped-and-nothing-seen"),
        pytest.param(
            "0 CREATING a, 1 READY a, 4 STOPPED a, 5 STARTING b, 6 READY b, 10 READY", "7 since 6 at-least",
            id="start-seen",
        ),
        pytest.param(
            "0 CREATING a, 1 READY a, 4 STOPPED a, 10 READY", "3 since 10 at-least", id="start-not-seen"
        ),
        pytest.param("0 CREATING a, 1 READY a, 4 PREEMPTED a, 10 PREEMPTED", "3", id="preemption-seen"),
        pytest.param("10 PREEMPTED", "10 at-most", id="preemption-not-seen"),
        pytest.param("0 CREATING a, 1 READY a, 2 RESTARTING a, 3 READY a, 10 READY", "8 since 3", id="restart"),
        pytest.param("0 CREATING a, 1 READY a, 10 HIDDEN", "9 since 1 at-most", id="unknown-whether-billed"),
    ],
)  # fmt: skip
def test_billed_time_from_what_was_seen(seen: str, expected: str) -> None:
    sightings = []
    for each in seen.split(", "):
        hours, state, *writer = each.split()
        sightings.append(SeenState(at(float(hours)), NodeState(state), *writer))

    billed = billed_time(sightings, START, at(10))

    since = [f"since {(billed.since - START) // timedelta(hours=1)}"] if billed.since else []
    flags = {"about": billed.is_about, "at-least": billed.at_least, "at-most": billed.at_most}
    words = [str(billed.chips // timedelta(hours=1)), *since, *(word for word, is_set in flags.items() if is_set)]
    assert " ".join(words) == expected


SIGHTINGS = st.lists(
    st.tuples(
        st.floats(-5, 200),
        st.sampled_from(["CREATING", "READY", "STOPPING", "STOPPED", "STARTING", "RESTARTING", "PREEMPTED", "HIDDEN"]),
        st.sampled_from("ab"),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(
    seen=SIGHTINGS, state=st.sampled_from(["READY", "STOPPED", "CREATING"]), ages=st.tuples(*[st.floats(0, 200)] * 2)
)
def test_cost_so_far_is_never_negative_and_grows(
    seen: list[tuple[float, str, str]], state: str, ages: tuple[float, float]
) -> None:
    """Two looks at the same journal: the later one never costs less, nor more than all of the time."""
    costs = []
    for age in sorted(ages):
        known = [SeenState(at(hours), NodeState(name), by) for hours, name, by in sorted(seen) if hours <= min(ages)]
        billed = billed_time([*known, SeenState(at(age), NodeState(state))], START, at(age))
        costs.append(cost_of_time(billed, Price(Decimal(2), is_about=False, as_of="")).amount or Decimal(0))
        assert 0 <= costs[-1] <= Decimal(2) * Decimal(str(age)) + Decimal("0.001")
    assert costs[0] <= costs[1]


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        pytest.param([], "$0.00", id="none"),
        pytest.param(["1.5", "2"], "$3.50", id="exact"),
        pytest.param(["1.5", None], "at least $1.50", id="unknown-is-not-zero"),
        pytest.param([None, None], "?", id="all-unknown"),
        pytest.param(["1.5", "about 2"], "about $3.50", id="about"),
        pytest.param(["about 1.5", None], "at least $1.50", id="about-and-unknown"),
        pytest.param(["at-most 1", "1"], "at most $2.00", id="at-most"),
        pytest.param(["at-most 1", "at-least 1"], "about $2.00", id="both-directions"),
        pytest.param(["1234567.891"], "$1,234,567.89", id="cents"),
    ],
)
def test_sum_says_how_exact_it_is(amounts: list[str | None], expected: str) -> None:
    def parse(text: str | None) -> Dollars:
        if text is None:
            return UNKNOWN_AMOUNT
        *words, number = text.split()
        return Dollars(
            Decimal(number), is_about="about" in words, at_least="at-least" in words, at_most="at-most" in words
        )

    assert str(sum_dollars(map(parse, amounts))) == expected


def node(name: str = "n", **fields: Any) -> Node:
    defaults = {"id": "1", "state": "READY", "acceleratorType": "v6e-8", "createTime": "2026-01-01T00:00:00Z"}
    return Node(NodeName("p", fields.pop("zone", EAST), name), {**defaults, **fields})


def costs_of(
    *nodes: Node, now: float = 10, grants: Sequence[Grant] = (), requests: Sequence[QueuedResource] = ()
) -> list[NodeCost]:
    return node_costs(nodes, CostFacts(at(now), price_table(), lambda _: (), requests, grants))


def label(hours: float) -> dict[str, str]:
    return {"tpuctl-expires": str(int(at(hours).timestamp()))}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "$21.60 | about $216.00 | about $734.40 | 24h", id="ready"),
        pytest.param({"labels": label(12)}, "$21.60 | about $216.00 | about $259.20 | expires", id="until-expiry"),
        pytest.param({"labels": label(9)}, "$21.60 | about $216.00 | about $734.40 | 24h", id="expired"),
        pytest.param({"labels": {"tpuctl-expires": "soon"}}, "$21.60 | about $216.00 | about $734.40 | 24h", id="no-time"),
        pytest.param({"state": "STOPPED"}, "? | at most $216.00 | about $216.00 | 24h", id="stopped"),
        pytest.param({"state": "CREATING"}, "$0.00 | $0.00 | at most $518.40 | 24h", id="creating"),
        pytest.param({"state": "PREEMPTED"}, "$0.00 | at most $216.00 | at most $216.00 | 24h", id="preempted"),
        pytest.param({"state": "NEW_STATE"}, "? | at most $216.00 | about $216.00 | 24h", id="state-of-a-later-api"),
        pytest.param({"acceleratorType": "v4-8"}, "? | ? | ? | 24h", id="no-price"),
        pytest.param({"createTime": None}, "$21.60 | ? | at least $518.40 | 24h", id="no-time-of-creation"),
    ],
)  # fmt: skip
def test_cost_of_a_node_by_its_state(fields: dict[str, Any], expected: str) -> None:
    (cost,) = costs_of(node(**fields))

    then = "expires" if cost.is_until_expiry else f"{(cost.then - at(10)) // timedelta(hours=1)}h"
    assert f"{cost.per_hour} | {cost.so_far} | {cost.by_then} | {then}" == expected


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


def test_grant_that_ends_is_billed_from_then_on() -> None:
    """At 10:00 of the last day 14 hours are free, 10 of the next day are not."""
    (cost,) = costs_of(node(), grants=[Grant(EAST, "v6e", "on-demand", 8, date(2026, 1, 1))])

    assert (str(cost.so_far), str(cost.by_then), cost.note) == (
        "$0.00", "$216.00", "covered by the grant 8 chips of v6e on-demand in us-east5-b until 2026-01-01"
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
        pytest.param("owner", ["ada 1 about $9.72", " 2 at least $21.60"], id="owner"),
        pytest.param("zone", ["us-central2-b 1 ?", "us-east5-b 2 about $31.32"], id="zone"),
        pytest.param("type", ["v4-8 1 ?", "v6e-8 2 about $31.32"], id="type"),
        pytest.param("tier", ["on-demand 2 at least $21.60", "spot 1 about $9.72"], id="tier"),
        pytest.param("project", ["p 3 at least $31.32"], id="project"),
    ],
)
def test_groups_have_the_sums_of_their_nodes(by: str, expected: list[str]) -> None:
    nodes = (
        node("a", labels={"team": "vision"}),
        node("b", labels={"tpuctl-owner": "ada"}, schedulingConfig={"spot": True}),
        node("c", acceleratorType="v4-8", zone="us-central2-b"),
    )

    assert [f"{one.value} {len(one.nodes)} {one.per_hour}" for one in group_costs(costs_of(*nodes), by)] == expected


SPEC = {"accelerator_type": "v6e-8", "tier": "spot"}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("", "$0.00", id="no-state"),
        pytest.param("0 extend 1", "?", id="extended-without-a-state"),
        pytest.param("0 create, 0 CREATING 1, 1 READY 1, 3 gone, 4 create, 4 READY 2", "about $77.76", id="recreated"),
        pytest.param("0 create, 0 CREATING 1, 1 READY 1, 3 gone, 4 READY 2", "at least $77.76", id="recreated-unseen"),
        pytest.param("0 create, 0 CREATING 1, 1 READY 1, 3 delete", "about $19.44", id="ends-with-the-deletion"),
        pytest.param("1 READY 1, 3 gone", "?", id="not-created-by-tpuctl"),
    ],
)
def test_cost_of_a_history(lines: str, expected: str) -> None:
    entries: list[dict[str, Any]] = []
    for line in filter(None, lines.split(", ")):
        hours, word, *node_id = line.split()
        stamp = {"at": at(float(hours)).isoformat(), "by": "a"}
        if word in {"create", "delete"}:
            entries.append({**stamp, "event": word, "spec": SPEC})
        elif word == "extend":
            entries.append({**stamp, "event": word, "id": "".join(node_id)})
        else:
            entries.append(
                {**stamp, "event": "state", "state": None if word == "gone" else word, "id": "".join(node_id)}
            )

    assert str(cost_of_history(entries, EAST, price_table(), at(10))) == expected


def test_history_without_price_but_without_billed_time_costs_nothing() -> None:
    assert str(cost_of_time(BilledTime(timedelta()), Price(None, is_about=False, as_of=""))) == "$0.00"
