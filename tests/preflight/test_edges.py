"""Edges of rules: the one more or less, the part that is not named, the half of a condition that decides alone."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from tests.preflight import bucket_facts, cases, offer_facts
from tests.preflight.offer_facts import NOW, ZONE, held, node, quota, request, spec
from tpuctl.accelerators import parse
from tpuctl.model.bucket import Bucket, Placement
from tpuctl.model.project import OrgPolicy, QuotaLimit
from tpuctl.preflight.coverage import alternative, nearest
from tpuctl.preflight.fact import Known
from tpuctl.preflight.facts import EXTERNAL_IPS, SHIELDED_VM, BucketFacts
from tpuctl.preflight.findings import Level, OpenFirewall
from tpuctl.preflight.firewall import Area, Target, openings
from tpuctl.preflight.grants import Grant
from tpuctl.preflight.holdings import holdings
from tpuctl.preflight.images import judge
from tpuctl.preflight.interface import Interface
from tpuctl.preflight.own_commands import again
from tpuctl.preflight.quota_names import Limit, Pool, limits
from tpuctl.preflight.rules import project, ssh
from tpuctl.preflight.rules.buckets.uses import size_in_words
from tpuctl.preflight.rules.images import version_fits
from tpuctl.preflight.rules.names import name_is_free
from tpuctl.preflight.rules.offer import zone_is_open
from tpuctl.preflight.rules.quota import quota_is_enough
from tpuctl.preflight.wanted import BucketUse
from tpuctl.preflight.zones import Quota, rank

V4 = parse("v4-8")


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
def test_a_size_in_words(size: int, words: str) -> None:
    assert size_in_words(size) == words


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
def test_a_record_is_dead_whatever_its_tier(state: str, tier: str, *, is_dead: bool) -> None:
    (one,) = holdings(held(node(f"{ZONE}/a", state=state, tier=tier)).value, offer_facts.wanted())

    assert one.is_dead is is_dead


@pytest.mark.parametrize(
    ("is_dead", "why"),
    [
        (True, "`up` deletes it first; `create` refuses"),
        (False, "`up` uses it; `create` refuses"),
    ],
)
def test_what_up_does_with_the_name_that_is_taken_here(why: str, *, is_dead: bool) -> None:
    about = offer_facts.facts(held=held(node(f"{ZONE}/trainer", state="PREEMPTED" if is_dead else "READY")))

    assert [found.why for found in offer_facts.found_by(name_is_free, about)] == [why]


def test_a_request_for_one_node_is_taken_down_as_it_is() -> None:
    one = {"node": {"acceleratorType": "v4-8"}, "nodeId": "trainer"}
    about = offer_facts.facts(held=held(request("us-west1-c/q", [one], state="WAITING_FOR_RESOURCES")))

    (found,) = offer_facts.found_by(name_is_free, about)
    assert [remedy.command for remedy in found.remedies] == ["tpuctl down us-west1-c/trainer --project=p"]


def test_who_pays_for_requests_is_in_the_facts() -> None:
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
def test_a_closed_zone_matters_where_a_node_of_a_known_type_is_to_be_made(
    zone: str, type_: str, *, creates: bool, count: int
) -> None:
    about = offer_facts.facts(offer_facts.wanted(spec(type_), zone, creates=creates))

    assert len(offer_facts.found_by(zone_is_open, about)) == count


@pytest.mark.parametrize(("held_chips", "command_type"), [(0, "v4-8"), (4, "v4-8"), (8, None)])
def test_a_grant_covers_what_is_exactly_left_of_it(held_chips: int, command_type: str | None) -> None:
    grant = Grant(ZONE, "v4", "on-demand", 8, None)
    records = [node(f"{ZONE}/{number}") for number in range(held_chips // 4)]
    mine = holdings(held(*records).value, offer_facts.wanted())

    found = alternative(grant, V4, mine, NOW.date())
    assert (found.accelerator_type if found else None) == command_type


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
def test_the_nearest_grant_holds_then_is_of_the_type_then_of_the_zone_then_of_the_tier(
    worse: Grant, better: Grant
) -> None:
    for grants in ((worse, better), (better, worse)):
        assert nearest(offer_facts.wanted(grants=grants), V4, TODAY) == better


def test_a_grant_holds_on_its_last_day() -> None:
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
def test_where_a_limit_counts_is_said_by_its_unit_or_by_its_name(unit: str, name: str, place: str) -> None:
    one = QuotaLimit("", name, unit, 8, {})

    assert limits([one], Pool.of(V4, None), ZONE) == (Limit("", name, place, 8),)


@pytest.mark.parametrize(
    ("limit", "left", "suffices"),
    [(None, None, True), (7, None, False), (8, None, None), (8, 8, True), (8, 7, False), (7, 8, False)],
)
def test_a_quota_suffices_where_it_is_exactly_enough(limit: int | None, left: int | None, *, suffices: bool) -> None:
    assert Quota(limit, left, 8, "chips").suffices is suffices


@pytest.mark.parametrize(
    ("image", "type_", "reason"),
    [
        ("v2-alpha-tpuv6e", "v4-8", "it is documented for v6e, not for v4"),
        ("tpu-ubuntu2204-base", "v6e-8", "it is documented for v2, v3 and v4, not for v6e"),
    ],
)
def test_what_an_image_is_documented_for(image: str, type_: str, reason: str) -> None:
    assert judge(image, parse(type_)).reason == reason


@pytest.mark.parametrize(
    ("several", "expected"),
    [
        ([{}], ("default", None, False)),
        ([{"enableExternalIps": True}, {"network": "second"}], ("default", None, True)),
        ([{"network": "projects/h/global/networks/n"}], ("n", None, False)),
        ([{"subnetwork": "s"}], ("default", "s", False)),
    ],
)
def test_the_first_of_several_interfaces_counts(several: list[dict[str, Any]], expected: tuple[Any, ...]) -> None:
    one = Interface.of(cases.wanted(spec={"network": "named", "kept": {"networkConfigs": several}}))

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
def test_another_type_has_another_shape(type_: str | None, shape: str) -> None:
    made = offer_facts.wanted(spec("v4-16", topology="2x2x2"))

    assert again(made, accelerator_type=type_) == f"tpuctl up trainer --project=p --zone={ZONE} {shape}"


def test_a_firewall_rule_may_name_a_range_by_any_of_its_addresses() -> None:
    least, most = openings([cases.allow("inside", "10.1.2.3/8")], Target("default", frozenset(), None))

    assert (least.reach(Area.INSIDE), least) == (("10.0.0.0/8",), most)


def test_the_name_of_a_new_firewall_rule_is_one_that_the_api_takes() -> None:
    """At most 63 characters, the last of them no hyphen."""
    taken = (cases.allow("allow-ssh-from-iap", target_tags=("web",)),)

    def name_for(network: str) -> str:
        facts = cases.facts(firewalls=Known(taken), want={"iap": True, "spec": {"network": network}})
        ((remedy,),) = (found.remedies for found in cases.found(ssh.iap_in, facts))
        assert isinstance(remedy.change, OpenFirewall)
        return remedy.change.name

    assert name_for("n" * 44) == "allow-ssh-from-iap-" + "n" * 44
    assert name_for("n" * 45) == "allow-ssh-from-iap-" + "n" * 44
    assert name_for("n" * 43 + "-more") == "allow-ssh-from-iap-" + "n" * 43


def test_what_is_ok_needs_no_remedy_and_what_is_certain_no_doubt() -> None:
    open_, strict = OrgPolicy(EXTERNAL_IPS, allows_all=True), OrgPolicy(SHIELDED_VM, enforced=True)
    (fine,) = cases.found(project.external_addresses, cases.facts(org_policies={EXTERNAL_IPS: Known(open_)}))
    (bad,) = cases.found(project.secure_boot, cases.facts(org_policies={SHIELDED_VM: Known(strict)}))

    assert (fine.level, fine.remedies, fine.why) == (Level.OK, (), None)
    assert (bad.level, bad.text) == (
        Level.ERROR,
        f"the organisation requires Secure Boot (`{SHIELDED_VM}`), but the node does not request it",
    )


def test_a_quota_that_is_exactly_enough_is_enough() -> None:
    name = "TPUV4sPodPerProjectPerZoneForTPUAPI"
    levels = [
        offer_facts.said(quota_is_enough, offer_facts.facts(quotas=Known((quota(name, value),)), held=held()))[0][0]
        for value in (7, 8)
    ]

    assert levels == ["error", "ok"]


def test_the_farthest_bucket_counts_most_then_the_next() -> None:
    """Nearer to two of three is better than in the very region of one."""
    places = (Placement("EU", "multi-region", ()), Placement("EUROPE-WEST2", "region", ()))
    named = [Bucket.from_api({"name": f"b{number}", "location": place.location, "locationType": place.kind})
             for number, place in enumerate((places[0], places[0], places[1]))]  # fmt: skip
    found = rank(
        spec("v6e-8"),
        project="p",
        today=TODAY,
        offers=Known(dict.fromkeys(("europe-west2-a", "europe-west4-a"), ("v6e-8",))),
        buckets=[BucketFacts(use=BucketUse(one.name), bucket=Known(one)) for one in named],
    )

    assert [zone.zone for zone in found.zones] == ["europe-west4-a", "europe-west2-a"]


def test_an_image_that_does_not_fit_is_replaced_by_its_own_like() -> None:
    """The same TensorFlow for several workers, and not the image that is usual for the type."""
    about = offer_facts.facts(offer_facts.wanted(spec("v4-32", runtime_version="tpu-vm-tf-2.11.0")))

    (found,) = offer_facts.found_by(version_fits, about)
    assert [remedy.text for remedy in found.remedies] == ["use `tpu-vm-tf-2.11.0-pod`"]
