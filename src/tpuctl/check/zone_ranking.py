"""Rank the zones where a type can run close to some buckets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from tpuctl.accelerators import AcceleratorType, documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.colocation import EgressPrice, Relation, best_locations, egress_price, placement_relation
from tpuctl.check.facts import (
    Absent,
    BucketFacts,
    BucketUse,
    CheckSettings,
    Fact,
    Known,
    ProjectResources,
    Unknown,
    WantedNode,
    value_or_none,
)
from tpuctl.check.quotas import grant_coverage, held_capacity, limit_usages
from tpuctl.models.bucket import BucketPlacement
from tpuctl.models.grants import Grant
from tpuctl.models.project import QuotaLimit
from tpuctl.models.spec import NodeSpec
from tpuctl.prices import Price


@dataclass(frozen=True, slots=True)
class BucketProximity:
    """A bucket as seen from a zone. Placement and price are None if they could not be read."""

    use: BucketUse
    placement: BucketPlacement | None
    relation: Relation
    price: EgressPrice | None


@dataclass(frozen=True, slots=True)
class ZoneQuota:
    """The tightest limit for a type in a zone, in the `unit` (cores or chips) of the type's number.

    `left` is None if current usage is unknown; `limit` is None if there is no limit.
    """

    limit: int | None
    left: int | None
    needed: int
    unit: str

    @property
    def suffices(self) -> bool | None:
        """Return whether one more node fits into the quota; None if unknown."""
        if self.limit is None:
            return True
        if self.limit < self.needed:
            return False
        return None if self.left is None else self.left >= self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRank:
    """A zone that offers the type.

    `grants` cover one such node there. `quota` is None if no limit is known for the type. `locations` are bucket
    locations that would be co-located. `price` is that of the node.
    """

    zone: str
    buckets: tuple[BucketProximity, ...] = ()
    single_tenant: bool = False
    grants: tuple[Grant, ...] = ()
    quota: ZoneQuota | None = None
    locations: tuple[str, ...] = ()
    price: Price

    @property
    def rank(self) -> tuple[object, ...]:
        """The sort key of the zone without its name, equal for zones that differ in nothing.

        The farthest bucket counts most, then the next.
        """
        kinds = sorted((_RELATION_RANKS.get(proximity.relation, 0) for proximity in self.buckets), reverse=True)
        is_none = self.quota is not None and self.quota.limit == 0
        doubt = {True: 0, None: 1, False: 2}[self.quota.suffices if self.quota else None]
        low, high = self.span or (Decimal(0), Decimal(0))
        return (kinds, is_none, not self.grants, self.single_tenant, doubt, high, low)

    @property
    def worst(self) -> Relation | None:
        """The relation of the farthest bucket, `unknown` if that of any bucket is unknown; None without buckets."""
        return max((proximity.relation for proximity in self.buckets), key=lambda each: each.rank, default=None)

    @property
    def is_apart(self) -> bool:
        """Return whether any bucket is known to be elsewhere."""
        return any(
            not proximity.relation.is_colocated and proximity.relation is not Relation.UNKNOWN
            for proximity in self.buckets
        )

    @property
    def prices(self) -> tuple[EgressPrice, ...]:
        """The known prices of its buckets."""
        return tuple(proximity.price for proximity in self.buckets if proximity.price is not None)

    @property
    def span(self) -> tuple[Decimal, Decimal] | None:
        """Dollars for reading a TB (10^12 bytes): the lowest and the highest price of any bucket."""
        costs = [each.cost(10**12) for each in self.prices]
        return (min(low for low, _ in costs), max(high for _, high in costs)) if costs else None


@dataclass(frozen=True, slots=True)
class UnplacedBucket:
    """A bucket without known location, which does not affect the ranking, and the reason."""

    use: BucketUse
    reason: str
    permission: str | None = None
    is_absent: bool = False


@dataclass(frozen=True, slots=True)
class ZoneRanking:
    """The zones, the best first. `offline` is the reason why the documentation was used instead of the API."""

    accelerator_type: str
    zones: tuple[ZoneRank, ...]
    unplaced: tuple[UnplacedBucket, ...] = ()
    offline: str | None = None


def rank_zones(
    spec: NodeSpec,
    *,
    project: str,
    today: date,
    zones: Collection[str] = (),
    offers: Fact[Mapping[str, tuple[str, ...]]] | None = None,
    buckets: Sequence[BucketFacts] = (),
    quotas: Fact[tuple[QuotaLimit, ...]] | None = None,
    resources: Fact[ProjectResources] | None = None,
    grants: tuple[Grant, ...] = (),
    egress_prices: Mapping[str, str] | None = None,
) -> ZoneRanking:
    """Return the zones that offer the type of a spec, the best first; only those in `zones` if given.

    Zones with all buckets co-located come first, then multi-region, then the same continent, then the rest. Among
    equals a quota of 0 comes last; then zones with a grant come first, then zones open to all projects, then known
    sufficient quota before unknown before insufficient, then the price, then the name.

    Raises `ValueError` if `egress_prices` is invalid.
    """
    accelerator, live = find_accelerator_type(spec.accelerator_type), value_or_none(offers)
    if live is not None:
        offering: Collection[str] = zones_with_type(live, spec)
    else:
        offering = documented_zones_of(accelerator, single_tenant=True) if accelerator else ()
    settings = CheckSettings(grants=grants, egress_prices=egress_prices or {})
    ranked = [
        ZoneRank(
            zone=wanted.zone,
            buckets=tuple(_bucket_proximity(bucket, wanted) for bucket in buckets),
            single_tenant=wanted.zone in single_tenant_zones(accelerator),
            grants=_covering_grants(wanted, resources, today),
            quota=_zone_quota(wanted, quotas, resources),
            locations=best_locations(wanted.region),
            price=wanted.hourly_price(spec.accelerator_type, wanted.zone, spec.tier),
        )
        for wanted in (settings.wanted(project, zone, spec) for zone in offering if not zones or zone in zones)
    ]
    unplaced = []
    for bucket in buckets:
        match bucket.bucket:
            case Absent(reason):
                unplaced.append(UnplacedBucket(bucket.use, reason or "there is no such bucket", is_absent=True))
            case Unknown(reason, permission) if bucket.placement is None:
                unplaced.append(UnplacedBucket(bucket.use, reason, permission))
    offline = None
    if not isinstance(offers, Known):
        offline = "the API was not called" if offers is None else offers.reason or "the API returned no zones"
    ranked.sort(key=lambda zone: (zone.rank, zone.zone))
    return ZoneRanking(spec.accelerator_type, tuple(ranked), tuple(unplaced), offline)


def zones_with_type(offers: Mapping[str, tuple[str, ...]], spec: NodeSpec) -> list[str]:
    """Return the zones that offer the type of a spec; with a topology, those with its generation."""
    accelerator = find_accelerator_type(spec.accelerator_type)
    if spec.topology and accelerator:
        # Types have default shapes; for another shape only the generation counts.
        start = f"{accelerator.generation.prefix}-"
        return [zone for zone, types in offers.items() if any(name.startswith(start) for name in types)]
    return [zone for zone, types in offers.items() if spec.accelerator_type in types]


def single_tenant_zones(accelerator: AcceleratorType | None) -> Collection[str]:
    """Return the zones that need an agreement with Google for a type [documentation, a snapshot]."""
    zones = load_accelerators().zones.get(accelerator.generation.name, {}) if accelerator else {}
    return zones.get("single_tenant", ())


def _bucket_proximity(bucket: BucketFacts, wanted: WantedNode) -> BucketProximity:
    if (place := bucket.placement) is None:
        return BucketProximity(bucket.use, None, Relation.UNKNOWN, None)
    price = egress_price(place, wanted.zone, own=wanted.egress_prices)
    return BucketProximity(bucket.use, place, placement_relation(place, wanted.zone), price)


def _covering_grants(wanted: WantedNode, resources: Fact[ProjectResources] | None, today: date) -> tuple[Grant, ...]:
    """Return the grants that cover one more node in the zone; none if the current usage is unknown."""
    accelerator, known = wanted.accelerator, value_or_none(resources)
    if accelerator is None or known is None or wanted.zone in known.unreachable:
        return ()
    coverage = grant_coverage(wanted, accelerator, held_capacity(known, wanted), today)
    return coverage.grants if coverage.is_enough else ()


def _zone_quota(
    wanted: WantedNode, quotas: Fact[tuple[QuotaLimit, ...]] | None, resources: Fact[ProjectResources] | None
) -> ZoneQuota | None:
    """Return the limit that leaves the least. Limits of the zone and of its region both apply."""
    usages = limit_usages(wanted, value_or_none(quotas) or (), value_or_none(resources))
    if not usages:
        return None
    needed, unit = usages[0].needed, usages[0].unit
    # What is left of each limit, and the limit.
    bounded = [(usage.limit.value - usage.amount, usage) for usage in usages if usage.limit.value is not None]
    if not bounded:
        return ZoneQuota(None, None, needed, unit)
    if not all(usage.is_complete for _, usage in bounded):
        return ZoneQuota(min(usage.limit.value or 0 for _, usage in bounded), None, needed, unit)
    left, tightest = min(bounded, key=lambda pair: pair[0])
    return ZoneQuota(tightest.limit.value, max(left, 0), needed, unit)


_RELATION_RANKS = {Relation.MULTI_REGION: 1, Relation.SAME_AREA: 2, Relation.OTHER_AREA: 3, Relation.UNKNOWN: 4}
