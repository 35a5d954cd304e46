"""What counts against the quotas and grants of a project: nodes and queued resources, with type, tier and state.

Dead resources count against quota until they are deleted [observed: marin#87, skypilot PR#1483]. Whether stopped,
waiting or deleting resources count is not documented.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime

from tpuctl.accelerators import AcceleratorType, find_accelerator_type, load_accelerators
from tpuctl.check.facts import ProjectResources, WantedNode
from tpuctl.check.findings import delete_node_command, delete_queued_resource_command
from tpuctl.models.grants import Grant, capacity_pool
from tpuctl.models.node import Node, Tier
from tpuctl.models.project import QuotaLimit
from tpuctl.models.queued import QueuedResource
from tpuctl.names import NodeName, last_segment, region_of_zone

# Flex-start nodes use preemptible quota [documentation].
_PREEMPTIBLE_MODELS = frozenset({"SPOT", "FLEX_START"})
_MAY_COUNT_STATES = frozenset(
    {
        *("STOPPING", "STOPPED", "DELETING", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "STATE_UNSPECIFIED"),
        *("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDING"),
    }
)


@dataclass(frozen=True, slots=True)
class HeldCapacity:
    """The nodes of one kind that one resource holds. `delete` is the command that frees them."""

    label: str
    zone: str
    accelerator: AcceleratorType
    tier: Tier
    state: str
    is_dead: bool
    count: int
    delete: str
    # When its time ends by the label of the first node; None without a valid label.
    expires: datetime | None = None
    # Its label says that no clean-up may delete it.
    is_kept: bool = False

    @property
    def pool(self) -> QuotaPool:
        """The quota that the nodes count against."""
        return QuotaPool.of(self.accelerator, self.tier)

    @property
    def surely_counts(self) -> bool:
        """Return whether the nodes are known to count against quota: live nodes, and dead ones that were not deleted."""
        return self.state not in _MAY_COUNT_STATES

    @property
    def size(self) -> int:
        """The amount held, in the unit of the type's number: cores or chips."""
        return self.count * self.accelerator.size

    @property
    def chips(self) -> int:
        """The number of chips held."""
        return self.count * self.accelerator.chips


def held_capacity(resources: ProjectResources, wanted: WantedNode) -> tuple[HeldCapacity, ...]:
    """Return what the project holds, without the node that will be replaced and without types unknown to the table.

    A queued resource counts all its nodes, in every state, waiting ones included (unverified). A node whose queued
    resource is not listed counts itself.
    """
    replaced = wanted.replaces.name if wanted.replaces else None
    listed = {request.name for request in resources.requests}
    existing = {node.name: node for node in resources.nodes}
    found = [holding for request in resources.requests for holding in _capacity_of_request(request, wanted, existing)]
    for node in resources.nodes:
        zone, node_id = node.name.zone, node.name.node_id
        if node.accelerator and node.queued_resource not in listed and node.name != replaced:
            delete = delete_node_command(wanted.project, zone, node_id)
            is_dead = node.is_preempted or node.state.is_dead
            found.append(
                HeldCapacity(
                    f"`{zone}/{node_id}`",
                    zone,
                    node.accelerator,
                    node.tier,
                    str(node.state),
                    is_dead,
                    1,
                    delete,
                    node.expires,
                    node.is_kept,
                )
            )
    return tuple(found)


def _capacity_of_request(
    request: QueuedResource, wanted: WantedNode, existing: Mapping[NodeName, Node]
) -> Iterator[HeldCapacity]:
    """Yield each kind of node that is requested."""
    replaced = wanted.replaces.name if wanted.replaces else None
    parent, rest = request.name.rpartition("/queuedResources/")[0], list(request.node_ids)
    for spec in (request.raw.get("tpu") or {}).get("nodeSpec") or ():
        multiple = spec.get("multisliceParams") or spec.get("multiNodeParams") or {}
        node_count = int(multiple.get("nodeCount", 0)) if multiple else 1
        ids, rest = rest[:node_count], rest[node_count:]
        nodes = [Node.from_api({**(spec.get("node") or {}), "name": f"{parent}/nodes/{node_id}"}) for node_id in ids]
        kept = [node for node in nodes if node.name != replaced]
        if kept and kept[0].accelerator:
            several = len(request.node_ids) > 1
            # The labels of a node that exists may have been changed since it was requested.
            labelled = [existing.get(node.name, node) for node in kept]
            ends = [node.expires for node in labelled if node.expires is not None]
            yield HeldCapacity(
                f"queued resource `{request.zone}/{last_segment(request.name)}`",
                request.zone,
                kept[0].accelerator,
                _request_tier(request, kept[0]),
                str(request.state),
                is_dead=request.state.is_dead,
                count=len(kept),
                delete=delete_queued_resource_command(wanted.project, request.zone, ids[0], all_nodes=several),
                expires=max(ends) if len(ends) == len(labelled) else None,
                is_kept=any(node.is_kept for node in labelled),
            )


def _request_tier(request: QueuedResource, node: Node) -> Tier:
    raw, scheduling = request.raw, node.raw.get("schedulingConfig") or {}
    models = {str(raw.get("provisioningModel")), str(scheduling.get("provisioningModel"))}
    if "spot" in raw or models & _PREEMPTIBLE_MODELS:
        return Tier.SPOT
    if (raw.get("guaranteed") or {}).get("reserved"):
        return Tier.RESERVED
    return node.tier


# Metrics and limits are matched by the words of their names, as the scheme is not documented. Observed: metrics such as
# `tpu.googleapis.com/tpu-v5s-litepod-serving-preemptible` (marin#6198), limits such as
# `TPUV6EPreemptiblePerProjectPerRegionForTPUAPI` (marin#1612).
_NAME_WORD = re.compile(r"tpu(?=v\d)|v\d[a-z]?(?![a-z])|[a-z]+", re.IGNORECASE)
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])")
_GENERATION_WORD = re.compile(r"v(\d)([a-z]?)")
# Generations whose multi-worker slices have their own quota; v4 has a single quota, whose name says pods.
_GENERATIONS_WITH_POD_QUOTA = frozenset({"v2", "v3"})


@dataclass(frozen=True, slots=True)
class QuotaPool:
    """What one quota counts. `kind` is `pod` for slices of v2 and v3, `serving` for small v5e types, else empty.

    Spot and preemptible nodes share one quota. Reserved nodes are assumed to count as on-demand (unverified).
    """

    generation: str
    is_preemptible: bool
    kind: str = ""

    @classmethod
    def of(cls, accelerator: AcceleratorType, tier: Tier | None) -> QuotaPool:
        """Return the quota that a node counts against."""
        generation = accelerator.generation
        is_pod = generation.name in _GENERATIONS_WITH_POD_QUOTA and accelerator.is_slice
        kind = "pod" if is_pod else "serving" if accelerator.size in generation.serving else ""
        return cls(generation.name, tier in {Tier.SPOT, Tier.PREEMPTIBLE}, kind)

    @classmethod
    def named(cls, text: str) -> QuotaPool | None:
        """Return the quota that the name of a metric or a limit describes; None if it names no generation."""
        last = re.split(r"per ?project", text.rpartition("/")[2], flags=re.IGNORECASE)[0]
        apart = re.sub(r"lite ?-?pod", " litepod ", _CAMEL_CASE_BOUNDARY.sub(" ", last), flags=re.IGNORECASE)
        words = frozenset(word.lower() for word in _NAME_WORD.findall(apart))
        generation = next(filter(None, (_generation_of_word(word, words) for word in words)), None)
        # Reserved capacity has its own quota, which is 0 without a reservation [documentation of quotas].
        if generation is None or "reserved" in words:
            return None
        kind = "serving" if "serving" in words else ""
        if "pod" in words and generation in _GENERATIONS_WITH_POD_QUOTA:
            kind = "pod"
        return cls(generation, not words.isdisjoint({"preemptible", "spot"}), kind)

    def __str__(self) -> str:
        tier = "preemptible" if self.is_preemptible else "on-demand"
        return " ".join(filter(None, (tier, self.generation, {"pod": "slices", "serving": "serving"}.get(self.kind))))


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """One limit that applies in a place: a zone, a region or, if empty, the whole project."""

    metric: str
    name: str
    place: str
    value: int | None

    def holds_in(self, zone: str) -> bool:
        """Return whether resources in a zone count against the limit."""
        return self.place in {"", zone, region_of_zone(zone)}


def effective_limits(quotas: Iterable[QuotaLimit], pool: QuotaPool, zone: str) -> tuple[EffectiveLimit, ...]:
    """Return the limits of a pool for a zone.

    Limits of the zone and of its region both apply [observed: skypilot source].
    """
    places = {"zone": zone, "region": region_of_zone(zone), "": ""}
    found: dict[EffectiveLimit, None] = {}
    alike: dict[tuple[str, str, str], list[QuotaLimit]] = {}
    for quota in quotas:
        if _pool_of_limit(quota) == pool:
            # The limit applies to each zone, to each region, or (empty) to the project.
            text = f"{quota.unit} {quota.name}".lower()
            scope = next((word for word in ("zone", "region") if f"{{{word}}}" in text or f"per{word}" in text), "")
            alike.setdefault((quota.metric, quota.name, scope), []).append(quota)
    for (metric, name, scope), same in alike.items():
        # The limit of the place itself applies; otherwise the one without a place, which is the default.
        own = [quota for quota in same if scope and quota.places.get(scope) == places[scope]]
        for quota in own or [quota for quota in same if not quota.places]:
            found[EffectiveLimit(metric, name, places[scope], quota.value)] = None
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """One limit and what counts against it. `is_complete`: all zones of the limit have answered."""

    limit: EffectiveLimit
    unit: str
    needed: int
    holders: tuple[HeldCapacity, ...]
    is_complete: bool

    @property
    def amount(self) -> int:
        """The amount in use, as far as known."""
        return sum(holding.size for holding in self.holders)

    @property
    def is_short(self) -> bool:
        """Return whether too little is left if everything held counts."""
        return self.limit.value is not None and self.amount + self.needed > self.limit.value

    @property
    def is_surely_short(self) -> bool:
        """Return whether too little is left even without what may not count."""
        counted = sum(holding.size for holding in self.holders if holding.surely_counts)
        return self.limit.value is not None and counted + self.needed > self.limit.value

    def clean_up(self, now: datetime) -> tuple[str, tuple[HeldCapacity, ...]] | None:
        """Return the options of `tpuctl gc` that would free enough, and what it would delete; None if that is too little."""
        short = self.amount + self.needed - (self.limit.value or 0)
        dead = tuple(one for one in self.holders if one.is_dead and not one.is_kept)
        ended = tuple(
            one
            for one in self.holders
            if not one.is_dead
            and not one.is_kept
            and one.surely_counts
            and one.expires is not None
            and one.expires <= now
        )
        for options, found in (("", dead), ("--expired", (*dead, *ended))):
            if found and sum(one.size for one in found) >= short:
                return options, found
        return None

    @property
    def place(self) -> str:
        """The zone, region or project that the limit applies to."""
        return self.limit.place or "the project"


def limit_usages(
    wanted: WantedNode, quotas: Iterable[QuotaLimit], resources: ProjectResources | None
) -> tuple[LimitUsage, ...]:
    """Return the limits for a node and its siblings of the same kind; none for a type that the table lacks."""
    accelerator = wanted.accelerator
    if accelerator is None:
        return ()
    pool, needed, unit = QuotaPool.of(accelerator, wanted.spec.tier), accelerator.size, accelerator.generation.unit
    for spec in wanted.siblings:
        other = find_accelerator_type(spec.accelerator_type)
        if other and QuotaPool.of(other, spec.tier) == pool:
            needed += other.size
    capacity = [one for one in held_capacity(resources, wanted) if one.pool == pool] if resources else []
    usages = []
    for limit in effective_limits(quotas, pool, wanted.zone):
        is_complete = resources is not None and not any(limit.holds_in(zone) for zone in resources.unreachable)
        holders = tuple(one for one in capacity if limit.holds_in(one.zone))
        usages.append(LimitUsage(limit, unit, needed, holders, is_complete))
    return tuple(usages)


def _pool_of_limit(quota: QuotaLimit) -> QuotaPool | None:
    """Return what a limit counts, combined from its metric and its name. None if they contradict each other."""
    pools = [pool for pool in (QuotaPool.named(quota.metric), QuotaPool.named(quota.name)) if pool]
    if len({pool.generation for pool in pools}) != 1 or len({pool.kind for pool in pools} - {""}) > 1:
        return None
    kind = max(pool.kind for pool in pools)
    return QuotaPool(pools[0].generation, any(pool.is_preemptible for pool in pools), kind)


def _generation_of_word(word: str, words: frozenset[str]) -> str | None:
    found = _GENERATION_WORD.fullmatch(word)
    if found is None:
        return None
    letter = found[2].removesuffix("s") or ("e" if "litepod" in words else "")
    name = f"v{found[1]}{letter}"
    return name if name in load_accelerators().generations else None


@dataclass(frozen=True, slots=True)
class GrantCoverage:
    """The chips that grants provide for a node. `grants` match its zone, type and tier.

    `used` chips are in use already; `needed` chips are for the nodes that the command creates.
    """

    grants: tuple[Grant, ...]
    granted: int
    used: int
    needed: int

    @property
    def is_enough(self) -> bool:
        """Return whether the grants cover the node."""
        return bool(self.grants) and self.used + self.needed <= self.granted

    @property
    def left(self) -> int:
        """The chips that are not used yet."""
        return max(self.granted - self.used, 0)


def matching_grants(wanted: WantedNode, accelerator: AcceleratorType) -> tuple[Grant, ...]:
    """Return the grants for the node's zone, type and tier, including grants that have ended."""
    return tuple(grant for grant in wanted.grants if not grant_differences(grant, wanted, accelerator))


def grant_coverage(
    wanted: WantedNode, accelerator: AcceleratorType, capacity: Iterable[HeldCapacity], today: date
) -> GrantCoverage:
    """Return the coverage by the grants that are valid today. Dead resources are not billed and use no chips."""
    grants = tuple(grant for grant in matching_grants(wanted, accelerator) if not grant.has_ended(today))
    needed, tier = accelerator.chips, capacity_pool(wanted.spec.tier)
    for spec in wanted.siblings:
        other = find_accelerator_type(spec.accelerator_type)
        if other and capacity_pool(spec.tier) is tier and any(grant.is_of_type(other) for grant in grants):
            needed += other.chips
    used = sum(one.chips for one in capacity if any(_uses_grant(one, grant) for grant in grants))
    return GrantCoverage(grants, sum(grant.chips for grant in grants), used, needed)


def grant_differences(grant: Grant, wanted: WantedNode, accelerator: AcceleratorType) -> tuple[str, ...]:
    """Return, as text, how a grant differs from the node: zone, type or tier."""
    found = []
    if grant.zone != wanted.zone:
        found.append(f"it is for the zone {grant.zone}, not {wanted.zone}")
    if not grant.is_of_type(accelerator):
        found.append(f"it is for {grant.type}, not {accelerator.name}")
    if not grant.is_of_tier(wanted.spec.tier):
        found.append(f"it is for {grant.tier}, not {wanted.spec.tier or Tier.ON_DEMAND}")
    return tuple(found)


def nearest_grant(wanted: WantedNode, accelerator: AcceleratorType, today: date) -> Grant | None:
    """Return the grant that differs least: first a valid grant, then the same type, then zone, then tier."""

    def distance(grant: Grant) -> tuple[bool, bool, bool, bool]:
        generation = grant.generation
        return (
            grant.has_ended(today),
            generation != accelerator.generation,
            grant.zone != wanted.zone,
            not grant.is_of_tier(wanted.spec.tier),
        )

    return min(wanted.grants, key=distance, default=None)


def grant_alternative(
    grant: Grant, accelerator: AcceleratorType, capacity: Iterable[HeldCapacity], today: date
) -> AcceleratorType | None:
    """Return the type that a grant would cover: the same if possible, else the largest that fits and is not larger."""
    left = grant.chips - sum(one.chips for one in capacity if _uses_grant(one, grant))
    generation = grant.generation
    if grant.has_ended(today) or generation is None:
        return None
    if grant.is_of_type(accelerator) and accelerator.chips <= left:
        return accelerator
    names = [generation.type_of(size) for size in generation.sizes] if grant.is_of_chips else [grant.type]
    types = [found for found in map(find_accelerator_type, names) if found and found.chips <= left]
    fitting = [one for one in types if one.chips <= accelerator.chips] or types[:1]
    return max(fitting, key=lambda one: one.chips, default=None)


def _uses_grant(one: HeldCapacity, grant: Grant) -> bool:
    return not one.is_dead and grant.covers(one.zone, one.accelerator, one.tier)
