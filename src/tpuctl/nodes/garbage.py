"""Decide what `tpuctl gc` deletes, and why it leaves the rest alone. Pure: facts, rules and the time go in, items come out.

A queued resource and its nodes are deleted together, so they are one group: it goes only if every node of it is meant. What
is alive goes only if a rule that the user named applies to it, or if it lost a race according to the journal here: a label can
be copied. What is unknown (a state, an age, a lease, whether a worker is in use, a zone that did not answer) never counts as
dead, expired or idle.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tpuctl.accelerators import find_accelerator_type
from tpuctl.check.quotas import QuotaPool
from tpuctl.durations import format_duration
from tpuctl.models.billing import NOTHING, UNKNOWN_AMOUNT, Billing, Dollars, billing_in, sum_dollars
from tpuctl.models.node import EXPIRY_LABEL, KEEP_LABEL, Node, NodeState, QueuedState, Tier
from tpuctl.names import NodeName
from tpuctl.nodes.expiry import expiry_note, is_expired
from tpuctl.nodes.resource_group import ResourceGroup, belongs_to
from tpuctl.prices import hourly_price

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.selection import LabelCondition

# A change of the node is under way: its end is waited for.
_IN_TRANSITION: Final = frozenset(
    {
        *(NodeState.CREATING, NodeState.STARTING, NodeState.RESTARTING, NodeState.REIMAGING),
        *(NodeState.STOPPING, NodeState.HIDING, NodeState.UNHIDING),
    }
)
# The request waits for capacity: there is no node, and nothing bills.
_WAITING: Final = frozenset({QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES})
# Only these groups with nodes can be deleted at once: in the others the service is about to change the nodes.
_SETTLED: Final = frozenset({QueuedState.ACTIVE, QueuedState.SUSPENDED, QueuedState.FAILED})


class GarbageReason(StrEnum):
    """The rule that applies to a group."""

    DEAD = "dead"
    LOST = "lost"
    EXPIRED = "expired"
    OLD = "old"
    IDLE = "idle"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Idleness:
    """Whether all workers of a node are idle. `lasted` is None if a worker is in use, or could not be examined."""

    lasted: timedelta | None
    # What was seen last, or why it is not known to be idle.
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageRules:
    """What the user named besides dead records. None: the rule is off."""

    expired: bool = False
    older_than: timedelta | None = None
    idle: timedelta | None = None
    waiting_for: timedelta | None = None
    # Includes what others created, and what has no label of its creator.
    everyones: bool = False
    # The label of the user; None if the identity is unknown, and then everything belongs to others.
    owner: str | None = None
    # Leaves alone what is alive and not known to be unused.
    if_idle: bool = False
    # The conditions that the labels of each node of a group must meet.
    labels: Sequence[LabelCondition] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageFacts:
    """What the API, the leases and the workers have answered."""

    project: str
    nodes: Sequence[Node]
    requests: Sequence[QueuedResource]
    # The zones that did not answer for nodes or for queued resources: nothing in them is touched.
    unreachable: frozenset[str] = frozenset()
    # The nodes that another process works on, with who does, or why the lease cannot be read.
    leases: Mapping[NodeName, str] = field(default_factory=dict)
    idleness: Mapping[NodeName, Idleness] = field(default_factory=dict)
    # The nodes whose request lost a race that is over according to the journal, with the zone of the winner.
    lost: Mapping[NodeName, str] = field(default_factory=dict)
    # The nodes whose request is labelled as of a race that is over, and of which the journal does not know whether it lost.
    unproven: Collection[NodeName] = ()
    # The nodes that grants cover: their chips are free.
    covered: Collection[NodeName] = ()


@dataclass(frozen=True, slots=True)
class QuotaHeld:
    """What a group holds of one quota, in the unit of the type's number: cores or chips."""

    pool: QuotaPool
    amount: int
    unit: str

    def __str__(self) -> str:
        return f"{self.amount} {self.unit if self.amount != 1 else self.unit.rstrip('s')} of {self.pool}"


@dataclass(frozen=True, slots=True)
class GarbageItem:
    """A group that a rule applies to, or that has a wrong label. It is deleted unless `left_because` says why not."""

    group: ResourceGroup
    # None if no rule applies.
    reason: GarbageReason | None
    # In words: `PREEMPTED`, `expired 2h ago`.
    why: str
    age: timedelta | None
    # None for a type that the table lacks.
    quota: QuotaHeld | None
    # Dollars per hour now.
    per_hour: Dollars
    left_because: str = ""
    # It belongs to others, which alone keeps it.
    is_of_others: bool = False
    # Who uses it, or why that is unknown; empty if it is idle or its workers were not asked.
    in_use: str = ""

    @property
    def is_deleted(self) -> bool:
        """Return whether `gc --yes` deletes it."""
        return self.reason is not None and not self.left_because

    @property
    def entry(self) -> str:
        """The reason as the journal stores it: `expired`, `idle`, `gc: PREEMPTED`, `gc: older than 3d`."""
        return str(self.reason) if self.reason in {GarbageReason.EXPIRED, GarbageReason.IDLE} else f"gc: {self.why}"


def find_garbage(facts: GarbageFacts, rules: GarbageRules, now: datetime) -> tuple[GarbageItem, ...]:
    """Return what is deleted, and what a rule applies to and is left alone, by zone and name."""
    groups = sorted(group_resources(facts), key=lambda group: (group.zone, group.id))
    found = (judge_group(group, facts, rules, now) for group in groups)
    return tuple(item for item in found if item is not None)


def group_resources(facts: GarbageFacts) -> list[ResourceGroup]:
    """Return the groups of all zones that answered. A node whose queued resource is not listed is a group of its own."""
    rest = {node.name: node for node in facts.nodes if node.name.zone not in facts.unreachable}
    groups = []
    for request in facts.requests:
        if request.zone in facts.unreachable:
            continue
        nodes = tuple(node for node in rest.values() if belongs_to(node, request))
        for node in nodes:
            del rest[node.name]
        groups.append(ResourceGroup(facts.project, nodes, request))
    return [*groups, *(ResourceGroup(facts.project, (node,)) for node in rest.values())]


def judge_group(group: ResourceGroup, facts: GarbageFacts, rules: GarbageRules, now: datetime) -> GarbageItem | None:
    """Return the item of one group; None if no rule applies to it, or its labels are not those of the rules."""
    if not all(condition.holds(node.labels) for node in group.described for condition in rules.labels):
        return None
    if group.is_being_deleted:
        return None
    per_hour = _hourly_cost(group, facts)
    age = None if group.created is None else max(now - group.created, timedelta())
    item = GarbageItem(group, None, "", age, _quota_held(group), per_hour)
    found = [_reason_of(part, group, facts, rules, now) for part in group.described]
    reasons = [reason for reason in found if reason is not None]
    if not reasons:
        return _doubtful_item(item, facts, rules)
    # The reason of a living node says more than that of a dead one.
    reason, why = max(reasons, key=lambda one: one[0] is not GarbageReason.DEAD)
    item = replace(item, reason=reason, why=why, in_use=_use_of(group, facts))
    kept = _why_left(group, found, facts)
    if not kept and rules.if_idle and item.in_use:
        kept = f"it is not known to be idle: {item.in_use}"
    is_foreign = not rules.everyones and any(
        rules.owner is None or node.owner != rules.owner for node in group.described
    )
    return replace(
        item, left_because=kept or ("it belongs to others" if is_foreign else ""), is_of_others=is_foreign and not kept
    )


def _doubtful_item(item: GarbageItem, facts: GarbageFacts, rules: GarbageRules) -> GarbageItem | None:
    """Return a group that no rule applies to, if the user must know why: a wrong label, a race, workers that did not answer."""
    for node in item.group.described:
        if node.has_invalid_expiry and rules.expired:
            return replace(
                item, why=f"label {EXPIRY_LABEL}={node.labels[EXPIRY_LABEL]}", left_because="it is not a time"
            )
    if any(node.name in facts.unproven for node in item.group.described):
        # No command that deletes it: it may be the winner, or another user's.
        command = shlex.join(["tpuctl", "status", item.group.label])
        text = f"not deleted, because the journal here does not know that it lost; see it with `{command}`"
        return replace(item, why="labelled as of a race", left_because=text)
    for node in item.group.nodes:
        idleness = facts.idleness.get(node.name)
        if rules.idle is not None and idleness is not None and idleness.lasted is None:
            return replace(item, why="not known to be idle", left_because=idleness.detail)
    return None


def _reason_of(
    node: Node, group: ResourceGroup, facts: GarbageFacts, rules: GarbageRules, now: datetime
) -> tuple[GarbageReason, str] | None:
    """Return the first rule that applies to a node, or to a request without one, and why in words."""
    request = group.request
    if not group.nodes and request is not None:
        if request.state.is_dead:
            return GarbageReason.DEAD, f"{request.state}{_initiator(request)}"
        if request.state not in _WAITING:
            return None
        if node.name in facts.lost:
            return GarbageReason.LOST, _lost_to(facts.lost[node.name])
        if rules.expired and is_expired(node, now):
            return GarbageReason.EXPIRED, expiry_note(node, now)
        return _waiting_reason(request, rules, now)
    if is_dead_record(node):
        return GarbageReason.DEAD, str(node.state)
    if not node.state.is_known or node.state in {NodeState.STATE_UNSPECIFIED, NodeState.DELETING}:
        return None
    if node.name in facts.lost:
        return GarbageReason.LOST, _lost_to(facts.lost[node.name])
    if rules.expired and is_expired(node, now):
        return GarbageReason.EXPIRED, expiry_note(node, now)
    if rules.older_than is not None and node.created is not None and now - node.created >= rules.older_than:
        return GarbageReason.OLD, f"older than {format_duration(rules.older_than)}"
    idleness = facts.idleness.get(node.name)
    lasted = idleness.lasted if idleness and node.state is NodeState.READY else None
    if rules.idle is not None and lasted is not None and lasted >= rules.idle:
        return GarbageReason.IDLE, f"idle for {format_duration(lasted)}"
    return None


def _lost_to(winner: str) -> str:
    return f"lost the race to {winner}"


def is_dead_record(node: Node) -> bool:
    """Return whether only the record of a node is left, which holds its name and its quota."""
    return node.is_preempted or node.state.is_dead


def _waiting_reason(request: QueuedResource, rules: GarbageRules, now: datetime) -> tuple[GarbageReason, str] | None:
    """Return the reason of a request that waits for capacity for too long. Before its start time it does not wait yet."""
    if rules.waiting_for is None or request.created is None:
        return None
    waited = now - max(request.created, request.valid_after or request.created)
    return (GarbageReason.WAITING, f"waits for {format_duration(waited)}") if waited >= rules.waiting_for else None


def _why_left(group: ResourceGroup, reasons: Sequence[tuple[GarbageReason, str] | None], facts: GarbageFacts) -> str:
    """Return why a group that a rule applies to is left alone, empty if nothing keeps it. The first that matches wins."""
    if any(node.is_kept for node in group.described):
        return f"its label `{KEEP_LABEL}` keeps it"
    request = group.request
    if request is not None and group.nodes and request.state not in _SETTLED:
        return f"its queued resource is {request.state}"
    for node in group.nodes:
        if node.state in _IN_TRANSITION:
            return f"`{node.name.node_id}` is {node.state}"
    for node, reason in zip(group.described, reasons, strict=True):
        if reason is None:
            return f"`{node.name.node_id}` of the same queued resource is {node.state}, and no rule applies to it"
    held = next((facts.leases[name] for name in group.names if name in facts.leases), None)
    return f"it is in use: {held}" if held else ""


def _use_of(group: ResourceGroup, facts: GarbageFacts) -> str:
    """Return who uses the nodes of a group, as far as their workers were asked."""
    asked = (facts.idleness.get(node.name) for node in group.nodes)
    return "; ".join(idleness.detail for idleness in asked if idleness is not None and idleness.lasted is None)


def busy_candidates(facts: GarbageFacts, rules: GarbageRules, now: datetime) -> tuple[ResourceGroup, ...]:
    """Return the groups with READY nodes whose workers are asked who uses them: those of others, or all with `if_idle`."""
    return tuple(
        item.group
        for item in find_garbage(facts, rules, now)
        if item.is_deleted
        and any(node.state is NodeState.READY for node in item.group.nodes)
        and (rules.if_idle or any(node.owner != rules.owner for node in item.group.nodes))
    )


def idle_candidates(facts: GarbageFacts, rules: GarbageRules, now: datetime) -> tuple[ResourceGroup, ...]:
    """Return the groups whose workers must be asked: they would be deleted if they were idle, and only then."""
    if rules.idle is None:
        return ()
    idle = {node.name: Idleness(rules.idle, "") for node in facts.nodes}
    items = find_garbage(replace(facts, idleness=idle), rules, now)
    return tuple(item.group for item in items if item.is_deleted and item.reason is GarbageReason.IDLE)


def _initiator(request: QueuedResource) -> str:
    return " by the service" if request.was_suspended_by_service else ""


def _quota_held(group: ResourceGroup) -> QuotaHeld | None:
    """Return what a group holds: a queued resource holds quota for all its nodes, in every state."""
    accelerator = find_accelerator_type(group.accelerator_type)
    if accelerator is None:
        return None
    count = len(group.request.node_ids) if group.request else len(group.nodes)
    # Flex-start nodes use preemptible quota [documentation].
    tier = Tier.SPOT if group.tier is Tier.FLEX_START else group.tier
    return QuotaHeld(QuotaPool.of(accelerator, tier), accelerator.size * count, accelerator.generation.unit)


def _hourly_cost(group: ResourceGroup, facts: GarbageFacts) -> Dollars:
    """Return what the nodes of a group cost for an hour now; a request without nodes costs nothing."""
    amounts = []
    for node in group.nodes:
        billing = billing_in(node.state)
        if billing is Billing.NOTHING or node.name in facts.covered:
            amounts.append(NOTHING)
        elif billing is Billing.CHIPS:
            price = hourly_price(node.accelerator_type, group.zone, group.tier)
            amounts.append(Dollars(price.per_hour, is_about=price.per_hour is not None and price.is_about))
        else:
            amounts.append(UNKNOWN_AMOUNT)
    return sum_dollars(amounts)


def freed_quota(items: Sequence[GarbageItem]) -> tuple[QuotaHeld, ...]:
    """Return the quota that the deletion of these items frees, the sum for each pool."""
    sums: dict[QuotaPool, QuotaHeld] = {}
    for item in items:
        if (held := item.quota) is not None:
            before = sums.get(held.pool)
            sums[held.pool] = replace(held, amount=held.amount + (before.amount if before else 0))
    return tuple(sums[pool] for pool in sorted(sums, key=str))
