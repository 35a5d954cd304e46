"""SKUs of the Cloud Billing Catalog, and the prices of chips in them. Pure.

TPUs are in two services: v2 to v4 are sold in units of 8 cores, v5e, v5p and v6e by the chip. The description names the
generation (`Tpu-v3`, `TpuV5e`), `Pod` for slices of v2 and v3 and for all of v4, and `Preemptible` for spot capacity: the usage
type of those is `OnDemand` too [source: gpuhunt, SkyPilot]. What a SKU of flex-start looks like is not known, so that a
description with any word that limits it is skipped: a price is never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tpuctl.prices import pod_key
from tpuctl.shapes import COUNT, NUMBER, TIME, ListOf, Scalar, Shape

TPU_SERVICE = "services/E000-3F24-B8AA"
COMPUTE_SERVICE = "services/6F81-5844-456A"

_NANOS = Scalar("billionths, 0 to 999999999", lambda value: COUNT.accepts(value) and int(value) < 10**9, "integer")
_UNITS = Scalar("dollars, at most 9 digits", lambda value: COUNT.accepts(value) and int(value) < 10**9, "integer")
_MONEY = Shape("cloudbilling.v1 Money", {"currencyCode": str, "units": _UNITS, "nanos": _NANOS})
_RATE = Shape("cloudbilling.v1 TierRate", {"startUsageAmount": NUMBER, "unitPrice": _MONEY})
_EXPRESSION = Shape("cloudbilling.v1 PricingExpression", {"usageUnit": str, "tieredRates": ListOf(_RATE)})
SKU = Shape(
    "cloudbilling.v1 Sku",
    {
        "name": str,
        "description": str,
        "serviceRegions": ListOf(str),
        "category": Shape("cloudbilling.v1 Category", {"usageType": str}),
        "pricingInfo": ListOf(
            Shape("cloudbilling.v1 PricingInfo", {"effectiveTime": TIME, "pricingExpression": _EXPRESSION})
        ),
    },
)

_GENERATION = re.compile(r"\btpu-?(v[2-6][ep]?)\b", re.IGNORECASE | re.ASCII)
_CHIPS_OF_UNIT = {"v2": 4, "v3": 4, "v4": 4, "v5e": 1, "v5p": 1, "v6e": 1}
_PODS = frozenset({"v2", "v3"})
_LIMITED = re.compile(r"commit|reserv|flex|dws|calendar|defined duration|trial|legacy", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TpuSku:
    """The price of one chip for an hour. `generation` and `column` are keys of a `PriceList`."""

    generation: str
    column: str
    regions: tuple[str, ...]
    per_chip: Decimal

    @classmethod
    def from_api(cls, data: Mapping[str, Any], service: str) -> TpuSku | None:
        """Parse a Sku of a service; None if it is not the price of TPU chips by the hour in dollars. Raises `ShapeError`."""
        # A service has tens of thousands: the others are not checked.
        description = data.get("description") if isinstance(data, dict) else None
        found = _GENERATION.search(description) if isinstance(description, str) else None
        if found is None or not isinstance(description, str):
            return None
        SKU.check(data)
        generation, is_pod = found[1].lower(), bool(re.search(r"\bpod\b", description, re.IGNORECASE))
        is_own_service = service == (TPU_SERVICE if generation in {"v2", "v3", "v4"} else COMPUTE_SERVICE)
        usage = (data.get("category") or {}).get("usageType")
        per_unit = _dollars_per_hour(data)
        if generation not in _CHIPS_OF_UNIT or not is_own_service or _LIMITED.search(description) or per_unit is None:
            return None
        if usage not in {None, "OnDemand", "Preemptible"}:
            return None
        is_spot = usage == "Preemptible" or re.search(r"preemptible|\bspot\b", description, re.IGNORECASE)
        return cls(
            pod_key(generation) if is_pod and generation in _PODS else generation,
            "spot" if is_spot else "on_demand",
            tuple(data.get("serviceRegions") or ()),
            per_unit / _CHIPS_OF_UNIT[generation],
        )


def _dollars_per_hour(data: Mapping[str, Any]) -> Decimal | None:
    """Return the present price of a unit; None unless it is one rate above 0, in dollars for an hour."""
    timeline = data.get("pricingInfo") or ()
    expression = (timeline[-1].get("pricingExpression") or {}) if timeline else {}
    rates = [rate.get("unitPrice") or {} for rate in expression.get("tieredRates") or ()]
    if expression.get("usageUnit") != "h" or len(rates) != 1 or rates[0].get("currencyCode") != "USD":
        return None
    dollars = Decimal(rates[0].get("units") or 0) + Decimal(rates[0].get("nanos") or 0) / 10**9
    return dollars or None


def chip_prices(skus: Iterable[TpuSku]) -> dict[str, dict[str, dict[str, Decimal]]]:
    """Return the prices by generation, region and column. What two SKUs contradict each other about is left out."""
    found: dict[tuple[str, str, str], set[Decimal]] = {}
    for sku in skus:
        for region in sku.regions:
            found.setdefault((sku.generation, region, sku.column), set()).add(sku.per_chip)
    prices: dict[str, dict[str, dict[str, Decimal]]] = {}
    for (generation, region, column), dollars in sorted(found.items()):
        if len(dollars) == 1:
            prices.setdefault(generation, {}).setdefault(region, {})[column] = next(iter(dollars))
    return prices
