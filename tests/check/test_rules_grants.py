"""Rules about grants that cover a node, nearly cover it, or end; and about reservations."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from tests.check.offer_facts import ZONE, facts, found_by, node, request, resources, spec, summaries, wanted
from tpuctl.check.facts import Absent, CheckFacts, Known, Unknown
from tpuctl.check.findings import Level, Remedy, RuleResult
from tpuctl.check.rules.quota_rules import GRANT_RULES, grant_covers, grant_lasts, reservation_exists
from tpuctl.decoding import decoder_of
from tpuctl.models.grants import Grant
from tpuctl.models.node import Tier
from tpuctl.models.project import Reservation

SLOW = Unknown("no answer within 15s", is_passing=True)
NOTHING = resources()
TODAY = date(2026, 6, 1)
CHIPS = Grant(ZONE, "v4", "on-demand", 8, TODAY)
COVERED = "covered by the grant `8 chips of v4 on-demand in us-central2-b until 2026-06-01`: "
BILLED = "no grant covers `trainer`: it will be billed; the nearest is "


def granted(*grants: Grant, strict: bool = False, made: Any = None, zone: str = ZONE, **more: Any) -> Any:
    return wanted(made, zone=zone, grants=grants, no_billing_outside_grants=strict, **more)


def test_rules_are_sorted_by_id() -> None:
    assert [rule.id for rule in GRANT_RULES] == ["TPU405", "TPU406", "TPU407", "TPU408", "TPU409"]


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(wanted(), resources=NOTHING), []),
        (facts(granted(CHIPS, creates=False), resources=NOTHING), []),
        (facts(granted(CHIPS), resources=NOTHING), []),
        # The last chips that are left, and one node more.
        (facts(granted(CHIPS), resources=resources(node(f"{ZONE}/a"))), []),
        (
            facts(granted(CHIPS, made=spec("v4-16")), resources=resources(node(f"{ZONE}/a"))),
            [("warning", ZONE, f"{BILLED}`{CHIPS}`: 8 chips are needed, and 4 of 8 are left (4 are in use)")],
        ),
        (
            facts(granted(CHIPS, siblings=(spec(), spec(tier=Tier.SPOT), spec("v2-8"))), resources=NOTHING),
            [],
        ),
        (
            facts(granted(CHIPS, siblings=(spec(), spec())), resources=NOTHING),
            [("warning", ZONE, f"{BILLED}`{CHIPS}`: 12 chips are needed, and 8 of 8 are left")],
        ),
        # Neither the dead use it up, nor what is in another zone, nor what goes before.
        (
            facts(
                granted(CHIPS, made=spec("v4-16"), replaces=node(f"{ZONE}/trainer")),
                resources=resources(
                    node(f"{ZONE}/trainer"),
                    node(f"{ZONE}/dead", state="TERMINATED", tier="spot"),
                    node("us-west4-a/b"),
                    request(f"{ZONE}/q", [{"node": {"acceleratorType": "v4-8"}, "nodeId": "c"}], state="FAILED"),
                ),
            ),
            [],
        ),
        # Grants for the same add up; those of a type count its nodes.
        (
            facts(
                granted(CHIPS, Grant(ZONE, "v4-16", "on-demand", 1, None), made=spec("v4-16")),
                resources=resources(node(f"{ZONE}/a")),
            ),
            [],
        ),
        (
            facts(granted(Grant(ZONE, "v4", "spot", 8, None), made=spec(tier=Tier.PREEMPTIBLE)), resources=NOTHING),
            [],
        ),
        (
            facts(granted(Grant(ZONE, "v4", "spot", 8, None)), resources=NOTHING),
            [("warning", ZONE, f"{BILLED}`8 chips of v4 spot in {ZONE}`: it is for spot, not on-demand")],
        ),
        (
            facts(granted(Grant(ZONE, "v4-16", "on-demand", 1, None)), resources=NOTHING),
            [("warning", ZONE, f"{BILLED}`1 v4-16 on-demand in {ZONE}`: it is for v4-16, not v4-8")],
        ),
        # The last day counts, the one after it does not.
        (
            facts(granted(Grant(ZONE, "v4", "on-demand", 8, date(2026, 5, 31))), resources=NOTHING),
            [
                (
                    "warning",
                    ZONE,
                    f"{BILLED}`8 chips of v4 on-demand in {ZONE} until 2026-05-31`: it ended on 2026-05-31",
                )
            ],
        ),
        (facts(granted(CHIPS), resources=SLOW), []),
        (facts(granted(CHIPS), resources=resources(unreachable=(ZONE,))), []),
        (
            facts(granted(CHIPS), resources=resources(unreachable=("us-west4-a",))),
            [],
        ),
        (
            facts(granted(CHIPS, made=spec("v9-8")), resources=NOTHING),
            [("warning", ZONE, "unknown whether a grant covers v9-8: tpuctl does not know the type")],
        ),
        # As a hard stop.
        (facts(granted(CHIPS, strict=True), resources=NOTHING), []),
        (
            facts(granted(Grant(ZONE, "v4", "spot", 8, None), strict=True), resources=NOTHING),
            [("error", ZONE, f"{BILLED}`8 chips of v4 spot in {ZONE}`: it is for spot, not on-demand")],
        ),
        (
            facts(granted(CHIPS, strict=True), resources=SLOW),
            [("error", ZONE, f"the current usage of the grant `{CHIPS}` is unknown; it may be used up")],
        ),
        (
            facts(granted(CHIPS, strict=True, made=spec("v9-8")), resources=NOTHING),
            [("error", ZONE, "unknown whether a grant covers v9-8: tpuctl does not know the type")],
        ),
        (
            facts(granted(strict=True), resources=NOTHING),
            [
                (
                    "error",
                    ZONE,
                    "`no_billing_outside_grants` is set, but no grants are configured: nothing may be created",
                )
            ],
        ),
    ],
)
def test_grant_coverage_levels(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(grant_covers, about) == expected


def test_uncovered_node_names_covered_alternative() -> None:
    grants = (Grant("us-central1-f", "v2-8", "on-demand", 5, None), Grant(ZONE, "v4", "spot", 32, None))
    about = facts(granted(*grants, made=spec("v4-8", Tier.ON_DEMAND), zone="europe-west4-b"), resources=NOTHING)

    difference = ["it is for the zone us-central2-b, not europe-west4-b", "it is for spot, not on-demand"]
    assert found_by(grant_covers, about) == [
        RuleResult(
            level=Level.WARNING,
            subject="europe-west4-b",
            text=f"{BILLED}`32 chips of v4 spot in {ZONE}`: {', '.join(difference)}",
            why="what no grant covers is billed; `--no-billing-outside-grants` prevents that",
            remedies=(
                Remedy(
                    f"covered by that grant: a spot v4-8 in {ZONE}",
                    f"tpuctl up trainer --project=p --zone={ZONE} --type=v4-8 --spot",
                ),
            ),
            facts={
                "grants": [],
                "grantedChips": 0,
                "heldChips": 0,
                "neededChips": 4,
                "nearest": f"32 chips of v4 spot in {ZONE}",
                "differences": difference,
            },
        )
    ]


UP = "tpuctl up trainer --project=p"


@pytest.mark.parametrize(
    ("grant", "made", "records", "command"),
    [
        # The largest that is left and not larger.
        (CHIPS, spec("v4-64"), NOTHING, f"{UP} --zone={ZONE} --type=v4-16 --on-demand"),
        (CHIPS, spec("v4-64"), resources(node(f"{ZONE}/a")), f"{UP} --zone={ZONE} --type=v4-8 --on-demand"),
        (CHIPS, spec("v4-64"), resources(node(f"{ZONE}/a", "v4-16")), None),
        (
            Grant("us-west4-a", "v5e", "spot", 16, None),
            spec("v4-8"),
            NOTHING,
            f"{UP} --zone=us-west4-a --type=v5litepod-4 --spot",
        ),
        (
            Grant("us-central1-f", "v2-8", "on-demand", 5, None),
            spec("v4-8"),
            NOTHING,
            f"{UP} --zone=us-central1-f --type=v2-8 --on-demand",
        ),
        # Nothing that is smaller: the smallest.
        (Grant(ZONE, "v4", "spot", 16, None), spec("v6e-1"), NOTHING, f"{UP} --zone={ZONE} --type=v4-8 --spot"),
        (Grant(ZONE, "v4", "spot", 8, date(2026, 5, 31)), spec("v4-8"), NOTHING, None),
    ],
)
def test_grant_remedy_command_is_covered(grant: Grant, made: Any, records: Any, command: str | None) -> None:
    (found,) = found_by(grant_covers, facts(granted(grant, made=made), resources=records))

    assert [remedy.command for remedy in found.remedies] == ([command] if command else [])


def until(day: int, month: int = 6) -> Grant:
    return Grant(ZONE, "v4", "on-demand", 8, date(2026, month, day))


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(granted(until(9))), []),
        (facts(granted(until(8))), [("warning", ZONE, f"the grant `{until(8)}` ends in 7 days")]),
        (facts(granted(until(2))), [("warning", ZONE, f"the grant `{until(2)}` ends in 1 day")]),
        (facts(granted(until(1), creates=False)), [("warning", ZONE, f"the grant `{until(1)}` ends today")]),
        # While another one lasts nothing ends.
        (facts(granted(until(2), until(9))), []),
        (facts(granted(Grant(ZONE, "v4", "on-demand", 8, None))), []),
        (facts(granted(until(2), zone="us-west4-a")), []),
        # That it has ended is for TPU405 to say, unless the node is there already.
        (facts(granted(until(31, 5))), []),
        (
            facts(granted(until(31, 5), creates=False)),
            [("warning", ZONE, f"the grant `{until(31, 5)}` has ended; `trainer` is billed since then")],
        ),
        (facts(granted(until(31, 5), until(9), creates=False)), []),
        (
            facts(wanted(spec("v2-8"), zone="us-central1-f")),
            [("note", "us-central1-f", "us-central1-f is for grants of the TPU Research Cloud")],
        ),
        (facts(wanted(spec("v2-8"), zone="us-central1-f", creates=False)), []),
    ],
)
def test_grant_end_is_reported(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(grant_lasts, about) == expected


def reservations(*entries: dict[str, Any]) -> Known[tuple[Reservation, ...]]:
    return Known(
        tuple(
            decoder_of(Reservation)({"name": f"projects/p/locations/{ZONE}/reservations/r{number}", **entry})
            for number, entry in enumerate(entries)
        )
    )


STANDARD = {"size": 16, "capacityUnits": "CHIPS", "resourceType": "v4", "usage": {"total": "8"}}
ACTIVE = {"state": "ACTIVE", "standard": STANDARD}
RESERVED = spec("v4-16", Tier.RESERVED)


@pytest.mark.parametrize(
    ("made", "found", "expected"),
    [
        (spec(), reservations(), []),
        (RESERVED, None, []),
        (RESERVED, reservations(), [("warning", ZONE, f"the project has no reservation in {ZONE}")]),
        (
            RESERVED,
            Absent("not found"),
            [("unknown", ZONE, f"the reservations in {ZONE} could not be read: not found")],
        ),
        (
            RESERVED,
            SLOW,
            [("unknown", ZONE, f"the reservations in {ZONE} could not be read: no answer within 15s")],
        ),
        (RESERVED, reservations(ACTIVE), []),
        (RESERVED, reservations({}), []),
        (
            spec("v4-32", Tier.RESERVED),
            reservations(ACTIVE),
            [("warning", "r0", f"`r0` is a reservation in {ZONE} for v4, 8 of 16 chips used: 16 chips are needed")],
        ),
        (
            RESERVED,
            reservations({**ACTIVE, "standard": {**STANDARD, "capacityUnits": "CORES"}}),
            [("warning", "r0", f"`r0` is a reservation in {ZONE} for v4, 8 of 16 cores used: 16 cores are needed")],
        ),
        (
            RESERVED,
            reservations({"state": "PROVISIONING"}, {"state": "EXPIRED"}),
            [("warning", "r0", f"`r0` is a reservation in {ZONE}: its state is PROVISIONING")],
        ),
        (
            RESERVED,
            reservations({"state": "EXPIRED"}),
            [("warning", ZONE, f"the project has no active reservation in {ZONE}; ended: `r0` (EXPIRED)")],
        ),
    ],
)
def test_reserved_tier_needs_reservation(made: Any, found: Any, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(reservation_exists, facts(wanted(made), reservations=found)) == expected
