"""The check before a creation: its queries, its cache and its messages."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.check.clients import sources
from tests.conftest import Console, Sandbox
from tests.lifecycle import UP, ZONE, put
from tpuctl.check.facts import BucketUse, CheckSettings, WantedNode
from tpuctl.check.findings import (
    CheckReport,
    EnableService,
    Finding,
    GrantBucketRole,
    Level,
    OpenFirewall,
    Remedy,
    RuleResult,
)
from tpuctl.check.fixes import apply_fix, available_fixes
from tpuctl.check.gate import CheckCache, PreflightCheck, check_failed_error, warning_lines
from tpuctl.clock import ManualClock
from tpuctl.errors import CheckFailedError, TpuctlError
from tpuctl.models.events import NodeEvent
from tpuctl.models.node import Node, Tier
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.sandbox import administration
from tpuctl.sandbox.capacity import put_quota
from tpuctl.sandbox.request_log import read_log

SPEC = NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
NAME = NodeName("sandbox", ZONE, "demo")
WANTED = WantedNode(project="sandbox", zone=ZONE, spec=SPEC, name=NAME)
NODE = Node.from_api({"name": f"projects/sandbox/locations/{ZONE}/nodes/demo", "acceleratorType": "v4-8"})


@pytest.fixture
def memory(tmp_path: Path) -> CheckCache:
    """Return a cache whose clock stands still."""
    return CheckCache(tmp_path / "checked.json", ManualClock())


def cached(tmp_path: Path) -> list[Any]:
    """Return the values of the cache."""
    path = tmp_path / "checked.json"
    return [entry["said"] for entry in json.loads(path.read_text()).values()] if path.exists() else []


def gate(sandbox: Sandbox, memory: CheckCache, *accepted: str, **wishes: Any) -> PreflightCheck:
    clock = ManualClock()
    return PreflightCheck(
        lambda: sources(sandbox),
        CheckSettings(**wishes),
        memory,
        accepted=frozenset(accepted),
        timeout=timedelta(seconds=15),
        real=clock,
        now=sandbox.state.clock.now,
        identity="sandbox",
    )


def check(
    gate: PreflightCheck, name: NodeName = NAME, *, spec: NodeSpec = SPEC, replaces: Node | None = None
) -> list[str]:
    """Check one node, and return the texts of the events."""
    events: list[NodeEvent] = []
    gate.check(name, spec, replaces=replaces, tell=events.append)
    return [event.text for event in events]


def requests(sandbox: Sandbox) -> int:
    return sum(1 for _ in read_log(sandbox.state.path))


def limit(sandbox: Sandbox, value: int) -> None:
    with sandbox.state.write() as session:
        put_quota(session, limit=value, generation="v4", zone=ZONE)


def test_passed_check_of_one_tier_does_not_permit_another(sandbox: Sandbox, memory: CheckCache) -> None:
    """A search tries several tiers in one zone. The first is not checked again when the dead record is gone."""
    tested = gate(sandbox, memory, max_price=Decimal(10))
    spot = NodeSpec(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e", tier=Tier.SPOT)
    name = NodeName("sandbox", "us-east5-b", "demo")

    check(tested, name, spec=spot)
    before = requests(sandbox)
    check(tested, name, spec=spot)

    assert requests(sandbox) == before
    with pytest.raises(CheckFailedError, match="TPU408"):
        check(tested, name, spec=replace(spot, tier=Tier.ON_DEMAND))


def test_cached_check_repeats_warnings_without_requests(sandbox: Sandbox, memory: CheckCache, tmp_path: Path) -> None:
    """A permanent refusal is cached as unknown."""
    administration.add_bucket(sandbox.state, "far", location="EU")
    administration.add_bucket(sandbox.state, "mars", location="MARS-CENTRAL1")
    administration.add_bucket(sandbox.state, "old", location="US-CENTRAL1", versioning={"enabled": True})
    wishes = {"buckets": tuple(BucketUse(name, reads=False) for name in ("far", "mars", "old"))}
    with pytest.raises(CheckFailedError, match="TPU101"):
        check(gate(sandbox, memory, **wishes))
    assert cached(tmp_path) == []

    administration.add_bucket(sandbox.state, "far", location="US")
    spec, name = replace(SPEC, accelerator_type="v2-8"), replace(NAME, zone="us-central1-b")
    first = check(gate(sandbox, memory, **wishes), name, spec=spec)
    before = requests(sandbox)

    assert check(gate(sandbox, memory, **wishes), name, spec=spec) == first
    assert requests(sandbox) == before
    assert [line.split(" ")[0] for line in first] == ["TPU101", "TPU107", "not"]
    assert first[-1] == "not checked, because it could not be read: TPU101 (`tpuctl check` says why)"
    assert len(cached(tmp_path)) == 1


def test_cached_check_without_warnings_is_silent(sandbox: Sandbox, memory: CheckCache, tmp_path: Path) -> None:
    limit(sandbox, 8)
    assert check(gate(sandbox, memory)) == []
    before = requests(sandbox)

    assert (check(gate(sandbox, memory)), requests(sandbox), cached(tmp_path)) == ([], before, [[]])


def test_passing_gap_is_queried_again(sandbox: Sandbox, memory: CheckCache, tmp_path: Path) -> None:
    sandbox.fault("http-error", method="compute.firewalls.list", status=503, count=0)

    assert [line.partition(":")[0] for line in check(gate(sandbox, memory))] == [
        "not checked, because it could not be read"
    ]
    assert cached(tmp_path) == []


def test_passed_node_is_not_checked_for_ten_minutes(sandbox: Sandbox, memory: CheckCache) -> None:
    """Its warnings are not repeated either."""
    administration.add_bucket(sandbox.state, "data", location="US-CENTRAL2", versioning={"enabled": True})
    one, seen = gate(sandbox, memory, buckets=(BucketUse("data", reads=False),)), []
    for seconds in (0, 599, 2):
        sandbox.advance(seconds=seconds)
        memory.clear()
        before = requests(sandbox)
        seen.append((len(check(one)), requests(sandbox) > before))

    assert seen == [(1, True), (0, False), (1, True)]


def test_answers_are_shared_for_ten_minutes(sandbox: Sandbox, memory: CheckCache) -> None:
    """Queries that only one of the nodes needs are still sent."""
    one, asked = gate(sandbox, memory), []
    for name, minutes, seconds in (("a", 0, 0), ("b", 10, 0), ("c", 0, 1)):
        sandbox.advance(minutes=minutes, seconds=seconds)
        before = requests(sandbox)
        check(one, replace(NAME, node_id=name))
        asked.append(requests(sandbox) > before)

    assert asked == [True, False, True]


def test_discarded_answers_are_queried_again(sandbox: Sandbox, memory: CheckCache) -> None:
    one = gate(sandbox, memory)
    administration.set_services(sandbox.state, {"compute.googleapis.com": False})
    before = one.report(WANTED).of(Level.ERROR)
    administration.set_services(sandbox.state, {"compute.googleapis.com": True})
    still = one.report(WANTED).of(Level.ERROR)
    one.discard_answers()

    assert (before, one.report(WANTED).of(Level.ERROR)) == (still, ())
    assert "TPU501" in {finding.id for finding in still}


@pytest.mark.parametrize(("value", "passes"), [(15, False), (16, True)])
def test_siblings_count_and_the_node_once(sandbox: Sandbox, memory: CheckCache, *, value: int, passes: bool) -> None:
    limit(sandbox, value)
    one = gate(sandbox, memory)
    one.siblings = {NAME: SPEC, replace(NAME, node_id="other"): SPEC}

    if passes:
        check(one)
        return
    with pytest.raises(CheckFailedError, match="16 cores are needed"):
        check(one)


def test_replaced_node_frees_its_quota(sandbox: Sandbox, memory: CheckCache) -> None:
    put(sandbox)
    limit(sandbox, 8)

    with pytest.raises(CheckFailedError, match="TPU401"):
        check(gate(sandbox, memory))
    check(gate(sandbox, memory), replaces=NODE)


def test_accepting_all_sends_no_request(sandbox: Sandbox, memory: CheckCache, tmp_path: Path) -> None:
    limit(sandbox, 0)

    assert (check(gate(sandbox, memory, "all")), requests(sandbox), cached(tmp_path)) == ([], 0, [])


def test_check_of_existing_node_does_not_permit_creation(tpuctl: Console, sandbox: Sandbox) -> None:
    """For an existing node, quota and grants are not queried."""
    tpuctl("create", "demo", *UP[2:])
    sandbox.advance(hours=1)
    assert tpuctl("check", "demo")[2] == 0
    tpuctl("delete", "demo", "--yes", "--zone", ZONE)
    limit(sandbox, 0)

    _, err, code = tpuctl("up", "demo", "--yes")

    assert (code, "TPU401" in err, sandbox.changes()) == (9, True, ["create", "delete"])


def finding(id_: str, level: Level = Level.ERROR, *remedies: Remedy, accepted: bool = False, **more: Any) -> Finding:
    found = RuleResult(level=level, subject="thing", text=f"`thing` of {id_}", remedies=remedies, **more)
    return Finding(id_, "", found, accepted=accepted)


@pytest.mark.parametrize(
    ("errors", "message", "hint"),
    [
        (
            (finding("TPU101"),),
            "demo was not created: the check found 1 error\n  TPU101 `thing` of TPU101",
            "fix it, or continue with `--skip-check TPU101`",
        ),
        (
            (
                finding("TPU101", Level.ERROR, Remedy("do it", "a command"), Remedy("or not"), why="it costs"),
                finding("TPU101"),
                finding("TPU105"),
            ),
            (
                "demo was not created: the check found 3 errors\n"
                "  TPU101 `thing` of TPU101\n    it costs\n    → do it: `a command`\n    → or not\n"
                "  TPU101 `thing` of TPU101\n  TPU105 `thing` of TPU105"
            ),
            "fix it, or continue with `--skip-check TPU101 --skip-check TPU105`",
        ),
    ],
)
def test_check_error_names_remedies_and_skip_flag(errors: tuple[Finding, ...], message: str, hint: str) -> None:
    error = check_failed_error(errors, "demo")

    assert (error.message, error.hint) == (message, hint)


def test_warnings_are_lines_and_gaps_one_line() -> None:
    found = (
        finding("TPU101", accepted=True),
        finding("TPU105", Level.WARNING),
        finding("TPU106", Level.WARNING, accepted=True),
        finding("TPU401", Level.UNKNOWN),
        finding("TPU201", Level.UNKNOWN),
        finding("TPU401", Level.UNKNOWN),
        finding("TPU107", Level.NOTE),
    )

    assert warning_lines(found) == [
        "TPU101 `thing` of TPU101 (accepted)",
        "TPU105 `thing` of TPU105",
        "not checked, because it could not be read: TPU401, TPU201 (`tpuctl check` says why)",
    ]
    assert warning_lines(found[-1:]) == []


def test_bucket_grant_names_billing_project(sandbox: Sandbox) -> None:
    administration.add_bucket(sandbox.state, "data", billing={"requesterPays": True})
    grant = GrantBucketRole("data", "roles/storage.objectViewer", "user:ada@example.com")

    with pytest.raises(TpuctlError, match="requester pays"):
        apply_fix(sources(sandbox), grant)
    apply_fix(sources(sandbox), replace(grant, user_project="sandbox"))

    assert sandbox.changes() == ["setIamPolicy"]


def test_firewall_fix_creates_the_rule(sandbox: Sandbox) -> None:
    asked = sources(sandbox)
    apply_fix(asked, OpenFirewall("sandbox", "default", "iap", ("35.235.240.0/20",)))

    (made,) = (rule for rule in asked.compute.firewalls("sandbox") if rule.name == "iap")
    assert (made.network, made.source_ranges, dict(made.protocols)) == (
        "default",
        ("35.235.240.0/20",),
        {"tcp": ("22",)},
    )
    assert (made.is_ingress, made.denies, made.is_disabled) == (True, False, False)


def test_fixes_are_unique_and_sorted() -> None:
    enable, grant = EnableService("p", "a"), GrantBucketRole("b", "r", "m")
    other, needless = EnableService("p", "b"), EnableService("p", "c")

    def fixable(level: Level, *done: EnableService | GrantBucketRole) -> Finding:
        return finding("TPU1", level, Remedy("by hand"), *(Remedy.by(change, "so") for change in done))

    report = CheckReport(
        (
            *(fixable(Level.ERROR, enable), fixable(Level.WARNING, grant, enable), fixable(Level.UNKNOWN, other)),
            fixable(Level.NOTE, needless),
        )
    )

    assert available_fixes(report) == (enable, grant, other)
