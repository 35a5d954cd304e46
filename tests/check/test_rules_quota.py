"""TPU quota: sufficient, short, zero, unlimited, not shown; and quota used by dead records."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.check.offer_facts import NOW, ZONE, facts, found_by, node, quota, request, resources, spec, summaries, wanted
from tpuctl.accelerators import parse_accelerator_type
from tpuctl.check.facts import Absent, CheckFacts, Known, Unknown
from tpuctl.check.findings import Level, Remedy, RuleResult
from tpuctl.check.quotas import QuotaPool
from tpuctl.check.rules.quota_rules import QUOTA_RULES, dead_records_hold_quota, quota_is_enough
from tpuctl.models.node import Node, Tier
from tpuctl.models.project import QuotaLimit

REGION, IN_ZONE = "TPUV4sPodPerProjectPerRegionForTPUAPI", "TPUV4sPodPerProjectPerZoneForTPUAPI"
SLOW = Unknown("no answer within 15s", is_passing=True)
ENOUGH = "the quota for on-demand v4 is sufficient: "
NOTHING = resources()


def limits(*found: QuotaLimit) -> Known[tuple[QuotaLimit, ...]]:
    return Known(found)


def short(need: int, place: str, left: int, name: str, *, of: int, more: str = "") -> tuple[str, str, str]:
    text = f"{need} cores are needed in {place}, and {left} are left: `{name}` is {of}{more}"
    return ("error", place, text)


def test_rules_are_sorted_by_id() -> None:
    assert [rule.id for rule in QUOTA_RULES] == ["TPU401", "TPU402", "TPU403", "TPU404"]


@pytest.mark.parametrize(
    ("accelerator_type", "tier", "names"),
    [
        ("v2-8", None, ("TPUV2sPerProject", "tpu.googleapis.com/tpu-v2s")),
        ("v2-32", Tier.SPOT, ("TPUV2sPreemptiblePodPerProject", "tpu.googleapis.com/tpu-v2s-pod-preemptible")),
        ("v3-8", Tier.PREEMPTIBLE, ("TPUV3sPreemptiblePerProject", "tpu.googleapis.com/tpu-v3s-preemptible")),
        ("v4-8", Tier.RESERVED, ("TPUV4sPodPerProject", "tpu.googleapis.com/tpu-v4s-pod")),
        ("v4-64", Tier.SPOT, ("TPUV4sPreemptiblePodPerProject", "Preemptible TPU v4 pod cores per project per region")),
        ("v5litepod-8", None, ("TPUV5sLitepodServingPerProject", "tpu.googleapis.com/tpu-v5s-litepod-serving")),
        ("v5litepod-1", Tier.SPOT, ("TPUV5sPreemptibleLitepodServing", "x/tpu-v5s-litepod-serving-preemptible")),
        ("v5litepod-16", None, ("TPUV5sLitepodPerProject", "TPU v5e chips", "tpu-v5litepod")),
        ("v5p-8", Tier.SPOT, ("TPUV5PPreemptiblePerProject", "tpu.googleapis.com/tpu-v5p-preemptible")),
        ("v6e-8", Tier.ON_DEMAND, ("TPUV6EPerProject", "tpu.googleapis.com/tpu-v6e")),
        ("v6e-8", Tier.PREEMPTIBLE, ("TPUV6EPreemptiblePerProject", "tpu.googleapis.com/tpu-v6e-preemptible")),
    ],
)
def test_limit_names_are_matched_by_words(accelerator_type: str, tier: Tier | None, names: tuple[str, ...]) -> None:
    pool = QuotaPool.of(parse_accelerator_type(accelerator_type), tier)

    assert {name: QuotaPool.named(name) for name in names} == dict.fromkeys(names, pool)


@pytest.mark.parametrize("name", ["tpu.googleapis.com/qps/create", "TPUV9XPerProject", "TPUV5PerProject", ""])
def test_limit_name_without_generation_is_ignored(name: str) -> None:
    assert QuotaPool.named(name) is None


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(quotas=None, resources=NOTHING), []),
        (facts(wanted(creates=False), quotas=limits(quota(REGION, 0)), resources=NOTHING), []),
        (facts(wanted(spec("v9-8")), quotas=limits(quota(REGION, 0)), resources=NOTHING), []),
        # The last core that is left, and one more.
        (
            facts(quotas=limits(quota(REGION, 8)), resources=NOTHING),
            [],
        ),
        (facts(quotas=limits(quota(REGION, 7)), resources=NOTHING), [short(8, "us-central2", 7, REGION, of=7)]),
        # Zone and region both count.
        (
            facts(quotas=limits(quota(REGION, 100), quota(IN_ZONE, 7)), resources=NOTHING),
            [short(8, ZONE, 7, IN_ZONE, of=7)],
        ),
        # A limit of the place itself wins over the one for all others.
        (
            facts(quotas=limits(quota(REGION, 0), quota(REGION, 16, region="us-central2")), resources=NOTHING),
            [],
        ),
        (
            facts(quotas=limits(quota(REGION, 16, region="us-west4")), resources=NOTHING),
            [("note", "us-central2", "the service shows no quota for on-demand v4 in us-central2")],
        ),
        (
            facts(quotas=limits(quota(REGION, None)), resources=NOTHING),
            [],
        ),
        (
            facts(quotas=limits(quota(REGION, 0)), resources=NOTHING),
            [("error", "us-central2", f"the quota `{REGION}` is 0 in us-central2: the project was never given any")],
        ),
        (
            facts(quotas=limits(quota("TPUV6EPerProjectPerRegionForTPUAPI", 0)), resources=NOTHING),
            [("note", "us-central2", "the service shows no quota for on-demand v4 in us-central2")],
        ),
        (
            facts(quotas=Absent(), resources=NOTHING),
            [("note", "us-central2", "the service shows no quota for on-demand v4 in us-central2")],
        ),
        (
            facts(quotas=SLOW, resources=NOTHING),
            [
                (
                    "unknown",
                    "us-central2",
                    "the TPU quota of the project could not be read: no answer within 15s",
                )
            ],
        ),
        # Other regions, tiers and generations do not count; the dead do.
        (
            facts(
                quotas=limits(quota(REGION, 16)),
                resources=resources(node("us-west4-a/a"), node(f"{ZONE}/b", tier="spot"), node(f"{ZONE}/c", "v2-8")),
            ),
            [],
        ),
        (
            facts(quotas=limits(quota(REGION, 15)), resources=resources(node(f"{ZONE}/husk", state="PREEMPTED"))),
            [short(8, "us-central2", 7, REGION, of=15, more=f", and 8 are held by `{ZONE}/husk` (PREEMPTED, 8)")],
        ),
        (
            facts(
                wanted(replaces=node(f"{ZONE}/trainer")),
                quotas=limits(quota(REGION, 8)),
                resources=resources(node(f"{ZONE}/trainer")),
            ),
            [],
        ),
        # What the same command makes beside it counts where it is of the same kind.
        (
            facts(
                wanted(siblings=(spec(), spec(tier=Tier.SPOT), spec("v9-1"))),
                quotas=limits(quota(REGION, 15)),
                resources=NOTHING,
            ),
            [short(16, "us-central2", 15, REGION, of=15)],
        ),
        # What is held is not known: enough cannot be said, too little can.
        (facts(quotas=limits(quota(REGION, 8)), resources=SLOW), []),
        (facts(quotas=limits(quota(REGION, 7)), resources=SLOW), [short(8, "us-central2", 7, REGION, of=7)]),
        (facts(quotas=limits(quota(REGION, 8)), resources=resources(unreachable=("us-central2-c",))), []),
        (
            facts(quotas=limits(quota(REGION, 8)), resources=resources(unreachable=("us-west4-a",))),
            [],
        ),
        (
            facts(
                wanted(spec("v6e-8")),
                quotas=limits(QuotaLimit("tpu.googleapis.com/tpu-v6e", "", "1/{project}", 8)),
                resources=resources(node("us-west4-a/a", "v6e-1")),
            ),
            [
                (
                    "error",
                    "the project",
                    (
                        "8 chips are needed in the project, and 7 are left: `tpu.googleapis.com/tpu-v6e` is 8, "
                        "and 1 are held by `us-west4-a/a` (READY, 1)"
                    ),
                )
            ],
        ),
        (
            facts(wanted(spec(tier=Tier.RESERVED)), quotas=limits(quota(REGION, 0)), resources=NOTHING),
            [("warning", "us-central2", f"the quota `{REGION}` is 0 in us-central2: the project was never given any")],
        ),
    ],
)
def test_quota_levels(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(quota_is_enough, about) == expected


def test_quota_shortage_names_holders_and_remedies() -> None:
    owned = request(f"{ZONE}/q", [{"node": {"acceleratorType": "v4-16"}, "nodeId": "n"}], state="SUSPENDED")
    about = facts(quotas=limits(quota(REGION, 24)), resources=resources(node(f"{ZONE}/a"), owned))

    holders = [
        {"name": f"queued resource {ZONE}/q", "state": "SUSPENDED", "amount": 16},
        {"name": f"{ZONE}/a", "state": "READY", "amount": 8},
    ]
    assert found_by(quota_is_enough, about) == [
        RuleResult(
            level=Level.ERROR,
            subject="us-central2",
            text=f"8 cores are needed in us-central2, and 0 are left: `{REGION}` is 24, and 24 are held by "
            f"queued resource `{ZONE}/q` (SUSPENDED, 16), `{ZONE}/a` (READY, 8)",
            why="the service rejects what exceeds a limit of the zone or of its region; both apply",
            remedies=(
                Remedy(f"delete queued resource `{ZONE}/q`, which is dead", f"tpuctl down {ZONE}/n --project=p"),
                Remedy(
                    f"request more of `{REGION}` in us-central2: https://console.cloud.google.com/iam-admin/quotas?project=p"
                ),
                Remedy(
                    "use a zone and tier that a grant or quota covers: `up` tries them (`--zone any --tier spot,on-demand`)"
                ),
            ),
            facts={
                "metric": "",
                "displayName": REGION,
                "place": "us-central2",
                "limit": 24,
                "held": 24,
                "needed": 8,
                "unit": "cores",
                "holders": holders,
            },
        )
    ]


DEAD = resources(
    node(f"{ZONE}/husk", state="PREEMPTED"), node("us-west4-a/far", state="PREEMPTED"), node(f"{ZONE}/alive")
)
HELD_BY_DEAD = f"dead records hold 8 cores of on-demand v4 quota: `{ZONE}/husk` (PREEMPTED, 8)"


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        (facts(quotas=limits(quota(REGION, 23)), resources=DEAD), [("note", "us-central2", HELD_BY_DEAD)]),
        (facts(quotas=limits(quota(REGION, 24)), resources=DEAD), [("note", "us-central2", HELD_BY_DEAD)]),
        (facts(quotas=SLOW, resources=DEAD), [("note", "us-central2", HELD_BY_DEAD)]),
        (facts(wanted(creates=False), quotas=limits(quota(REGION, 0)), resources=DEAD), []),
        (facts(wanted(spec("v6e-8")), resources=DEAD), []),
        (facts(wanted(replaces=node(f"{ZONE}/husk")), resources=DEAD), []),
        (facts(resources=SLOW), []),
        (facts(resources=None), []),
    ],
)
def test_dead_records_are_reported(about: CheckFacts, expected: list[tuple[str, str, str]]) -> None:
    assert summaries(dead_records_hold_quota, about) == expected


EXPIRED = {"tpuctl-expires": str(int((NOW - timedelta(hours=1)).timestamp()))}
KEPT = {"tpuctl-keep": "1"}


@pytest.mark.parametrize(
    ("holders", "expected"),
    [
        pytest.param([node(f"{ZONE}/a"), node(f"{ZONE}/b", "v4-16")], None, id="nothing is dead"),
        pytest.param(
            [node(f"{ZONE}/a", state="PREEMPTED"), node(f"{ZONE}/b", "v4-16")], None, id="one record is named alone"
        ),
        pytest.param(
            [node(f"{ZONE}/a", state="PREEMPTED"), node(f"{ZONE}/b", "v4-16", state="TERMINATED")],
            f"tpuctl gc --everyones --zone={ZONE} --project=p",
            id="dead records",
        ),
        pytest.param(
            [node(f"{ZONE}/a", "v4-16"), node(f"{ZONE}/b", labels=EXPIRED)],
            f"tpuctl gc --expired --everyones --zone={ZONE} --project=p",
            id="an expired node",
        ),
        pytest.param([node(f"{ZONE}/a", "v4-16"), node(f"{ZONE}/b", labels=EXPIRED | KEPT)], None, id="a kept node"),
        pytest.param(
            [node(f"{ZONE}/a", "v4-16"), node(f"{ZONE}/b", labels=EXPIRED, state="STOPPED")],
            None,
            id="it may not count",
        ),
    ],
)
def test_quota_shortage_names_the_clean_up_that_frees_enough(holders: list[Node], expected: str | None) -> None:
    about = facts(quotas=limits(quota(REGION, 24)), resources=resources(*holders))

    (result,) = found_by(quota_is_enough, about)

    commands = [remedy.command for remedy in result.remedies if (remedy.command or "").startswith("tpuctl gc")]
    assert commands == ([expected] if expected else [])
