"""Where could a type run next to some buckets? Zones, the best first. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from tpuctl import accelerators
from tpuctl.colocation import Relation, best_locations, price, relation
from tpuctl.preflight.fact import Absent, Known, Unknown, known

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import date

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.colocation import Price
    from tpuctl.model import NodeSpec
    from tpuctl.model.bucket import Placement
    from tpuctl.preflight.fact import Fact
    from tpuctl.preflight.facts import BucketFacts
    from tpuctl.preflight.grants import Grant
    from tpuctl.preflight.wanted import BucketUse


@dataclass(frozen=True, slots=True)
class BucketFrom:
    """A bucket as a zone sees it; nothing of the placement, and of the price, where it could not be read."""

    use: BucketUse
    placement: Placement | None
    relation: Relation
    price: Price | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRank:
    """A zone that offers the type.

    `grant` covers one such node there. `quota_left` is what `quota_limit` leaves, counted as the quota of the type counts;
    nothing where that is not known. `locations` are those of buckets that would be co-located.
    """

    zone: str
    buckets: tuple[BucketFrom, ...] = ()
    single_tenant: bool = False
    grant: Grant | None = None
    quota_limit: int | None = None
    quota_left: int | None = None
    locations: tuple[str, ...] = ()

    @property
    def worst(self) -> Relation | None:
        """How near the farthest bucket is, `unknown` where that cannot be told of each; nothing without buckets."""
        return max((seen.relation for seen in self.buckets), key=lambda each: each.rank, default=None)

    @property
    def is_colocated(self) -> bool:
        """Tell whether every bucket is where the zone is."""
        return all(seen.relation.is_colocated for seen in self.buckets)

    @property
    def prices(self) -> tuple[Price, ...]:
        """The known prices of its buckets."""
        return tuple(seen.price for seen in self.buckets if seen.price is not None)

    @property
    def span(self) -> tuple[Decimal, Decimal] | None:
        """Dollars for reading a TB (10^12 bytes): the lowest of the cheapest bucket, the highest of the dearest."""
        costs = [each.cost(10**12) for each in self.prices]
        return (min(low for low, _ in costs), max(high for _, high in costs)) if costs else None


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A bucket that no zone can be judged by, and why."""

    use: BucketUse
    reason: str
    permission: str | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The zones, the best first. `offline` says why the table of the documentation told what they offer, not the API."""

    accelerator_type: str
    zones: tuple[ZoneRank, ...]
    unplaced: tuple[Unplaced, ...] = ()
    offline: str | None = None

    @property
    def is_any_colocated(self) -> bool:
        """Tell whether some zone has all the buckets beside it."""
        return any(zone.is_colocated for zone in self.zones)


def rank(
    spec: NodeSpec,
    *,
    today: date,
    offers: Fact[Mapping[str, tuple[str, ...]]] | None = None,
    buckets: Sequence[BucketFacts] = (),
    grants: Sequence[Grant] = (),
    egress_prices: Mapping[str, str] | None = None,
) -> Ranking:
    """Return the zones that offer the type of a spec, the best first.

    All buckets co-located come before multi-regions, those before the same continent, that before all else. Among equals a
    quota of 0 is last; then a grant wins, then a zone for everybody, then quota known to suffice, then the price, then the
    name.
    Raises `ValueError` where `egress_prices` is wrong.
    """
    accelerator = accelerators.find(spec.accelerator_type)
    only = (
        accelerators.load().zones.get(accelerator.generation.name, {}).get("single_tenant", ()) if accelerator else ()
    )
    zones = [
        ZoneRank(
            zone=zone,
            buckets=tuple(_from(zone, bucket, egress_prices) for bucket in buckets),
            single_tenant=zone in only,
            grant=_grant(spec, accelerator, zone, grants, today),
            locations=best_locations(zone.rpartition("-")[0]),
        )
        for zone in _offering(spec, accelerator, offers)
    ]
    return Ranking(
        spec.accelerator_type, tuple(sorted(zones, key=_order)), tuple(_unplaced(buckets)), _why_offline(offers)
    )


def _offering(
    spec: NodeSpec, accelerator: AcceleratorType | None, offers: Fact[Mapping[str, tuple[str, ...]]] | None
) -> Collection[str]:
    """Return the zones that offer the type, single-tenant ones too; of one with a topology those of its generation."""
    live = known(offers)
    if live is None:
        return accelerators.zones_of(accelerator, single_tenant=True) if accelerator else ()
    if spec.topology and accelerator:
        start = f"{accelerator.generation.prefix}-"
        return [zone for zone, types in live.items() if any(name.startswith(start) for name in types)]
    return [zone for zone, types in live.items() if spec.accelerator_type in types]


def _why_offline(offers: Fact[Mapping[str, tuple[str, ...]]] | None) -> str | None:
    match offers:
        case None:
            return "the API was not asked"
        case Unknown(reason=reason):
            return reason
        case Absent(reason=reason):
            return reason or "the API knows of no zones"
        case Known():
            return None


def _from(zone: str, bucket: BucketFacts, egress_prices: Mapping[str, str] | None) -> BucketFrom:
    placement = bucket.placement
    if placement is None:
        return BucketFrom(bucket.use, None, Relation.UNKNOWN, None)
    return BucketFrom(bucket.use, placement, relation(placement, zone), price(placement, zone, own=egress_prices))


def _unplaced(buckets: Sequence[BucketFacts]) -> Iterator[Unplaced]:
    for bucket in buckets:
        match bucket.bucket:
            case Absent(reason=reason):
                yield Unplaced(bucket.use, reason or "there is no such bucket")
            case Unknown(reason=reason, permission=permission) if bucket.placement is None:
                yield Unplaced(bucket.use, reason, permission)


def _grant(
    spec: NodeSpec, accelerator: AcceleratorType | None, zone: str, grants: Sequence[Grant], today: date
) -> Grant | None:
    """Return a grant that is large enough for one node; what other nodes already take of it is not counted."""
    if accelerator is None:
        return None
    fits = (
        grant
        for grant in grants
        if grant.zone == zone
        and grant.is_of_tier(spec.tier)
        and grant.is_of_type(accelerator)
        and not grant.has_ended(today)
        and grant.chips >= accelerator.chips
    )
    return next(fits, None)


_KINDS = {Relation.MULTI_REGION: 1, Relation.SAME_AREA: 2, Relation.OTHER_AREA: 3, Relation.UNKNOWN: 4}


def _order(zone: ZoneRank) -> tuple[object, ...]:
    """Return what zones are sorted by: the farthest bucket counts most, then the next."""
    kinds = sorted((_KINDS.get(seen.relation, 0) for seen in zone.buckets), reverse=True)
    suffices = zone.quota_left is not None and zone.quota_left > 0
    dearest = zone.span[1] if zone.span else Decimal(0)
    return (kinds, zone.quota_limit == 0, zone.grant is None, zone.single_tenant, not suffices, dearest, zone.zone)
