"""What nodes cost: dollars per hour now, and so far. Pure.

A node is billed for its chips while it is READY, a stopped node for its disk only [documentation: Cloud TPU pricing]. The API
says when a node was created; the journal, when tpuctl last started it. When another node began or ceased to be billed is not
known, and what is not known is never taken for 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tpuctl.durations import format_timestamp
from tpuctl.models.billing import (
    NOTHING,
    UNKNOWN_AMOUNT,
    Billing,
    Dollars,
    billed_tier,
    billing_in,
    bills_or_will,
    covering_grants,
    sum_dollars,
)
from tpuctl.models.node import Node, NodeState, Tier
from tpuctl.names import last_segment
from tpuctl.nodes.expiry import expiry_note, is_expired
from tpuctl.nodes.past import Past
from tpuctl.prices import hourly_price

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from tpuctl.models.grants import Grant
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName
    from tpuctl.prices import Price

_DAY = timedelta(days=1)
# In microseconds, the unit of a duration.
_HOUR = timedelta(hours=1) // timedelta(microseconds=1)


def billed_since(node: Node, past: Past) -> datetime | None:
    """Return since when the chips of a node are billed: since tpuctl last started it, else since its creation.

    None if they are not billed, or if that is unknown. What others stopped and started is not in the journal.
    """
    if billing_in(node.state) is not Billing.CHIPS:
        return None
    # An id belongs to one creation; several nodes may have had the name.
    return past.starts.get(node.id, node.created)


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What one node costs. `so_far` counts from `since`, which is None if it is not billed, or if that is unknown.

    `grant` covers it: its chips are free. `note` says why an amount is 0 or unknown.
    """

    node: Node
    tier: Tier
    per_hour: Dollars
    since: datetime | None
    so_far: Dollars
    in_a_day: Dollars  # so far in 24 hours from now, if it then still exists, or at its end
    grant: Grant | None
    note: str

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
            "in24Hours": self.in_a_day.to_json(),
            "grant": str(self.grant) if self.grant else None,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class CostFacts:
    """What costs depend on beside the nodes: the journal, the queued resources that own nodes, and grants."""

    now: datetime
    requests: Sequence[QueuedResource] = ()
    grants: Sequence[Grant] = ()
    past: Callable[[NodeName], Past] = lambda _: Past()


def node_costs(nodes: Sequence[Node], facts: CostFacts) -> list[NodeCost]:
    """Return what each node costs, in their order. A grant covers the oldest nodes first."""
    return [_node_cost(node, facts, rate) for node, rate in zip(nodes, node_rates(nodes, facts), strict=True)]


@dataclass(frozen=True, slots=True)
class NodeRate:
    """What one node costs for an hour now. `note` says why it is 0 or unknown."""

    tier: Tier
    billing: Billing
    # The price for an hour in which its chips are billed.
    price: Price
    per_hour: Dollars
    grant: Grant | None
    note: str


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
            known[key] = _node_rate(node, tier=tier, grant=grant, is_tier_known=is_tier_known)
        rates.append(known[key])
    return rates


def _node_rate(node: Node, *, tier: Tier, grant: Grant | None, is_tier_known: bool) -> NodeRate:
    billing = billing_in(node.state)
    price = hourly_price(node.accelerator_type, node.name.zone, tier)
    note = _billing_note(node, tier, price, grant)
    if not is_tier_known:
        price = replace(price, per_hour=None)
        if billing is Billing.CHIPS and grant is None:
            note = "its queued resource, which knows its tier, could not be read"
    if grant is not None:
        price = replace(price, per_hour=Decimal(0), is_about=False)
    match billing:
        case Billing.CHIPS:
            per_hour = Dollars(price.per_hour, is_about=price.is_about)
        case Billing.NOTHING:
            per_hour = NOTHING
        case Billing.DISK | Billing.UNKNOWN:
            per_hour = UNKNOWN_AMOUNT
    return NodeRate(tier, billing, price, per_hour, grant, note)


def _node_cost(node: Node, facts: CostFacts, rate: NodeRate) -> NodeCost:
    since = billed_since(node, facts.past(node.name))
    so_far = _cost_since(since, node, facts.now, rate.price)
    ended = expiry_note(node, facts.now) if node.has_invalid_expiry or is_expired(node, facts.now) else ""
    note = "; ".join(filter(None, (ended, rate.note)))
    in_a_day = sum_dollars((so_far, _next_day(node, facts.now, rate)))
    return NodeCost(node, rate.tier, rate.per_hour, since, so_far, in_a_day, rate.grant, note)


def _next_day(node: Node, now: datetime, rate: NodeRate) -> Dollars:
    """Return what a node costs in the next 24 hours, or until its end. What becomes READY by itself is billed then."""
    per_hour = rate.price.per_hour if rate.grant is None and bills_or_will(node) else rate.per_hour.amount
    if per_hour is None:
        return UNKNOWN_AMOUNT
    left = _DAY if node.expires is None or node.expires <= now else min(_DAY, node.expires - now)
    return Dollars(per_hour * Decimal(left // timedelta(microseconds=1)) / _HOUR, is_about=bool(per_hour))


# A node in these is created or started, and was not READY since.
_NOT_READY_YET = frozenset({NodeState.CREATING, NodeState.STARTING})


def _cost_since(since: datetime | None, node: Node, now: datetime, price: Price) -> Dollars:
    """Return what a node has cost since a time. It became READY some minutes after it, so that no amount but 0 is exact."""
    if node.state in _NOT_READY_YET:
        return NOTHING
    if since is None or price.per_hour is None:
        return UNKNOWN_AMOUNT
    hours = Decimal(max(now - since, timedelta()) // timedelta(microseconds=1)) / _HOUR
    return Dollars(price.per_hour * hours, is_about=bool(price.per_hour))


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
    in_a_day: Dollars

    @classmethod
    def of(cls, value: str, costs: Sequence[NodeCost], *, is_complete: bool = True) -> CostSum:
        """Return the sum; without `is_complete` there may be more nodes."""
        missing = () if is_complete else (UNKNOWN_AMOUNT,)
        return cls(
            value,
            tuple(cost.node.name.node_id for cost in costs),
            sum_dollars((*(cost.per_hour for cost in costs), *missing)),
            sum_dollars((*(cost.so_far for cost in costs), *missing)),
            sum_dollars((*(cost.in_a_day for cost in costs), *missing)),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the sums for scripts."""
        return {
            "perHour": self.per_hour.to_json(),
            "soFar": self.so_far.to_json(),
            "in24Hours": self.in_a_day.to_json(),
        }

    def __str__(self) -> str:
        """Return the sums in a line: `~$304/h · ≥ $13,550 so far · ≥ $20,850 in 24 h`."""
        return f"{self.per_hour.short}/h · {self.so_far.short} so far · {self.in_a_day.short} in 24 h"


def costliest_first(each: NodeCost | CostSum) -> Decimal:
    """Return the key by which costs are sorted: by dollars per hour, the unknown last."""
    return Decimal(1) if each.per_hour.amount is None else -each.per_hour.amount


def group_costs(costs: Sequence[NodeCost], by: str) -> list[CostSum]:
    """Return the sums by `label:KEY` or a `Grouping`, the costliest first, then by value."""
    groups: dict[str, list[NodeCost]] = {}
    for cost in costs:
        groups.setdefault(_group_value(cost, by), []).append(cost)
    by_value = [CostSum.of(value, groups[value]) for value in sorted(groups, key=lambda value: (not value, value))]
    return sorted(by_value, key=costliest_first)


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
