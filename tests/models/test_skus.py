"""SKUs of the Cloud Billing Catalog: which are prices of chips, and what a chip costs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tpuctl.models.skus import COMPUTE_SERVICE, TPU_SERVICE, TpuSku, chip_prices
from tpuctl.prices import PriceList
from tpuctl.shapes import ShapeError


def sku(description: str, dollars: str = "2.70", region: str = "us-east5", **more: Any) -> dict[str, Any]:
    units, _, fraction = dollars.partition(".")
    money = {"currencyCode": more.pop("currency", "USD"), "units": units, "nanos": int(fraction.ljust(9, "0"))}
    rates = [{"startUsageAmount": 0, "unitPrice": money}] * more.pop("rates", 1)
    expression = {"usageUnit": more.pop("unit", "h"), "tieredRates": rates}
    return {
        "description": description,
        "serviceRegions": [region],
        "category": {"usageType": more.pop("usage", "OnDemand")},
        "pricingInfo": [{"effectiveTime": "2026-01-01T00:00:00Z", "pricingExpression": expression}],
        **more,
    }


@pytest.mark.parametrize(
    ("service", "data", "expected"),
    [
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e"), "v6e on_demand 2.7", id="v6e-by-the-chip"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV5e"), "v5e on_demand 2.7", id="v5e"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV5p Preemptible"), "v5p spot 2.7", id="spot-by-its-description"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", usage="Preemptible"), "v6e spot 2.7", id="spot-by-its-usage"),
        pytest.param(TPU_SERVICE, sku("Tpu-v2 accelerator", "4.5"), "v2 on_demand 1.125", id="v2-by-8-cores"),
        pytest.param(TPU_SERVICE, sku("Tpu-v3 Pod", "8"), "v3 pod on_demand 2", id="v3-slice"),
        pytest.param(TPU_SERVICE, sku("Tpu-v4 Pod", "12.88"), "v4 on_demand 3.22", id="v4-is-always-a-pod"),
        pytest.param(TPU_SERVICE, sku("TpuV6e"), None, id="other-service"),
        pytest.param(COMPUTE_SERVICE, sku("Tpu-v3"), None, id="other-service-of-v3"),
        pytest.param(COMPUTE_SERVICE, sku("N1 Predefined Instance Core"), None, id="no-tpu"),
        pytest.param(
            COMPUTE_SERVICE, sku("Commitment v1: TpuV6e for 1 Year", usage="Commit1Yr"), None, id="commitment"
        ),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", usage="Commit3Yr"), None, id="commitment-by-its-usage"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e DWS Defined Duration"), None, id="flex-start"),
        pytest.param(COMPUTE_SERVICE, sku("Reserved TpuV6e"), None, id="reserved"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV7x"), None, id="unknown-generation"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", "0"), None, id="zero-is-unknown"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", currency="EUR"), None, id="other-currency"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", unit="mo"), None, id="other-unit"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", rates=2), None, id="several-rates"),
        pytest.param(COMPUTE_SERVICE, sku("TpuV6e", pricingInfo=[]), None, id="no-price"),
        pytest.param(COMPUTE_SERVICE, {}, None, id="empty"),
    ],
)
def test_sku_is_a_price_of_a_chip(service: str, data: dict[str, Any], expected: str | None) -> None:
    found = TpuSku.from_api(data, service)

    assert (found and f"{found.generation} {found.column} {found.per_chip.normalize():f}") == expected


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(sku("TpuV6e", serviceRegions="us-east5"), id="regions-are-no-list"),
        pytest.param(sku("TpuV6e", pricingInfo=[{"pricingExpression": {"tieredRates": [1]}}]), id="rate-is-a-number"),
        pytest.param(
            sku("TpuV6e", pricingInfo=[{"pricingExpression": {"tieredRates": [{"unitPrice": {"units": "9" * 30}}]}}]),
            id="absurd-price",
        ),
    ],
)
def test_garbled_sku_of_a_tpu_is_an_error(data: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        TpuSku.from_api(data, COMPUTE_SERVICE)


def test_contradicting_skus_have_no_price() -> None:
    read = (TpuSku.from_api(sku("TpuV6e", price, region), COMPUTE_SERVICE) for price, region in (
        ("2.70", "us-east5"), ("2.80", "us-east5"), ("2.70", "us-west1"), ("2.70", "us-west1")
    ))  # fmt: skip

    assert chip_prices(filter(None, read)) == {"v6e": {"us-west1": {"on_demand": Decimal("2.70")}}}


@pytest.mark.parametrize(
    ("kind", "zone", "expected"),
    [
        pytest.param("v2-8", "us-central1-b", "$4.50/h", id="v2-single"),
        pytest.param("v2-32", "us-central1-a", "$24.00/h", id="v2-slice-counts-cores"),
        pytest.param("v3-8", "us-central1-a", "$8.00/h", id="v3-single"),
        pytest.param("v3-32", "us-central1-a", "?", id="v3-slice-is-another-price"),
        pytest.param("v4-8", "us-central2-b", "$12.88/h", id="v4-counts-cores"),
        pytest.param("v4-32", "us-central2-b", "$51.52/h", id="v4-slice"),
    ],
)
def test_older_generations_are_sold_by_8_cores(kind: str, zone: str, expected: str) -> None:
    entries = (("Tpu-v2", "4.5", "us-central1"), ("Tpu-v2 Pod", "6", "us-central1"), ("Tpu-v3", "8", "us-central1"),
               ("Tpu-v4 Pod", "12.88", "us-central2"))  # fmt: skip
    read = (TpuSku.from_api(sku(*entry), TPU_SERVICE) for entry in entries)

    assert str(PriceList("x", "y", chip_prices(filter(None, read))).hourly_price(kind, zone, None)) == expected
