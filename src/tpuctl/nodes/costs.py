"""What nodes cost: dollars per hour now, so far, and by a moment to come. Pure.

A node is billed for its chips while it is READY, a stopped node for its disk only [documentation: Cloud TPU pricing]. The API
says when a node was created; when it became READY, stopped and started is in the journal, as far as tpuctl saw it. What is not
known makes an amount "about", "at least" or "at most", and is never taken for 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_timestamp, parse_timestamp
from tpuctl.models.billing import (
    NOTHING,
    UNKNOWN_AMOUNT,
    Billing,
    Dollars,
    billed_tier,
    billing_in,
    bills_or_will,
    covering_grants,
    grant_end,
    is_coming,
    sum_dollars,
)
from tpuctl.models.node import Node, NodeState, Tier
from tpuctl.names import last_segment
from tpuctl.nodes.expiry import expiry_note, is_expired

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tpuctl.models.grants import Grant
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.nodes.journal_entries import JournalEntries
    from tpuctl.prices import Price, PriceList

_HOUR = timedelta(hours=1)
# Without a time limit, the cost is foretold for this long.
FORECAST = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SeenState:
    """The state of a node as one writer of the journal saw it; without a writer it is the API's answer."""

    at: datetime
    state: NodeState
    writer: str = ""


@dataclass(frozen=True, slots=True)
class BilledTime:
    """For how long the chips of a node were billed, and since when they are; None if they are not.

    The flags are those of `Dollars`. A stop makes it `at_least`, as the price of a disk is unknown.
    """

    chips: timedelta
    since: datetime | None = None
    is_about: bool = False
    at_least: bool = False
    at_most: bool = False


def billed_time(sightings: Sequence[SeenState], created: datetime | None, now: datetime) -> BilledTime:
    """Return the billed time of one node from what was seen of it, oldest first.

    A change between two sightings of one writer is exact, as a run polls without a break. The moment of any other change is
    unknown: a creation counts in full ("about"), a stop from when it was noticed ("at most"), and so does a start ("at least").
    Both of the first are too much, and more than the disk of a stopped node, which alone makes it "at least".
    """
    chips, since = timedelta(), None
    is_about = at_least = at_most = has_disk = False
    before: SeenState | None = None
    is_new = True
    for seen in sightings:
        at, billing = max(min(seen.at, now), created or seen.at), billing_in(seen.state)
        is_exact = before is not None and before.writer == seen.writer
        if is_new and not is_exact and seen.state is not NodeState.CREATING:
            since, is_about, at_least = created or at, True, created is None
        if billing in {Billing.CHIPS, Billing.UNKNOWN}:
            at_most = at_most or billing is Billing.UNKNOWN
            at_least = at_least or (since is None and not is_exact)
            since = since or at
        elif since is not None:
            chips, since, at_most = chips + max(at - since, timedelta()), None, at_most or not is_exact
        has_disk = has_disk or billing is Billing.DISK
        is_new = is_new and seen.state is NodeState.CREATING
        before = seen
    if since is not None:
        chips += max(now - since, timedelta())
    at_least = at_least or (has_disk and not (at_most and chips))
    return BilledTime(chips, since, is_about=is_about and not at_most, at_least=at_least, at_most=at_most)


def billed_since(node: Node, facts: CostFacts) -> datetime | None:
    """Return since when the chips of a node are billed, as far as the journal has seen; None if they are not."""
    sightings = node_sightings(facts.entries(node.name), node, facts.now)
    return billed_time(sightings, node.created, facts.now).since


def node_sightings(entries: JournalEntries, node: Node, now: datetime) -> list[SeenState]:
    """Return what the journal has seen of this very node, oldest first, and at last its present state."""
    found = []
    for entry in entries:
        at, seen = parse_timestamp(entry.get("at")), _seen_state(entry)
        if at is None or seen is None:
            continue
        # An id belongs to one creation; several nodes may have had the name.
        is_of_node = entry["id"] == node.id if entry.get("id") else node.created is not None and at >= node.created
        if is_of_node:
            found.append(SeenState(at, seen, str(entry.get("by"))))
    return [*sorted(found, key=lambda one: one.at), SeenState(now, node.state)]


def _seen_state(entry: Mapping[str, Any]) -> NodeState | None:
    """Return the state that an entry shows, None for other entries. A stop is sent to a node that is READY."""
    match entry.get("event"):
        case "state":
            return NodeState(str(entry["state"])) if entry.get("state") else None
        case "stop":
            return NodeState.READY
        case _:
            return None


def cost_of_time(billed: BilledTime, price: Price) -> Dollars:
    """Return what a time costs at a price. Unknown also if only the disk of a stopped node was billed."""
    if not billed.chips:
        return UNKNOWN_AMOUNT if billed.at_least else NOTHING
    if price.per_hour is None:
        return UNKNOWN_AMOUNT
    if not price.per_hour:
        return Dollars(Decimal(0), at_least=billed.at_least)
    return Dollars(
        price.per_hour * _hours(billed.chips),
        is_about=billed.is_about or price.is_about,
        at_least=billed.at_least,
        at_most=billed.at_most,
    )


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node costs. `since` is when its present billing began, None if it is not billed, or that is unknown.

    `by_then` is what it will have cost at `then`: at its expiry, or in a day. `grant` covers it: its chips are free.
    `note` says why an amount is 0 or unknown.
    """

    node: Node
    tier: Tier
    per_hour: Dollars
    since: datetime | None
    so_far: Dollars
    then: datetime
    by_then: Dollars
    grant: Grant | None
    note: str

    @property
    def is_until_expiry(self) -> bool:
        """Return whether `then` is the expiry of the node."""
        return self.then == self.node.expires

    def to_json(self) -> dict[str, Any]:
        """Return the cost for scripts."""
        name = self.node.name
        return {
            "nodeId": name.node_id,
            "zone": name.zone,
            "project": name.project,
            "acceleratorType": self.node.accelerator_type,
            "tier": str(self.tier),
            "state": str(self.node.state),
            "owner": self.node.owner,
            "perHour": self.per_hour.to_json(),
            "since": format_timestamp(self.since) if self.since else None,
            "soFar": self.so_far.to_json(),
            "then": format_timestamp(self.then),
            "isUntilExpiry": self.is_until_expiry,
            "byThen": self.by_then.to_json(),
            "grant": str(self.grant) if self.grant else None,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class CostFacts:
    """What costs depend on beside the nodes: the journal, prices, the queued resources that own nodes, and grants."""

    now: datetime
    prices: PriceList
    entries: Callable[[NodeName], JournalEntries]
    requests: Sequence[QueuedResource] = ()
    grants: Sequence[Grant] = ()


def node_costs(nodes: Sequence[Node], facts: CostFacts) -> list[NodeCost]:
    """Return what each node costs, in their order. A grant covers the oldest nodes first."""
    return [_node_cost(node, facts, rate) for node, rate in zip(nodes, node_rates(nodes, facts), strict=True)]


@dataclass(frozen=True, slots=True)
class NodeRate:
    """What one node costs for an hour now. `listed` is its price without the grant; `note` says why it is 0 or unknown."""

    tier: Tier
    billing: Billing
    listed: Price
    per_hour: Dollars
    grant: Grant | None
    note: str

    @property
    def price(self) -> Price:
        """The price for an hour in which its chips are billed."""
        return replace(self.listed, per_hour=Decimal(0), is_about=False) if self.grant else self.listed


def node_rates(nodes: Sequence[Node], facts: CostFacts) -> list[NodeRate]:
    """Return what each node costs for an hour, in their order, without the journal. A grant covers the oldest nodes first."""
    tiers = {node.name: billed_tier(node, facts.requests) for node in nodes}
    covered = covering_grants(nodes, tiers, facts.grants, facts.now.date())
    # Nodes that are alike have one rate: a list may have thousands.
    known: dict[tuple[object, ...], NodeRate] = {}
    rates = []
    for node in nodes:
        tier, grant = tiers[node.name], covered.get(node.name)
        is_tier_known = tier is not Tier.ON_DEMAND or _is_owner_known(node, facts.requests)
        key = (node.accelerator_type, node.name.zone, node.state, tier, grant, is_tier_known)
        if key not in known:
            known[key] = _node_rate(node, facts.prices, tier=tier, grant=grant, is_tier_known=is_tier_known)
        rates.append(known[key])
    return rates


def _node_rate(node: Node, prices: PriceList, *, tier: Tier, grant: Grant | None, is_tier_known: bool) -> NodeRate:
    billing = billing_in(node.state)
    listed = prices.hourly_price(node.accelerator_type, node.name.zone, tier)
    note = _billing_note(node, tier, listed, grant)
    if not is_tier_known:
        listed = replace(listed, per_hour=None)
        if billing is Billing.CHIPS and grant is None:
            note = "its queued resource, which knows its tier, could not be read"
    rate = NodeRate(tier, billing, listed, UNKNOWN_AMOUNT, grant, note)
    match billing:
        case Billing.CHIPS:
            return replace(rate, per_hour=cost_of_time(BilledTime(_HOUR), rate.price))
        case Billing.NOTHING:
            return replace(rate, per_hour=NOTHING)
        case Billing.DISK | Billing.UNKNOWN:
            return rate


def _node_cost(node: Node, facts: CostFacts, rate: NodeRate) -> NodeCost:
    now, grant = facts.now, rate.grant
    billed = billed_time(node_sightings(facts.entries(node.name), node, now), node.created, now)
    so_far = cost_of_time(billed, rate.price)
    then = node.expires if node.expires is not None and node.expires > now else now + FORECAST
    if rate.billing in {Billing.DISK, Billing.UNKNOWN}:
        ahead = UNKNOWN_AMOUNT
    else:
        paid_from = min(max(now, grant_end(grant)), then) if grant else now
        rest = then - paid_from if bills_or_will(node) else timedelta()
        ahead = cost_of_time(BilledTime(rest, at_most=is_coming(node.state)), rate.listed)
    ended = expiry_note(node, now) if node.has_invalid_expiry or is_expired(node, now) else ""
    note = "; ".join(filter(None, (ended, rate.note)))
    by_then = sum_dollars((so_far, ahead))
    return NodeCost(node, rate.tier, rate.per_hour, billed.since, so_far, then, by_then, grant, note)


def _is_owner_known(node: Node, requests: Sequence[QueuedResource]) -> bool:
    """Return whether the request that owns a node was listed, if one does. A flex-start node alone looks like on-demand."""
    owner = node.queued_resource
    return owner is None or any(
        (request.zone, request.queued_resource_id) == (node.name.zone, last_segment(owner)) for request in requests
    )


def _billing_note(node: Node, tier: Tier, price: Price, grant: Grant | None) -> str:
    match billing_in(node.state):
        case Billing.DISK:
            return "only its disk is billed; the price of disks is unknown"
        case Billing.UNKNOWN:
            return f"unknown whether {node.state} is billed"
        case Billing.NOTHING:
            return "not billed"
        case Billing.CHIPS if grant is not None:
            return f"covered by the grant {grant}"
        case Billing.CHIPS if price.per_hour is None:
            return f"no known price of {node.accelerator_type or 'its type'} ({tier})"
        case Billing.CHIPS:
            return ""


def cost_of_history(entries: JournalEntries, zone: str, prices: PriceList, now: datetime) -> Dollars:
    """Return what all nodes have cost whose states a journal has seen. The last state lasts until now, as far as known.

    Type and tier are those of the last `create` before. A node that was there without a state that was seen costs an
    unknown amount.
    """
    dated = [(at, entry) for entry in entries if (at := parse_timestamp(entry.get("at")))]
    lives: list[tuple[Price, datetime | None, list[SeenState]]] = []
    price, created, last_id = prices.hourly_price("", zone, None), None, ""
    for at, entry in sorted(dated, key=lambda one: one[0]):
        event, state, writer = entry.get("event"), _seen_state(entry), str(entry.get("by"))
        if event == "create":
            spec = entry.get("spec") or {}
            price, created = prices.hourly_price(spec.get("accelerator_type") or "", zone, spec.get("tier")), at
        elif state is not None:
            if not lives or (entry.get("id") or last_id) != last_id:
                lives.append((price, created, []))
                created = None
            last_id = entry.get("id") or last_id
            lives[-1][2].append(SeenState(at, state, writer))
        elif event in {"state", "delete"} and lives:
            lives[-1][2].append(SeenState(at, NodeState.DELETING, writer))
    if not lives and any(entry.get("id") for _, entry in dated):
        return UNKNOWN_AMOUNT
    costs = []
    for of_life, begin, sightings in lives:
        billed = billed_time(sightings, begin, now)
        costs.append(cost_of_time(replace(billed, is_about=billed.is_about or billed.since is not None), of_life))
    return sum_dollars(costs)


def _hours(duration: timedelta) -> Decimal:
    return Decimal(duration // timedelta(microseconds=1)) / Decimal(_HOUR // timedelta(microseconds=1))


class Grouping(StrEnum):
    """What costs are summed by, beside `label:KEY`."""

    OWNER = "owner"
    ZONE = "zone"
    TYPE = "type"
    TIER = "tier"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class CostSum:
    """The sum of the costs of several nodes; `value` is what they have in common, empty if it is unknown."""

    value: str
    nodes: tuple[str, ...]
    per_hour: Dollars
    so_far: Dollars
    by_then: Dollars

    @classmethod
    def of(cls, value: str, costs: Sequence[NodeCost], *, is_complete: bool = True) -> CostSum:
        """Return the sum; without `is_complete` there may be more nodes."""
        missing = () if is_complete else (UNKNOWN_AMOUNT,)
        return cls(
            value,
            tuple(cost.node.name.node_id for cost in costs),
            sum_dollars((*(cost.per_hour for cost in costs), *missing)),
            sum_dollars((*(cost.so_far for cost in costs), *missing)),
            sum_dollars((*(cost.by_then for cost in costs), *missing)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sums for scripts."""
        return {
            "perHour": self.per_hour.to_json(),
            "soFar": self.so_far.to_json(),
            "byThen": self.by_then.to_json(),
        }


def group_costs(costs: Sequence[NodeCost], by: str) -> list[CostSum]:
    """Return the sums by `label:KEY` or a `Grouping`, sorted by value; what has no value comes last."""
    groups: dict[str, list[NodeCost]] = {}
    for cost in costs:
        groups.setdefault(_group_value(cost, by), []).append(cost)
    return [CostSum.of(value, groups[value]) for value in sorted(groups, key=lambda value: (not value, value))]


def _group_value(cost: NodeCost, by: str) -> str:
    node = cost.node
    if by.startswith("label:"):
        return node.labels.get(by.removeprefix("label:"), "")
    match Grouping(by):
        case Grouping.OWNER:
            return node.owner or ""
        case Grouping.ZONE:
            return node.name.zone
        case Grouping.TYPE:
            return node.accelerator_type
        case Grouping.TIER:
            return str(cost.tier)
        case Grouping.PROJECT:
            return node.name.project
