"""From where firewall rules allow port 22: a row for each field of a rule."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.rule_cases import allow, deny
from tpuctl.check.rules.network_rules import FirewallTarget, PortAccess, SourceArea, port_access
from tpuctl.decoding import decoder_of
from tpuctl.models.compute_resources import FirewallRule

TARGET = FirewallTarget("default", frozenset({"tpu"}), "robot@p.iam.gserviceaccount.com")
ALL = [SourceArea.OUTSIDE, SourceArea.INSIDE, SourceArea.IAP]


def opening(*rules: FirewallRule, target: FirewallTarget = TARGET, port: int = 22) -> PortAccess:
    least, most = port_access(rules, target, port=port)
    assert least == most
    return least


def covered(*rules: FirewallRule, **more: Any) -> list[SourceArea]:
    return [area for area in SourceArea if opening(*rules, **more).covers(area)]


@pytest.mark.parametrize(
    ("rules", "areas"),
    [
        ([], []),  # what no rule names is denied
        ([allow()], ALL),
        ([allow(source_ranges=())], ALL),
        ([allow(protocols={"all": ()})], ALL),
        ([allow(protocols={"6": ()})], ALL),
        ([allow(protocols={"tcp": ()})], ALL),
        ([allow(protocols={"tcp": ("20-22",)})], ALL),
        ([allow(protocols={"tcp": ("80", "22-30")})], ALL),
        ([allow(protocols={"tcp": ("23-30",)})], []),
        ([allow(protocols={"tcp": ("0-21",)})], []),
        ([allow(protocols={"udp": ()})], []),
        ([allow(is_ingress=False)], []),
        ([allow(is_disabled=True)], []),
        ([allow(network="other")], []),
        ([allow("a", "10.128.0.0/9")], []),
        ([allow("a", "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")], [SourceArea.INSIDE]),
        ([allow("a", "35.235.240.0/20")], [SourceArea.IAP]),
        ([allow("a", "35.235.240.0/21", "35.235.248.0/21")], [SourceArea.IAP]),
        ([allow("a", "35.235.240.0/21")], []),
        ([allow("a", "2001:db8::/32")], []),  # workers have IPv4 addresses
        ([allow("a", "2001:db8::/32", "0.0.0.0/0")], ALL),
        ([allow("a", "0.0.0.0/1"), allow("b", "128.0.0.0/1")], ALL),
        # Tags and accounts of the target.
        ([allow(target_tags=("tpu",))], ALL),
        ([allow(target_tags=("web", "tpu"))], ALL),
        ([allow(target_tags=("web",))], []),
        ([allow(target_accounts=("robot@p.iam.gserviceaccount.com",))], ALL),
        ([allow(target_accounts=("other@p.iam.gserviceaccount.com",))], []),
        # Sources by tag or account never hold for addresses outside.
        ([allow(source_ranges=(), source_tags=("bastion",))], []),
        ([allow(source_ranges=(), source_accounts=("bastion@p.iam.gserviceaccount.com",))], []),
        ([allow("a", "35.235.240.0/20", source_tags=("bastion",))], [SourceArea.IAP]),
        # Order: the lower number first, and what denies first at the same.
        ([allow(priority=999), deny()], ALL),
        ([allow(), deny()], []),
        ([allow(), deny(priority=1001)], ALL),
        ([allow(priority=1001), deny()], []),
        ([deny("d", "35.235.240.0/20"), allow()], [SourceArea.OUTSIDE, SourceArea.INSIDE]),
        ([deny("d", "35.235.240.0/28"), allow()], [SourceArea.OUTSIDE, SourceArea.INSIDE]),
        ([deny("d", "10.0.0.0/32"), allow()], [SourceArea.OUTSIDE, SourceArea.IAP]),
        ([deny("d", "198.51.100.7/32"), allow()], [SourceArea.INSIDE, SourceArea.IAP]),
        ([deny(protocols={"tcp": ("80",)}), allow()], ALL),
        ([deny(target_tags=("web",)), allow()], ALL),
        ([deny(target_tags=("tpu",)), allow()], []),
        ([deny(source_ranges=(), source_tags=("web",)), allow()], ALL),
        ([deny(is_disabled=True), allow()], ALL),
    ],
)
def test_firewall_rules_open_areas(rules: list[FirewallRule], areas: list[SourceArea]) -> None:
    assert covered(*rules) == areas
    assert covered(*reversed(rules)) == areas


@pytest.mark.parametrize(
    ("rules", "outside"),
    [
        ([], ()),
        ([allow("a", "198.51.100.0/24")], ("198.51.100.0/24",)),
        ([allow("a", "198.51.100.0/25"), allow("b", "198.51.100.128/25")], ("198.51.100.0/24",)),
        ([allow("a", "198.51.100.0/24"), deny("d", "198.51.100.128/25")], ("198.51.100.0/25",)),
        ([allow("a", "10.0.0.0/8", "35.235.240.0/20", "35.191.0.0/16", "130.211.0.0/22")], ()),
    ],
)
def test_firewall_reach_lists_outside_ranges(rules: list[FirewallRule], outside: tuple[str, ...]) -> None:
    assert opening(*rules).reach(SourceArea.OUTSIDE) == outside


def test_firewall_earlier_rule_decides_first() -> None:
    rules = (
        allow("world"),
        allow("again", priority=2000),
        deny("tunnels", "35.235.240.0/20", priority=10),
        allow("own", "10.0.0.0/8", priority=20),
        allow("bastion", source_ranges=(), source_tags=("bastion",), priority=30),
    )  # fmt: skip

    seen = opening(*rules)

    # `bastion` names no range, so that it opens nothing to an address.
    assert {area: (seen.allowed_by(area), seen.denied_by(area)) for area in SourceArea} == {
        SourceArea.OUTSIDE: (("world",), ()),
        SourceArea.INSIDE: (("own", "world"), ()),
        SourceArea.IAP: ((), ("tunnels",)),
    }
    assert seen.for_machines == ("bastion",)


@pytest.mark.parametrize(
    ("rules", "least", "most"),
    [
        ([allow(target_accounts=("a@x",))], [], ALL),
        ([deny(target_accounts=("a@x",)), allow()], [], ALL),
        ([deny(target_accounts=("a@x",))], [], []),
        ([allow(target_accounts=("a@x",)), allow("b")], ALL, ALL),
    ],
)
def test_firewall_unknown_account_gives_least_and_most(
    rules: list[FirewallRule], least: list[SourceArea], most: list[SourceArea]
) -> None:
    both = port_access(rules, FirewallTarget("default", frozenset(), None))

    assert [[area for area in SourceArea if one.covers(area)] for one in both] == [least, most]


def test_firewall_port_is_matched() -> None:
    assert covered(allow(), port=8080) == []
    assert covered(allow(protocols={"tcp": ("8000-9000",)}), port=8080) == ALL


def test_firewall_rule_with_repeated_protocol_is_merged() -> None:
    def ports(*parts: dict[str, Any]) -> Any:
        return decoder_of(FirewallRule)({"name": "a", "allowed": list(parts)}).protocols

    assert ports({"IPProtocol": "tcp", "ports": ["22"]}, {"IPProtocol": "TCP", "ports": ["80"]}) == {
        "tcp": ("22", "80")
    }
    assert ports({"IPProtocol": "tcp"}, {"IPProtocol": "tcp", "ports": ["80"]}) == {"tcp": ()}
    assert ports({"IPProtocol": "tcp", "ports": ["80"]}, {"IPProtocol": "tcp"}) == {"tcp": ()}
