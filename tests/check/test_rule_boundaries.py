"""Boundaries of rules: one more or less, an unnamed part, one half of a condition."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from tests.check import bucket_facts, offer_facts, rule_cases
from tests.check.offer_facts import NOW, ZONE, node, quota, request, resources, spec
from tpuctl.accelerators import parse_accelerator_type
from tpuctl.check.facts import EXTERNAL_IPS, SHIELDED_VM, BucketFacts, BucketUse, Known, NetworkInterface
from tpuctl.check.findings import Level, OpenFirewall, create_or_check_command
from tpuctl.check.quotas import (
    EffectiveLimit,
    QuotaPool,
    effective_limits,
    grant_alternative,
    held_capacity,
    nearest_grant,
)
from tpuctl.check.rules.network_rules import FirewallTarget, SourceArea, firewall_allows_iap, port_access
from tpuctl.check.rules.project_rules import external_addresses_allowed, secure_boot_satisfied
from tpuctl.check.rules.quota_rules import quota_is_enough
from tpuctl.check.rules.zone_rules import image_fits_accelerator, judge_image, node_name_is_free, zone_is_open
from tpuctl.check.zone_ranking import ZoneQuota, rank_zones
from tpuctl.decoding import decoder_of
from tpuctl.durations import format_size
from tpuctl.models.bucket import Bucket, BucketPlacement
from tpuctl.models.grants import Grant
from tpuctl.models.project import OrgPolicy, QuotaLimit

V4 = parse_accelerator_type("v4-8")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_951, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (1_500_000_000_000, "1.5 TB"),
        (7 * 10**18, "7000 PB"),
    ],
)
def test_format_size_uses_decimal_units(size: int, words: str) -> None:
    assert format_size(size) == words


@pytest.mark.parametrize(
    ("state", "tier", "is_dead"),
    [
        ("READY", "", False),
        ("STOPPED", "", False),
        ("TERMINATED", "", True),
        ("TERMINATED", "spot", True),
        ("PREEMPTED", "", True),
        ("PREEMPTED", "preemptible", True),
    ],
)
def test_holding_dead_state_is_dead_in_every_tier(state: str, tier: str, *, is_dead: bool) -> None:
    (one,) = held_capacity(resources(node(f"{ZONE}/a", state=state, tier=tier)).value, offer_facts.wanted())

    assert one.is_dead is is_dead


@pytest.mark.parametrize(
    ("is_dead", "why"),
    [
        (True, "`up` deletes it first; `create` refuses"),
        (False, "`up` uses it; `create` refuses"),
    ],
)
def test_name_taken_in_zone_says_what_up_does(why: str, *, is_dead: bool) -> None:
    about = offer_facts.facts(resources=resources(node(f"{ZONE}/trainer", state="PREEMPTED" if is_dead else "READY")))

    assert [found.why for found in offer_facts.found_by(node_name_is_free, about)] == [why]


def test_delete_command_single_node_request_needs_no_flag() -> None:
    one = {"node": {"acceleratorType": "v4-8"}, "nodeId": "trainer"}
    about = offer_facts.facts(resources=resources(request("us-west1-c/q", [one], state="WAITING_FOR_RESOURCES")))

    (found,) = offer_facts.found_by(node_name_is_free, about)
    assert [remedy.command for remedy in found.remedies] == ["tpuctl down us-west1-c/trainer --project=p"]


def test_requester_pays_facts_name_billing_project() -> None:
    facts = bucket_facts.facts_of(bucket_facts.a_bucket(**bucket_facts.PAYS))

    assert [found.facts for found in bucket_facts.findings_of("TPU104", facts)] == [
        {"requesterPays": True, "billingProject": None}
    ]


@pytest.mark.parametrize(
    ("zone", "type_", "creates", "count"),
    [
        ("us-west1-c", "v5litepod-8", True, 0),
        ("us-east5-c", "v5litepod-8", True, 1),
        ("us-east5-c", "v5litepod-8", False, 0),
        ("us-east5-c", "v9-8", True, 0),
    ],
)
def test_single_tenant_zone_checked_for_new_nodes_only(zone: str, type_: str, *, creates: bool, count: int) -> None:
    about = offer_facts.facts(offer_facts.wanted(spec(type_), zone, creates=creates))

    assert len(offer_facts.found_by(zone_is_open, about)) == count


@pytest.mark.parametrize(("held_chips", "command_type"), [(0, "v4-8"), (4, "v4-8"), (8, None)])
def test_grant_exactly_enough_left_covers(held_chips: int, command_type: str | None) -> None:
    grant = Grant(ZONE, "v4", "on-demand", 8, None)
    records = [node(f"{ZONE}/{number}") for number in range(held_chips // 4)]
    mine = held_capacity(resources(*records).value, offer_facts.wanted())

    found = grant_alternative(grant, V4, mine, NOW.date())
    assert (found.name if found else None) == command_type


TODAY = NOW.date()
HERE = Grant(ZONE, "v4", "on-demand", 8, None)


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (Grant(ZONE, "v4", "on-demand", 8, TODAY - timedelta(days=1)), Grant("a-b1-a", "v6e", "spot", 8, TODAY)),
        (Grant(ZONE, "v6e", "on-demand", 8, None), Grant("a-b1-a", "v4", "spot", 8, None)),
        (Grant("a-b1-a", "v4", "on-demand", 8, None), Grant(ZONE, "v4", "spot", 8, None)),
        (Grant(ZONE, "v4", "spot", 8, None), HERE),
    ],
)
def test_nearest_grant_order_of_criteria(worse: Grant, better: Grant) -> None:
    for grants in ((worse, better), (better, worse)):
        assert nearest_grant(offer_facts.wanted(grants=grants), V4, TODAY) == better


def test_grant_on_last_day_is_valid() -> None:
    grant = Grant(ZONE, "v4", "on-demand", 8, date(2026, 5, 31))

    assert [grant.has_ended(day) for day in (date(2026, 5, 30), date(2026, 5, 31), date(2026, 6, 1))] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("unit", "name", "place"),
    [
        ("1/{project}/{zone}", "TPUV4sPod", ZONE),
        ("1/{project}", "TPUV4sPodPerProjectPerZone", ZONE),
        ("1/{project}/{region}", "TPUV4sPod", "us-central2"),
        ("", "TPUV4sPodPerProjectPerRegion", "us-central2"),
        ("1/{project}", "TPUV4sPod", ""),
    ],
)
def test_limit_scope_comes_from_unit_or_name(unit: str, name: str, place: str) -> None:
    one = QuotaLimit("", name, unit, 8, {})

    assert effective_limits([one], QuotaPool.of(V4, None), ZONE) == (EffectiveLimit("", name, place, 8),)


@pytest.mark.parametrize(
    ("limit", "left", "suffices"),
    [(None, None, True), (7, None, False), (8, None, None), (8, 8, True), (8, 7, False), (7, 8, False)],
)
def test_zone_quota_exactly_enough_suffices(limit: int | None, left: int | None, *, suffices: bool) -> None:
    assert ZoneQuota(limit, left, 8, "chips").suffices is suffices


@pytest.mark.parametrize(
    ("image", "type_", "reason"),
    [
        ("v2-alpha-tpuv6e", "v4-8", "it is documented for v6e, not for v4"),
        ("tpu-ubuntu2204-base", "v6e-8", "it is documented for v2, v3 and v4, not for v6e"),
    ],
)
def test_image_is_named_for_documented_generations(image: str, type_: str, reason: str) -> None:
    assert judge_image(image, parse_accelerator_type(type_)).reason == reason


@pytest.mark.parametrize(
    ("several", "expected"),
    [
        ([{}], ("default", None, False)),
        ([{"enableExternalIps": True}, {"network": "second"}], ("default", None, True)),
        ([{"network": "projects/h/global/networks/n"}], ("n", None, False)),
        ([{"subnetwork": "s"}], ("default", "s", False)),
    ],
)
def test_interface_of_several_uses_the_first(several: list[dict[str, Any]], expected: tuple[Any, ...]) -> None:
    one = NetworkInterface.of(rule_cases.wanted(spec={"network": "named", "kept": {"networkConfigs": several}}))

    assert (one.network, one.subnetwork, one.has_external_addresses) == expected


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        (None, "--type=v4 --topology=2x2x2"),
        ("v4-16", "--type=v4 --topology=2x2x2"),
        ("v4-8", "--type=v4-8"),
        ("v6e-8", "--type=v6e-8"),
    ],
)
def test_suggested_command_other_type_drops_topology(type_: str | None, shape: str) -> None:
    made = offer_facts.wanted(spec("v4-16", topology="2x2x2"))

    assert (
        create_or_check_command(made, accelerator_type=type_) == f"tpuctl up trainer --project=p --zone={ZONE} {shape}"
    )


def test_firewall_range_with_host_bits_is_accepted() -> None:
    least, most = port_access([rule_cases.allow("inside", "10.1.2.3/8")], FirewallTarget("default", frozenset(), None))

    assert (least.reach(SourceArea.INSIDE), least) == (("10.0.0.0/8",), most)


def test_new_firewall_rule_name_is_valid() -> None:
    """A name has at most 63 characters and does not end with a hyphen."""
    taken = (rule_cases.allow("allow-ssh-from-iap", target_tags=("web",)),)

    def name_for(network: str) -> str:
        facts = rule_cases.facts(firewalls=Known(taken), want={"iap": True, "spec": {"network": network}})
        ((remedy,),) = (found.remedies for found in rule_cases.found(firewall_allows_iap, facts))
        assert isinstance(remedy.change, OpenFirewall)
        return remedy.change.name

    assert name_for("n" * 44) == "allow-ssh-from-iap-" + "n" * 44
    assert name_for("n" * 45) == "allow-ssh-from-iap-" + "n" * 44
    assert name_for("n" * 43 + "-more") == "allow-ssh-from-iap-" + "n" * 43


def test_organisation_policies_decide() -> None:
    open_, strict = OrgPolicy(EXTERNAL_IPS, allows_all=True), OrgPolicy(SHIELDED_VM, enforced=True)
    (bad,) = rule_cases.found(secure_boot_satisfied, rule_cases.facts(org_policies={SHIELDED_VM: Known(strict)}))

    fine = rule_cases.facts(org_policies={EXTERNAL_IPS: Known(open_)})
    assert rule_cases.found(external_addresses_allowed, fine) == []
    assert (bad.level, bad.text) == (
        Level.ERROR,
        f"the organisation requires Secure Boot (`{SHIELDED_VM}`), but the node does not request it",
    )


def test_quota_exactly_enough_is_ok() -> None:
    name = "TPUV4sPodPerProjectPerZoneForTPUAPI"
    levels = [
        offer_facts.summaries(
            quota_is_enough, offer_facts.facts(quotas=Known((quota(name, value),)), resources=resources())
        )
        for value in (7, 8)
    ]

    assert [[one[0] for one in found] for found in levels] == [["error"], []]


def test_ranking_sorts_by_farthest_bucket_first() -> None:
    """A zone near two of three buckets is better than the region of one."""
    places = (BucketPlacement("EU", "multi-region", ()), BucketPlacement("EUROPE-WEST2", "region", ()))
    named = [decoder_of(Bucket)({"name": f"b{number}", "location": place.location, "locationType": place.kind})
             for number, place in enumerate((places[0], places[0], places[1]))]  # fmt: skip
    found = rank_zones(
        spec("v6e-8"),
        project="p",
        today=TODAY,
        offers=Known(dict.fromkeys(("europe-west2-a", "europe-west4-a"), ("v6e-8",))),
        buckets=[BucketFacts(use=BucketUse(one.name), bucket=Known(one)) for one in named],
    )

    assert [zone.zone for zone in found.zones] == ["europe-west4-a", "europe-west2-a"]


def test_misfit_image_suggests_similar_image() -> None:
    """The suggestion is the same TensorFlow for several workers, not the default image of the type."""
    about = offer_facts.facts(offer_facts.wanted(spec("v4-32", runtime_version="tpu-vm-tf-2.11.0")))

    (found,) = offer_facts.found_by(image_fits_accelerator, about)
    assert [remedy.text for remedy in found.remedies] == ["use `tpu-vm-tf-2.11.0-pod`"]
