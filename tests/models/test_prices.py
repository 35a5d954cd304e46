"""Prices of nodes: from the table with its date, and never a guess."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tpuctl.accelerators import load_accelerators
from tpuctl.models.billing import Dollars
from tpuctl.models.node import Tier
from tpuctl.prices import Price, budget_words, hourly_price, within_budget
from tpuctl.yaml_reader import load_data

AS_OF = "2026-08"


@pytest.mark.parametrize(
    ("accelerator_type", "zone", "tier", "shown"),
    [
        pytest.param("v6e-8", "us-east5-b", None, "$21.60/h", id="no-tier-is-on-demand"),
        pytest.param("v6e-8", "us-east5-b", Tier.ON_DEMAND, "$21.60/h", id="on-demand-as-listed"),
        pytest.param("v6e-8", "us-central1-b", Tier.SPOT, "about $4.35/h", id="spot-about-rounded-down"),
        pytest.param("v6e-1", "us-east5-b", Tier.SPOT, "about $1.22/h", id="half-a-cent-rounded-up"),
        pytest.param("v6e-8", "us-central1-b", Tier.PREEMPTIBLE, "about $4.35/h", id="preemptible-is-spot"),
        pytest.param("v5litepod-16", "us-west4-a", None, "$19.20/h", id="v5e-number-is-chips"),
        pytest.param("v5p-8", "us-east5-a", None, "$16.80/h", id="v5p-number-is-cores"),
        pytest.param("v5p-1024", "us-east5-a", None, "$2,150.40/h", id="thousands"),
        pytest.param("v6e-8", "us-central1-ai1a", None, "$21.60/h", id="ai-zone-of-a-region"),
        pytest.param("v6e-8", "us-east5-b", Tier.RESERVED, "?", id="reserved-unknown"),
        pytest.param("v6e-8", "us-east5-b", Tier.FLEX_START, "?", id="flex-start-unknown"),
        pytest.param("v6e-8", "us-east5-b", Tier.BEST_EFFORT, "?", id="best-effort-unknown"),
        pytest.param("v2-8", "us-central1-b", None, "?", id="generation-without-prices"),
        pytest.param("v4-8", "us-central2-b", None, "about $12.88/h", id="single-source-is-about"),
        pytest.param("v4-8", "us-central2-b", Tier.SPOT, "?", id="no-spot-price"),
        pytest.param("v3-8", "us-central1-a", None, "about $8.00/h", id="v3-single-node"),
        pytest.param("v3-32", "us-east1-d", Tier.SPOT, "about $9.60/h", id="v3-slice"),
        pytest.param("v6e-8", "us-west4-a", None, "?", id="region-without-price"),
        pytest.param("v9-8", "us-east5-b", None, "?", id="type-unknown"),
        pytest.param("", "", None, "?", id="nothing-known"),
    ],
)
def test_price_is_chips_times_listed_price(accelerator_type: str, zone: str, tier: Tier | None, shown: str) -> None:
    price = hourly_price(accelerator_type, zone, tier)

    assert str(price) == shown
    assert price.as_of == AS_OF


@pytest.mark.parametrize(
    ("per_hour", "limit", "allow_unknown", "is_within"),
    [
        pytest.param("20.00", None, False, True, id="no-limit"),
        pytest.param(None, None, False, True, id="no-limit-unknown-price"),
        pytest.param("20.00", "20", False, True, id="as-much"),
        pytest.param("20.01", "20", False, False, id="a-cent-more"),
        pytest.param("20.01", "20", True, False, id="a-cent-more-is-not-unknown"),
        pytest.param("19.99", "20", False, True, id="less"),
        pytest.param(None, "20", False, False, id="unknown-refused"),
        pytest.param(None, "20", True, True, id="unknown-allowed"),
    ],
)
def test_budget_refuses_higher_and_unknown_prices(
    per_hour: str | None, limit: str | None, *, allow_unknown: bool, is_within: bool
) -> None:
    price = Price(Decimal(per_hour) if per_hour else None, is_about=False, as_of=AS_OF)

    assert within_budget(price, Decimal(limit) if limit else None, allow_unknown=allow_unknown) is is_within


@pytest.mark.parametrize(
    ("price", "words"),
    [
        pytest.param(
            Price(Decimal("21.60"), is_about=False, as_of=AS_OF),
            "costs $21.60/h, more than the limit of $20/h",
            id="on-demand",
        ),
        pytest.param(
            Price(Decimal("1075.20"), is_about=True, as_of=AS_OF),
            "costs about $1,075.20/h, more than the limit of $20/h",
            id="spot",
        ),
        pytest.param(
            Price(None, is_about=False, as_of=AS_OF), "has no known price, and the limit is $20/h", id="unknown"
        ),
    ],
)
def test_refusal_has_price_and_limit(price: Price, words: str) -> None:
    assert budget_words(price, Decimal(20)) == words


def test_price_for_scripts_is_null_if_unknown() -> None:
    assert hourly_price("v6e-8", "us-east5-b", Tier.SPOT).to_json() == {
        "perHour": 9.72, "isAbout": True, "asOf": AS_OF
    }  # fmt: skip
    assert hourly_price("v2-8", "us-central1-b", None).to_json() == {"perHour": None, "isAbout": False, "asOf": AS_OF}


def test_table_has_plausible_prices_of_known_generations() -> None:
    """A placeholder of a source, such as 0 or 700, is no price."""
    table = load_data("prices.yaml")

    generations = set(load_accelerators().generations)
    assert {generation.removesuffix(" pod") for generation in table["per_chip"]} <= generations
    assert set(table["about"]) <= set(table["per_chip"])
    for regions in table["per_chip"].values():
        for columns in regions.values():
            assert {"on_demand"} <= set(columns) <= {"on_demand", "spot"}
            assert 0.1 < columns.get("spot", 0.2) < columns["on_demand"] < 10


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (Dollars(Decimal("9.7249"), is_about=True), "~$9.72"),
        (Dollars(Decimal("303.92"), is_about=True), "~$304"),
        (Dollars(Decimal("13554.45"), at_least=True), "≥ $13,550"),
        (Dollars(Decimal("222143.63"), is_about=True), "~$222,100"),
        (Dollars(Decimal("21.60")), "$21.60"),
        (Dollars(None), "?"),
    ],
)
def test_amount_in_a_table_is_short(dollars: Dollars, text: str) -> None:
    assert dollars.short == text
