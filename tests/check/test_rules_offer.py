"""What a zone offers: types, images, and whether the name is free. A row for each case and boundary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.check.offer_facts import ZONE, facts, found_by, resources, spec, summaries, wanted
from tpuctl.check.facts import Absent, CheckFacts, Known, Unknown
from tpuctl.check.findings import CheckRule, Level, Remedy, RuleResult
from tpuctl.check.rules.quota_rules import address_quota_is_enough, quota_is_enough
from tpuctl.check.rules.zone_rules import (
    ZONE_RULES,
    image_is_offered,
    node_name_is_free,
    type_is_in_this_api,
    type_is_offered_in_zone,
    zone_is_open,
)

DENIED = Unknown("the caller may not", "tpu.acceleratortypes.list")
SLOW = Unknown("no answer within 15s", is_passing=True)
WEST = ("v2-8", "v2-32", "v3-8", "v6e-8")


def test_rules_are_sorted_and_documented() -> None:
    assert [rule.id for rule in ZONE_RULES] == ["TPU301", "TPU302", "TPU303", "TPU304", "TPU305", "TPU306"]
    assert all(len(rule.text) > 80 for rule in ZONE_RULES)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(types=Known(("v4-8", "v4-16"))), []),
        (facts(types=None), []),
        (facts(wanted(creates=False), types=Known(())), []),
        (facts(wanted(spec("tpu7x-8")), types=Known(WEST)), []),
        (facts(types=Known(("v4-16",))), [("error", ZONE, f"{ZONE} does not offer v4-8; it offers v4")]),
        (
            facts(wanted(zone="europe-west4-a"), types=Known(WEST)),
            [("error", "europe-west4-a", "europe-west4-a does not offer v4-8; it offers v2, v3, v6e")],
        ),
        (
            facts(wanted(spec("v4-32", topology="2x2x4")), types=Known(("v4-8",))),
            [],
        ),
        (
            facts(wanted(spec("v4-32", topology="2x2x4")), types=Known(WEST)),
            [("error", ZONE, f"{ZONE} does not offer v4-32; it offers v2, v3, v6e")],
        ),
        # A large slice that no list has, and the documentation allows.
        (
            facts(wanted(spec("v5p-1152"), zone="us-east5-a"), types=Known(("v5p-8",))),
            [("note", "us-east5-a", "us-east5-a offers v5p, but v5p-1152 is not in its list")],
        ),
        (
            facts(wanted(spec("v5p-1000"), zone="us-east5-a"), types=Known(("v5p-8",))),
            [("error", "us-east5-a", "us-east5-a does not offer v5p-1000; it offers v5p")],
        ),
        (
            facts(wanted(spec("v9-8")), types=Known(("v9-4",))),
            [("error", ZONE, f"{ZONE} does not offer v9-8; it offers v9-4")],
        ),
        (facts(wanted(spec("v9-8")), types=Known(("v9-8",))), []),
        (facts(types=Absent("gone")), [("error", ZONE, f"{ZONE} does not offer v4-8; it offers no TPUs")]),
        (
            facts(types=Unknown("not supported", error_id="zone-not-supported")),
            [("error", ZONE, f"{ZONE} does not offer v4-8; it offers no TPUs")],
        ),
        (facts(types=DENIED), [("unknown", ZONE, f"what {ZONE} offers could not be read: the caller may not")]),
        (
            facts(types=SLOW),
            [("unknown", ZONE, f"what {ZONE} offers could not be read: no answer within 15s")],
        ),
    ],
)
def test_type_is_in_zone_list(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(type_is_offered_in_zone, about) == expected


def test_offering_zones_are_sorted_by_distance() -> None:
    offers = {"asia-east1-c": ("v6e-8",), "europe-west4-b": ("v6e-8",), "europe-west1-b": ("v6e-8",), "us-east1-d": ()}
    about = facts(
        wanted(spec("v6e-8", runtime_version="v2-alpha-tpuv6e"), zone="europe-west4-a"),
        types=Known(("v6e-1", "v6e-16", "v2-8")),
        offers=Known(offers),
    )

    up = "tpuctl up trainer --project=p"
    assert found_by(type_is_offered_in_zone, about) == [
        RuleResult(
            level=Level.ERROR,
            subject="europe-west4-a",
            text="europe-west4-a does not offer v6e-8; it offers v6e, v2",
            why="the service rejects types that the zone does not offer",
            remedies=(
                Remedy(
                    "v6e-8 is offered in europe-west4-b, europe-west1-b, asia-east1-c",
                    f"{up} --zone=europe-west4-b --type=v6e-8",
                ),
                Remedy("sizes of v6e in europe-west4-a: v6e-1, v6e-16", f"{up} --zone=europe-west4-a --type=v6e-1"),
            ),
            facts={
                "acceleratorType": "v6e-8",
                "zone": "europe-west4-a",
                "acceleratorTypes": ["v6e-1", "v6e-16", "v2-8"],
                "offeredIn": ["europe-west4-b", "europe-west1-b", "asia-east1-c"],
                "isFromTable": False,
            },
        )
    ]


@pytest.mark.parametrize(
    ("offers", "made", "expected"),
    [
        (
            SLOW,
            spec(),
            Remedy(
                "v4-8 is offered, according to the (incomplete) documentation, in us-central2-b",
                "tpuctl check --project=p --zone=us-central2-b --type=v4-8",
            ),
        ),
        (
            Known({"us-central2-b": ("v4-8",)}),
            spec("v4-16", topology="2x2x2"),
            Remedy("no zone that answered offers it; list what each has", "tpuctl types v4-16 --project=p"),
        ),
        (
            None,
            spec("v9-8"),
            Remedy("no zone that answered offers it; list what each has", "tpuctl types v9-8 --project=p"),
        ),
    ],
)
def test_offering_zones_from_documentation_say_so(offers: Any, made: Any, expected: Remedy) -> None:
    about = facts(wanted(made, zone="europe-west4-a", name=None), types=Known(WEST), offers=offers)

    assert [found.remedies for found in found_by(type_is_offered_in_zone, about)] == [(expected,)]


@pytest.mark.parametrize(
    ("zone", "types", "expected"),
    [
        (
            "us-east5-c",
            Known(("v6e-8",)),
            [("note", "us-east5-c", "us-east5-c is a single-tenant zone for v6e, and its list has the type")],
        ),
        ("us-east5-c", Known(()), [("warning", "us-east5-c", "us-east5-c is a single-tenant zone for v6e")]),
        ("us-east5-c", SLOW, [("warning", "us-east5-c", "us-east5-c is a single-tenant zone for v6e")]),
        ("us-east5-b", Known(()), []),
    ],
)
def test_single_tenant_zone_is_warning(zone: str, types: Any, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(zone_is_open, facts(wanted(spec("v6e-8"), zone=zone), types=types)) == expected


@pytest.mark.parametrize(
    ("name", "creates", "expected"),
    [
        ("tpu7x-8", True, [("error", "tpu7x-8", "`tpu7x-8` (Ironwood) is not available through the Cloud TPU API")]),
        (
            "ironwood-8",
            True,
            [("error", "ironwood-8", "`ironwood-8` (Ironwood) is not available through the Cloud TPU API")],
        ),
        ("tpu7x-8", False, []),
        ("v4-8", True, []),
    ],
)
def test_type_of_other_service_is_error(name: str, *, creates: bool, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(type_is_in_this_api, facts(wanted(spec(name), creates=creates))) == expected


def test_passing_flag_only_for_passing_gaps() -> None:
    assert [found.is_passing for found in found_by(type_is_offered_in_zone, facts(types=SLOW))] == [True]
    assert [found.is_passing for found in found_by(type_is_offered_in_zone, facts(types=DENIED))] == [False]
    assert [
        found.is_passing for found in found_by(node_name_is_free, facts(resources=resources(unreachable=("a-b1-a",))))
    ] == [True]


def nowhere(zone: str, **more: Any) -> CheckFacts:
    refused = Unknown(f"Permission denied on 'locations/{zone}' (or it may not exist)", error_id="iam-location-policy")
    return facts(wanted(zone=zone), types=refused, **more)


@pytest.mark.parametrize(
    ("about", "meant", "zones"),
    [
        (nowhere("us-centrall2-b"), "; did you mean `us-central2-b`?", ["us-central2-b"]),
        (
            nowhere("us-east5-aa", offers=Known({"us-east5-a": ("v6e-8",)})),
            "; did you mean `us-east5-a`?",
            ["us-east5-a"],
        ),
        # One that offers the type goes before one that is spelt more alike.
        (
            nowhere("us-central2-a", offers=Known({"us-central1-a": ("v6e-8",), "us-central2-b": ("v4-8",)})),
            "; did you mean `us-central2-b`?",
            ["us-central2-b"],
        ),
        # Nothing is spelt alike: one of the same continent, and no guess where there is none.
        (nowhere("us-nowhere1-z"), "; did you mean `us-central2-b`?", ["us-central2-b"]),
        (nowhere("mars-x", offers=Known({"us-central2-b": ("v4-8",)})), "", ["us-central2-b"]),
        # One that is there, and not for the project.
        (nowhere("us-central1-a", offers=Known({"us-central2-b": ("v4-8",)})), "", ["us-central2-b"]),
        (nowhere("mars-x", offers=Known({})), "", []),
    ],
)
def test_zone_closed_to_project_is_error(about: CheckFacts, meant: str, zones: list[str]) -> None:
    (found,) = found_by(type_is_offered_in_zone, about)
    up = "tpuctl up trainer --project=p"

    text = f"the project cannot use the zone `{about.wanted.zone}`, or it does not exist{meant}"
    assert (found.level, found.subject, found.text) == (Level.ERROR, about.wanted.zone, text)
    assert [remedy.command for remedy in found.remedies] == (
        [f"{up} --zone={zone} --type=v4-8" for zone in zones] or ["tpuctl types v4-8 --project=p"]
    )


@pytest.mark.parametrize("rule", [quota_is_enough, address_quota_is_enough, image_is_offered])
def test_closed_zone_silences_other_rules(rule: CheckRule[CheckFacts]) -> None:
    refused = Unknown("no such zone", error_id="iam-location-policy")
    about = nowhere("mars-x", quotas=Known(()), region_quotas=Absent(), versions=refused)

    assert found_by(rule, about) == []
