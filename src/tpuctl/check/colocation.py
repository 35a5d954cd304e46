"""How near a bucket is to a TPU, which locations would be near, and what reading the bucket costs.

Every price is a dated list price from `data/locations.yaml`, or the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cache
from typing import Any

from tpuctl.models.bucket import BucketPlacement
from tpuctl.yaml_reader import load_data


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


def placement_relation(placement: BucketPlacement, zone: str) -> Relation:
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
        is_there = placement.kind == "zone" and _zone_of_placement(placement) == zone
        return Relation.SAME_ZONE if is_there else Relation.SAME_REGION
    if not regions and placement_spans(placement, region):
        return Relation.MULTI_REGION
    areas = areas_within(placement)
    area = area_of(region)
    if not areas or area is None:
        return Relation.UNKNOWN
    return Relation.SAME_AREA if area in areas else Relation.OTHER_AREA


def is_colocated(placement: BucketPlacement, zone: str) -> bool:
    """Return whether reads of a bucket from a TPU in a zone stay within the region; false if unknown."""
    return placement_relation(placement, zone).is_colocated


def best_locations(region: str) -> tuple[str, ...]:
    """Return the bucket locations that are co-located with TPUs of a region, as the storage API writes them."""
    duals = [name for name, regions in load_locations()["dual_regions"].items() if region in regions]
    return (region.upper(), *duals)


def regions_within(placement: BucketPlacement) -> tuple[str, ...]:
    """Return the regions that hold a bucket's data; empty for a multi-region and if unknown."""
    place = placement.location.lower()
    named = tuple(region.lower() for region in placement.data_locations)
    # A configurable dual-region has a continent or country as its location; only its regions are precise [API storage v1].
    if len(named) > 1:
        return named
    match placement.kind:
        case "zone":
            region = _zone_of_placement(placement).rpartition("-")[0]
            return (region,) if region else ()
        case "region":
            return (place,) if place else ()
        case "dual-region":
            return named or tuple(load_locations()["dual_regions"].get(placement.location, ()))
    return ()


def _zone_of_placement(placement: BucketPlacement) -> str:
    """Return the zone of a zonal bucket: its location or, if that is the region, the data location [unverified]."""
    return next(iter(placement.data_locations), placement.location).lower()


def _multi_region(placement: BucketPlacement) -> dict[str, Any]:
    """Return the table's entry of a multi-region; empty for other placements, and if the table lacks it."""
    is_multi = placement.kind == "multi-region" and not regions_within(placement)
    return dict(load_locations()["multi_regions"].get(placement.location, {})) if is_multi else {}


def placement_spans(placement: BucketPlacement, region: str) -> bool:
    """Return whether a bucket's data is, or within a multi-region may be, in a region."""
    if multi := _multi_region(placement):
        return region.partition("-")[0] in multi["prefixes"] and region not in multi.get("excluded", ())
    return region in regions_within(placement)


def areas_within(placement: BucketPlacement) -> frozenset[str]:
    """Return the areas (keys of the price table) of a bucket; empty if any of them is unknown."""
    if multi := _multi_region(placement):
        return frozenset({multi["area"]})
    areas = {area_of(region) for region in regions_within(placement)}
    return frozenset(area for area in areas if area) if None not in areas else frozenset()


def area_of(region: str) -> str | None:
    """Return the area of a region, by the first part of its name; None if the table has none."""
    prefix, dash, _ = region.partition("-")
    areas = load_locations()["areas"]
    return next((name for name, area in areas.items() if dash and prefix in area["prefixes"]), None)


GIB = 2**30
TB = 10**12


@dataclass(frozen=True, slots=True)
class EgressPrice:
    """Dollars per GiB: the lowest and the highest price in the sources.

    `seen` is the month of a list price; None if free. `is_own`: the price is from the user's settings. `is_disputed`:
    sources disagree on the price group of the region.
    """

    low: Decimal
    high: Decimal
    seen: str | None = None
    is_own: bool = False
    is_disputed: bool = False

    @property
    def is_free(self) -> bool:
        """Return whether reading is free."""
        return not self.high

    def cost(self, size: int) -> tuple[Decimal, Decimal]:
        """Return the dollars for a number of bytes, low and high, rounded to cents."""
        cent = Decimal("0.01")
        return (self.low * size / GIB).quantize(cent), (self.high * size / GIB).quantize(cent)

    def of(self, size: int) -> str:
        """Return the cost of a number of bytes: `$18.63`, `$46.57 to $74.51`."""
        low, high = self.cost(size)
        if size and self.high and not high:
            return "less than $0.01"
        return _format_range(_format_dollars(low), _format_dollars(high))

    @property
    def basis(self) -> str:
        """The price and its source: `$0.02/GiB, list price of 2026-06`."""
        each = _format_range(_format_dollars(self.low), _format_dollars(self.high))
        if self.is_own:
            return f"{each}/GiB, the price in your settings"
        doubt = "; sources disagree" if self.is_disputed else ""
        return f"{each}/GiB, list price of {self.seen}{doubt}" if self.seen else f"{each}/GiB"

    def __str__(self) -> str:
        """Return `$18.63 per TB ($0.02/GiB, list price of 2026-06)`; a TB is 10^12 bytes, 931.3 GiB."""
        return "free" if self.is_free else f"{self.of(TB)} per TB ({self.basis})"


FREE_OF_CHARGE = EgressPrice(Decimal(0), Decimal(0))


def egress_price(placement: BucketPlacement, zone: str, *, own: Mapping[str, str] | None = None) -> EgressPrice | None:
    """Return what reading a bucket from a TPU in a zone costs; None if unknown.

    `own` are the user's prices, as for `own_prices`. Of several areas the most expensive counts. Raises `ValueError` if `own`
    is invalid.
    """
    user_prices = own_prices(own or {})
    relation = placement_relation(placement, zone)
    if relation.is_colocated:
        return FREE_OF_CHARGE
    region = zone.rpartition("-")[0]
    there = area_of(region)
    if relation is Relation.UNKNOWN or there is None:
        return None
    table = load_locations()
    prices = []
    for area in areas_within(placement):
        pair = _area_pair(area, there)
        if pair in user_prices:
            prices.append(EgressPrice(user_prices[pair], user_prices[pair], is_own=True))
        else:
            listed = [Decimal(text) for text in table["prices"][pair]]
            prices.append(EgressPrice(listed[0], listed[-1], table["prices_seen"]))
    highest = max(prices, key=lambda found: found.high, default=None)
    if highest is None or highest.is_own:
        return highest
    # Some sources put one of the regions in a more expensive group.
    dearer = [table["dearer"][name] for name in (region, *regions_within(placement)) if name in table["dearer"]]
    price = max(map(Decimal, dearer), default=highest.high)
    return highest if price <= highest.high else replace(highest, high=price, is_disputed=True)


def retrieval_price(storage_class: str) -> EgressPrice | None:
    """Return the retrieval price of a storage class, in addition to the network; None for an unknown class."""
    table = load_locations()
    if storage_class not in table["classes"]:
        return None
    price = Decimal(table["classes"][storage_class]["retrieval"])
    return EgressPrice(price, price, table["prices_seen"])


def own_prices(settings: Mapping[str, str]) -> Mapping[str, Decimal]:
    """Return the user's prices, `{"us-europe": "0.05"}` in dollars per GiB, by pair of areas in either order.

    Raises `ValueError` with a message for the user if a key is not a pair of areas or a value not a price.
    """
    areas, prices = load_locations()["areas"], {}
    for key, value in settings.items():
        first, _, second = str(key).strip().lower().partition("-")
        if first not in areas or second not in areas:
            raise ValueError(f"`{key}` is not a pair of areas: write two of {', '.join(areas)}, such as `us-europe`")
        try:
            found = Decimal(str(value).strip())
        except InvalidOperation:
            found = Decimal("NaN")
        if not found.is_finite() or found < 0:
            raise ValueError(f"`{value}` for `{key}` is not a price: write dollars per GiB, such as `0.05`")
        prices[_area_pair(first, second)] = found
    return prices


def _area_pair(area: str, other: str) -> str:
    """Return two areas in the order of the table, as in its prices: `us-europe`."""
    return "-".join(sorted((area, other), key=list(load_locations()["areas"]).index))


def _format_range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _format_dollars(amount: Decimal) -> str:
    """Return `$1,234.50`; all digits of a price below a cent."""
    text = f"{amount:,f}"
    whole, _, digits = text.partition(".")
    return f"${whole}.{digits.rstrip('0').ljust(2, '0')}"


@cache
def load_locations() -> dict[str, Any]:
    """Return the table of locations and prices, `data/locations.yaml`; the file is read once.

    `prices` has one or two sources, in dollars per GiB, for each pair of areas. `dearer` has the regions that some sources
    put in a more expensive group than their area, with the highest price found. `prices_seen` is the month of the prices.
    """
    return dict(load_data("locations.yaml"))
