"""A v4-8 without problems, and one-line findings, for the tests of rules about projects, networks, machines and disks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tpuctl.check.facts import CheckFacts, Known, Unknown, WantedNode
from tpuctl.check.findings import CheckRule, Level, RuleResult
from tpuctl.models.compute_resources import FirewallRule
from tpuctl.models.project import Project
from tpuctl.models.spec import NodeSpec

ZONE, REGION = "us-central2-b", "us-central2"
WANTED = WantedNode(
    project="p", zone=ZONE, spec=NodeSpec(accelerator_type="v4-8", runtime_version="tpu-ubuntu2204-base")
)
FACTS = CheckFacts(now=datetime(2026, 1, 1, tzinfo=UTC), wanted=WANTED, project=Known(Project("p", "7", "ACTIVE")))
REFUSED = Unknown("permission denied", "the.permission")
LATE = Unknown("no answer within 15s", is_passing=True)


def wanted(**changes: Any) -> WantedNode:
    """Return the v4-8 with some fields changed; those of its spec are under `spec`."""
    spec = replace(WANTED.spec, **changes.pop("spec", {}))
    return replace(WANTED, spec=spec, **changes)


def facts(*, want: dict[str, Any] | None = None, **changes: Any) -> CheckFacts:
    return replace(FACTS, wanted=wanted(**(want or {})), **changes)


def found(rule: CheckRule[CheckFacts], these: CheckFacts) -> list[RuleResult]:
    return list(rule.judge(these))


def summaries(rule: CheckRule[CheckFacts], these: CheckFacts) -> list[str]:
    """Return `LEVEL subject: text` for each finding."""
    return [f"{one.level} {one.subject}: {one.text}" for one in rule.judge(these)]


def levels(rule: CheckRule[CheckFacts], these: CheckFacts) -> list[Level]:
    return [one.level for one in rule.judge(these)]


def commands(rule: CheckRule[CheckFacts], these: CheckFacts) -> list[str]:
    return [remedy.command for one in rule.judge(these) for remedy in one.remedies if remedy.command]


def allow(name: str = "allow", *ranges: str, **changes: Any) -> FirewallRule:
    """Return a firewall rule that allows tcp:22 from everywhere, with some fields changed."""
    plain = FirewallRule(
        name=name,
        network="default",
        is_ingress=True,
        is_disabled=False,
        denies=False,
        priority=1000,
        source_ranges=ranges or ("0.0.0.0/0",),
        source_tags=(),
        source_accounts=(),
        target_tags=(),
        target_accounts=(),
        protocols={"tcp": ("22",)},
    )
    return replace(plain, **changes)


def deny(name: str = "deny", *ranges: str, **changes: Any) -> FirewallRule:
    return allow(name, *ranges, denies=True, **changes)
