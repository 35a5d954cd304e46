"""`prices: live`: the Cloud Billing Catalog, kept for a day, and the table if it cannot be read."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.conftest import Console, Sandbox
from tests.lifecycle import one_face
from tpuctl.sandbox.seeding import apply_seed, read_seed

EAST = {"zone": "us-east5-b", "acceleratorType": "v6e-8"}
SKUS = "cloudbilling.services.skus.list"
SEED = """\
skus:
  - name: services/6F81-5844-456A/skus/AAAA
    description: TpuV6e
    serviceRegions: [us-east5]
    category: {usageType: OnDemand}
    pricingInfo:
      - pricingExpression:
          usageUnit: h
          tieredRates: [{unitPrice: {currencyCode: USD, units: "3"}}]
"""


@pytest.fixture
def live(tpuctl: Console, sandbox: Sandbox) -> Console:
    """The program with live prices, a v4 and a v6e node."""
    sandbox.add_node("old")
    sandbox.add_node("new", **EAST)
    return replace(tpuctl, environ={**tpuctl.environ, "TPUCTL_PRICES": "live"})


def rates(tpuctl: Console) -> tuple[list[str], str]:
    out, err, code = tpuctl("cost", "-o", "json")
    value = json.loads(out)
    assert code == 0
    return [str(node["perHour"]["dollars"]) for node in value["nodes"]], err + value["prices"]["asOf"]


def cache_file(tpuctl: Console) -> Path:
    return next(Path(tpuctl.environ["TPUCTL_STATE_DIR"]).rglob("prices.json"))


def test_live_prices_are_read_and_their_source_is_shown(live: Console) -> None:
    out, err, _ = live("cost")

    assert [line.split("\t")[5] for line in out.splitlines()] == ["$12.88", "$21.60"]
    assert "prices: Cloud Billing Catalog of 2026-01-01, without discounts" in err
    assert stat.S_IMODE(cache_file(live).stat().st_mode) == 0o600


@one_face
def test_live_prices_are_kept_for_a_day(live: Console, sandbox: Sandbox) -> None:
    before = rates(live)
    apply_seed(sandbox.state, read_seed(SEED, "seed"))
    sandbox.advance(hours=23)
    same = rates(live)
    sandbox.advance(hours=2)

    assert (before, same) == ((["12.88", "21.6"], "2026-01-01"), (["12.88", "21.6"], "2026-01-01"))
    assert rates(live) == (["12.88", "24.0"], "2026-01-02")


@one_face
def test_catalog_that_cannot_be_read_is_replaced_by_the_table(live: Console, sandbox: Sandbox) -> None:
    sandbox.fault("http-error", method=SKUS, status=403, count=0)

    found, said = rates(live)

    assert found == ["None", "21.6"]
    assert said.startswith("no live prices: ")
    assert said.endswith("; using the list prices of 2026-08\n2026-08")


@one_face
@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{", id="torn"),
        pytest.param('{"google": {"at": "2026-01-01T00:00:00Z"}}', id="no-prices"),
        pytest.param('{"google": {"at": "2026-01-01T00:00:00Z", "perChip": {"v6e": {"us-east5": {"on_demand": "1e99"}}}}}',
                     id="absurd-price"),
        pytest.param('{"google": {"at": "2027-01-01T00:00:00Z", "perChip": {}}}', id="of-the-future"),
    ],
)  # fmt: skip
def test_damaged_cache_is_read_again(live: Console, content: str) -> None:
    rates(live)
    cache_file(live).write_text(content)

    assert rates(live) == (["12.88", "21.6"], "2026-01-01")


@one_face
def test_limits_and_types_use_live_prices(live: Console, sandbox: Sandbox) -> None:
    create = ("create", "one", "--type", "v4-8", "--zone", "us-central2-b", "--no-wait")

    _, err, refused = live(*create, "--budget", "40")

    assert (refused, "would cost $47.36/h, more than the budget of $40/h" in err) == (9, True)
    assert live(*create, "--max-price", "12.88")[2] == 0
    assert "creating v4-8 (tpu-ubuntu2204-base, $12.88/h)" in live("up", "two", *create[2:])[1]
    assert '"perHour": 12.88' in live("up", "three", *create[2:-1], "--dry-run", "-o", "json")[0]
    assert live("types", "v4-8", "--zone", "us-central2-b")[0].endswith("\t$12.88/h\tabout $3.86/h\n")
    assert live.clock.monotonic() < timedelta(minutes=5)
