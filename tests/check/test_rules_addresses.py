"""Rules about external addresses: one for each worker, within the quota of the region."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.offer_facts import ZONE, facts, found_by, node, spec, summaries, wanted
from tpuctl.check.facts import Absent, CheckFacts, Known, Unknown
from tpuctl.check.rules.quota_rules import address_quota_is_enough, many_addresses
from tpuctl.models.compute_resources import RegionQuota
from tpuctl.models.node import Tier

SLOW = Unknown("no answer within 15s", is_passing=True)


def addresses(limit: float, usage: float) -> Known[dict[str, RegionQuota]]:
    return Known({"IN_USE_ADDRESSES": RegionQuota("IN_USE_ADDRESSES", limit, usage)})


WITH_ADDRESS: dict[str, Any] = {
    "networkEndpoints": [{"ipAddress": "10.0.0.1", "accessConfig": {"externalIp": "192.0.2.1"}}]
}


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(region_quotas=None), []),
        (facts(wanted(creates=False), region_quotas=addresses(0, 0)), []),
        (facts(wanted(spec(internal_ips=True)), region_quotas=addresses(0, 0)), []),
        (facts(region_quotas=addresses(8, 7)), []),
        (
            facts(region_quotas=addresses(8, 8)),
            [("warning", "us-central2", "1 external address is needed in us-central2, and 0 of 8 are left")],
        ),
        (
            facts(wanted(spec("v4-32")), region_quotas=addresses(8, 5)),
            [("warning", "us-central2", "4 external addresses are needed in us-central2, and 3 of 8 are left")],
        ),
        (
            facts(wanted(siblings=(spec(),)), region_quotas=addresses(8, 7)),
            [("warning", "us-central2", "2 external addresses are needed in us-central2, and 1 of 8 are left")],
        ),
        (
            facts(wanted(replaces=node(f"{ZONE}/trainer", **WITH_ADDRESS)), region_quotas=addresses(8, 8)),
            [],
        ),
        (facts(region_quotas=Known({})), [("note", "us-central2", "us-central2 shows no quota of external addresses")]),
        (facts(region_quotas=Absent()), [("note", "us-central2", "us-central2 shows no quota of external addresses")]),
        (
            facts(region_quotas=SLOW),
            [
                (
                    "unknown",
                    "us-central2",
                    "the external addresses left in us-central2 could not be read: no answer within 15s",
                )
            ],
        ),
    ],
)
def test_address_quota_is_compared_with_workers(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(address_quota_is_enough, about) == expected


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (wanted(spec("v4-32")), []),
        (wanted(spec("v4-64")), [("note", "trainer", "8 external addresses are used, one by each worker")]),
        (wanted(spec("v4-64"), creates=False), []),
        (wanted(spec("v4-64", internal_ips=True)), []),
        (
            wanted(spec("v4-32"), siblings=(spec("v4-32"),)),
            [("note", "trainer", "8 external addresses are used, one by each worker")],
        ),
    ],
)
def test_many_addresses_are_a_note(about: Any, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(many_addresses, facts(about)) == expected


def test_address_remedy_adds_internal_ips() -> None:
    (found,) = found_by(many_addresses, facts(wanted(spec("v4-64", topology="2x4x4", tier=Tier.SPOT))))

    command = f"tpuctl up trainer --project=p --zone={ZONE} --type=v4 --topology=2x4x4 --spot --internal-ips"
    assert [remedy.command for remedy in found.remedies] == [command]
