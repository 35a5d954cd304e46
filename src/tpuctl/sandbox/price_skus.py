"""Cloud Billing Catalog: the SKUs of TPUs, from the list prices, and seeded ones. The list is paged and has no filter.

The words of descriptions are unverified beyond those that programs match: the generation, `Pod` and `Preemptible`.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.api_calls import answers, error_of, invalid, list_response
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

SKU_KIND = "cloudbilling.sku"
_TITLES = {"services/E000-3F24-B8AA": "Cloud TPU", "services/6F81-5844-456A": "Compute Engine"}
_TPU, _COMPUTE = _TITLES
_EFFECTIVE = "2025-12-01T00:00:00Z"
# What a unit of the older generations costs in the sandbox, by description and region: 8 cores for an hour.
_OF_CORES = (
    ("Tpu-v2 accelerator", "us-central1", "4.5"),
    ("Tpu-v2 accelerator Preemptible", "us-central1", "1.35"),
    ("Tpu-v2 Pod accelerator", "us-central1", "6"),
    ("Tpu-v3 accelerator", "us-central1", "8"),
    ("Tpu-v3 accelerator", "europe-west4", "8.8"),
    ("Tpu-v3 accelerator Preemptible", "europe-west4", "2.64"),
    ("Tpu-v3 Pod accelerator", "europe-west4", "8.8"),
    ("Tpu-v4 Pod accelerator", "us-central2", "12.88"),
    ("Tpu-v4 Pod accelerator Preemptible", "us-central2", "3.864"),
)


def put_sku(session: StateSession, **document: Any) -> None:
    """Store a SKU, which replaces built-in ones of the same description and region. Raises `ApiError` for a wrong name."""
    service = str(document["name"]).partition("/skus/")[0]
    if service not in _TITLES:
        raise invalid(f"The name of a SKU begins with one of {', '.join(_TITLES)}")
    session.resources.put(SKU_KIND, service, document["name"], document)


@answers("cloudbilling.services.skus.list")
def _list_skus(session: StateSession, call: Call) -> Json:
    service = call["parent"]
    if service not in _TITLES:
        raise error_of(404)  # unverified words
    seeded = [
        session.resources.get(SKU_KIND, service, one.name) for one in session.resources.list_records(SKU_KIND, service)
    ]
    replaced = {(sku["description"], region) for sku in seeded if sku for region in sku.get("serviceRegions", [])}
    kept = [sku for sku in _built_in_skus(service) if (sku["description"], sku["serviceRegions"][0]) not in replaced]
    return list_response(call, "skus", [*kept, *(sku for sku in seeded if sku)])


@cache
def _built_in_skus(service: str) -> tuple[Json, ...]:
    """Return the SKUs of a service: those of TPUs, and some that look alike."""
    if service == _TPU:
        return tuple(_sku(service, *entry) for entry in _OF_CORES)
    return tuple(_sku(service, *entry, **more) for entry, more in _compute_entries())


def _compute_entries() -> Iterator[tuple[tuple[str, str, str], dict[str, str]]]:
    yield ("N1 Predefined Instance Core running in Americas", "us-central1", "0.031611"), {}
    for generation, regions in load_data("prices.yaml")["per_chip"].items():
        for region, columns in regions.items():
            words = f"Tpu{generation.capitalize()}"
            yield (words, region, str(columns["on_demand"])), {}
            if "spot" in columns:
                # The usage type says OnDemand all the same [source: gpuhunt].
                yield (f"{words} attached to Preemptible VMs", region, str(columns["spot"])), {}
            yield (
                (f"Commitment v1: {words} for 1 Year", region, str(columns["on_demand"] * 0.7)),
                {"usage": "Commit1Yr"},
            )


def _sku(service: str, description: str, region: str, dollars: str, *, usage: str = "OnDemand") -> Json:
    digest = hashlib.sha256(f"{service} {description} {region}".encode()).hexdigest().upper()
    sku_id = f"{digest[:4]}-{digest[4:8]}-{digest[8:12]}"
    units, fraction = divmod(Decimal(dollars), 1)
    money = {"currencyCode": "USD", "units": str(units), "nanos": int(fraction * 10**9)}
    return {
        "name": f"{service}/skus/{sku_id}",
        "skuId": sku_id,
        "description": description,
        "category": {"serviceDisplayName": _TITLES[service], "resourceFamily": "Compute", "usageType": usage},
        "serviceRegions": [region],
        "serviceProviderName": "Google",
        "pricingInfo": [
            {
                "effectiveTime": _EFFECTIVE,
                "currencyConversionRate": 1,
                "pricingExpression": {
                    "usageUnit": "h",
                    "usageUnitDescription": "hour",
                    "displayQuantity": 1,
                    "tieredRates": [{"startUsageAmount": 0, "unitPrice": money}],
                },
            }
        ],
    }
