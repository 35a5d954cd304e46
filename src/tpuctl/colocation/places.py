"""How near a bucket is to a TPU, and which locations would be near."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from tpuctl.colocation.table import load

if TYPE_CHECKING:
    from tpuctl.model.bucket import Placement


class Relation(StrEnum):
    """How near a bucket is to a TPU, the nearest first; `UNKNOWN` is last."""

    SAME_ZONE = "same-zone"
    SAME_REGION = "same-region"
    DUAL_REGION = "dual-region"
    MULTI_REGION = "multi-region"
    SAME_AREA = "same-area"
    OTHER_AREA = "other-area"
    UNKNOWN = "unknown"

    @property
    def is_colocated(self) -> bool:
        """Return whether reads stay within the region, and are free."""
        return self in {Relation.SAME_ZONE, Relation.SAME_REGION, Relation.DUAL_REGION}

    @property
    def rank(self) -> int:
        """0 for the nearest."""
        return list(Relation).index(self)


def relation(placement: Placement, zone: str) -> Relation:
    """Return how near a bucket is to a TPU in a zone.

    Never raises: a location, kind or region that the table lacks is `UNKNOWN`, unless it is the TPU's own region. A
    multi-region that does not contain the TPU's region counts as another location of its continent [documentation,
    bucket locations].
    """
    region = zone.rpartition("-")[0]
    regions = regions_within(placement)
    if region in regions:
        if len(regions) > 1:
            return Relation.DUAL_REGION
        is_there = placement.kind == "zone" and _zone_of(placement) == zone
        return Relation.SAME_ZONE if is_there else Relation.SAME_REGION
    if not regions and spans(placement, region):
        return Relation.MULTI_REGION
    areas = areas_within(placement)
    area = area_of(region)
    if not areas or area is None:
        return Relation.UNKNOWN
    return Relation.SAME_AREA if area in areas else Relation.OTHER_AREA


def is_colocated(placement: Placement, zone: str) -> bool:
    """Return whether reads of a bucket from a TPU in a zone stay within the region; false if unknown."""
    return relation(placement, zone).is_colocated


def best_locations(region: str) -> tuple[str, ...]:
    """Return the bucket locations that are co-located with TPUs of a region, as the storage API writes them."""
    duals = [name for name, regions in load().dual_regions.items() if region in regions]
    return (region.upper(), *duals)


def regions_within(placement: Placement) -> tuple[str, ...]:
    """Return the regions that hold a bucket's data; empty for a multi-region and if unknown."""
    place = placement.location.lower()
    named = tuple(region.lower() for region in placement.data_locations)
    # A configurable dual-region has a continent or country as its location; only its regions are precise [API storage v1].
    if len(named) > 1:
        return named
    match placement.kind:
        case "zone":
            region = _zone_of(placement).rpartition("-")[0]
            return (region,) if region else ()
        case "region":
            return (place,) if place else ()
        case "dual-region":
            return named or load().dual_regions.get(placement.location, ())
    return ()


def _zone_of(placement: Placement) -> str:
    """Return the zone of a zonal bucket: its location or, if that is the region, the data location [unverified]."""
    return next(iter(placement.data_locations), placement.location).lower()


def spans(placement: Placement, region: str) -> bool:
    """Return whether a bucket's data is, or within a multi-region may be, in a region."""
    regions = regions_within(placement)
    multi = load().multi_regions.get(placement.location) if placement.kind == "multi-region" and not regions else None
    return multi.spans(region) if multi else region in regions


def areas_within(placement: Placement) -> frozenset[str]:
    """Return the areas (keys of the price table) of a bucket; empty if any of them is unknown."""
    regions = regions_within(placement)
    if placement.kind == "multi-region" and not regions:
        multi = load().multi_regions.get(placement.location)
        return frozenset({multi.area} if multi else ())
    areas = [area_of(region) for region in regions]
    return frozenset(area for area in areas if area) if all(areas) else frozenset()


def area_of(region: str) -> str | None:
    """Return the area of a region, by the first part of its name; None if the table has none."""
    prefix, dash, _ = region.partition("-")
    return next((name for name, area in load().areas.items() if dash and prefix in area.prefixes), None)
