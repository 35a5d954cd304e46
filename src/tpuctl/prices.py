"""What a node costs for an hour, by type, zone and capacity type.

The table is `data/prices.yaml`, with its date. A price that it lacks is unknown: never 0, and never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from tpuctl.accelerators import find_accelerator_type
from tpuctl.names import region_of_zone
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from collections.abc import Mapping

_CENT = Decimal("0.01")
# The column of the table for each capacity type. Spot and preemptible nodes are one pool with one price [documentation].
_GENERATIONS_WITH_PODS = frozenset({"v2", "v3"})
_COLUMNS = {"on-demand": "on_demand", "spot": "spot", "preemptible": "spot"}


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars for one node and one hour, rounded to cents.

    `per_hour` is None if the price is unknown. `is_about`: the price changes often, or has a single source. `as_of` is the date
    of the table.
    """

    per_hour: Decimal | None
    is_about: bool
    as_of: str

    def __str__(self) -> str:
        if self.per_hour is None:
            return "?"
        return f"{'about ' if self.is_about else ''}${self.per_hour:,}/h"

    def times(self, count: int) -> Price:
        """Return the price of so many nodes."""
        return replace(self, per_hour=None if self.per_hour is None else self.per_hour * count)

    def to_json(self) -> dict[str, float | bool | str | None]:
        """Return the price for scripts; `perHour` is null if it is unknown."""
        per_hour = None if self.per_hour is None else float(self.per_hour)
        return {"perHour": per_hour, "isAbout": self.is_about, "asOf": self.as_of}


def hourly_price(accelerator_type: str, zone: str, tier: str | None) -> Price:
    """Return the price of a node for an hour, in which it is READY; `tier` None is on-demand.

    Prices of reserved, flex-start and best-effort capacity are in no list.
    """
    accelerator, tier = find_accelerator_type(accelerator_type), tier or "on-demand"
    generation = accelerator.generation.name if accelerator else ""
    if accelerator is not None and accelerator.is_slice and generation in _GENERATIONS_WITH_PODS:
        generation = pod_key(generation)
    table = _price_table()
    per_chip = table["per_chip"].get(generation, {}).get(region_of_zone(zone), {}).get(_COLUMNS.get(tier, ""))
    per_hour = None
    if accelerator is not None and per_chip is not None:
        per_hour = (accelerator.chips * Decimal(str(per_chip))).quantize(_CENT, ROUND_HALF_UP)
    return Price(per_hour, tier != "on-demand" or generation in table["about"], table["as_of"])


# What the table has.
PRICE_SOURCE = "list prices"


def price_date() -> str:
    """Return the month of the table."""
    return str(_price_table()["as_of"])


def price_source() -> str:
    """Return where the prices are from, with the date."""
    return f"{PRICE_SOURCE} of {price_date()}"


@cache
def _price_table() -> Mapping[str, Any]:
    """Return dollars for one chip and one hour (`per_chip`), by generation, region and column, with the date (`as_of`).

    `about` names the generations whose prices have a single source.
    """
    table: Mapping[str, Any] = load_data("prices.yaml")
    return table


def pod_key(generation: str) -> str:
    """Return the key of a price list for slices of a generation whose slices have another price than single nodes."""
    return f"{generation} pod"


def within_budget(price: Price, limit: Decimal | None, *, allow_unknown: bool = False) -> bool:
    """Return whether a price is at most the limit; an unknown one only with `allow_unknown`. None is no limit."""
    if limit is None:
        return True
    return allow_unknown if price.per_hour is None else price.per_hour <= limit


def budget_words(price: Price, limit: Decimal) -> str:
    """Return why a price is not within the limit: `costs $21.60/h, more than the limit of $20/h`."""
    if price.per_hour is None:
        return f"has no known price, and the limit is ${limit:,}/h"
    return f"costs {price}, more than the limit of ${limit:,}/h"
