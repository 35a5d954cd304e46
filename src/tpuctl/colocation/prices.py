"""The cost of reading a bucket from a TPU. Every price is a dated list price, or the user's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

from tpuctl.colocation.places import Relation, area_of, areas_within, regions_within, relation
from tpuctl.colocation.table import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.colocation.table import Pair
    from tpuctl.model.bucket import Placement

GIB = 2**30
TB = 10**12


@dataclass(frozen=True, slots=True)
class Price:
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
        return _between(_dollars(low), _dollars(high))

    @property
    def basis(self) -> str:
        """The price and its source: `$0.02/GiB, list price of 2026-06`."""
        each = _between(_dollars(self.low), _dollars(self.high))
        if self.is_own:
            return f"{each}/GiB, the price in your settings"
        doubt = "; sources disagree" if self.is_disputed else ""
        return f"{each}/GiB, list price of {self.seen}{doubt}" if self.seen else f"{each}/GiB"

    def __str__(self) -> str:
        """Return `$18.63 per TB ($0.02/GiB, list price of 2026-06)`; a TB is 10^12 bytes, 931.3 GiB."""
        return "free" if self.is_free else f"{self.of(TB)} per TB ({self.basis})"


FREE = Price(Decimal(0), Decimal(0))


def price(placement: Placement, zone: str, *, own: Mapping[str, str] | None = None) -> Price | None:
    """Return what reading a bucket from a TPU in a zone costs; None if unknown.

    `own` are the user's prices, as for `own_prices`. Of several areas the dearest counts. Raises `ValueError` if `own`
    is invalid.
    """
    mine = own_prices(own or {})
    how = relation(placement, zone)
    if how.is_colocated:
        return FREE
    region = zone.rpartition("-")[0]
    there = area_of(region)
    if how is Relation.UNKNOWN or there is None:
        return None
    pairs = [load().pair(area, there) for area in areas_within(placement)]
    prices = [
        Price(mine[pair], mine[pair], is_own=True) if pair in mine else Price(*load().prices[pair], load().prices_seen)
        for pair in pairs
    ]
    dearest = max(prices, key=lambda found: found.high, default=None)
    if dearest is None or dearest.is_own:
        return dearest
    # Some sources put one of the regions in a dearer group.
    dearer = [load().dearer[name] for name in (region, *regions_within(placement)) if name in load().dearer]
    highest = max(dearer, default=dearest.high)
    return dearest if highest <= dearest.high else replace(dearest, high=highest, is_disputed=True)


def retrieval(storage_class: str) -> Price | None:
    """Return the retrieval price of a storage class, in addition to the network; None for an unknown class."""
    found = load().classes.get(storage_class)
    return Price(found.retrieval, found.retrieval, load().prices_seen) if found else None


def own_prices(settings: Mapping[str, str]) -> Mapping[Pair, Decimal]:
    """Return the user's prices, `{"us-europe": "0.05"}` in dollars per GiB, by pair of areas in either order.

    Raises `ValueError` with a message for the user if a key is not a pair of areas or a value not a price.
    """
    areas, prices = load().areas, {}
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
        prices[load().pair(first, second)] = found
    return prices


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _dollars(amount: Decimal) -> str:
    """Return `$1,234.50`; all digits of a price below a cent."""
    text = f"{amount:,f}"
    whole, _, digits = text.partition(".")
    return f"${whole}.{digits.rstrip('0').ljust(2, '0')}"
