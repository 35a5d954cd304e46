"""Short ways to write the facts that rules about offers, quota and grants read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.check.facts import CheckFacts, Known, ProjectResources, WantedNode
from tpuctl.check.findings import CheckRule, RuleResult
from tpuctl.models.node import Node, Tier
from tpuctl.models.project import Project, QuotaLimit
from tpuctl.models.queued import QueuedResource
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
ZONE = "us-central2-b"


def spec(accelerator_type: str = "v4-8", tier: Tier | None = None, **more: Any) -> NodeSpec:  # any field of a spec
    more = {"runtime_version": "tpu-ubuntu2204-base", **more}
    return NodeSpec(accelerator_type=accelerator_type, tier=tier, **more)


def wanted(made: NodeSpec | None = None, zone: str = ZONE, name: str | None = "trainer", **more: Any) -> WantedNode:
    return WantedNode(
        project="p", zone=zone, spec=made or spec(), name=NodeName("p", zone, name) if name else None, **more
    )


def facts(about: WantedNode | None = None, **more: Any) -> CheckFacts:  # any of the facts
    return CheckFacts(now=NOW, wanted=about or wanted(), project=Known(Project("p", "7", "ACTIVE")), **more)


def node(
    place: str, accelerator_type: str = "v4-8", *, state: str = "READY", tier: str = "", owner: str = "", **raw: Any
) -> Node:
    zone, node_id = place.split("/")
    body: dict[str, Any] = {
        "name": f"projects/p/locations/{zone}/nodes/{node_id}",
        "acceleratorType": accelerator_type,
        "state": state,
        **({"schedulingConfig": {tier: True}} if tier else {}),
        **({"queuedResource": owner} if owner else {}),
        **raw,
    }
    return Node.from_api(body)


def request(place: str, specs: list[Mapping[str, Any]], *, state: str = "ACTIVE", **raw: Any) -> QueuedResource:
    zone, request_id = place.split("/")
    name = f"projects/p/locations/{zone}/queuedResources/{request_id}"
    return QueuedResource.from_api({"name": name, "state": {"state": state}, "tpu": {"nodeSpec": specs}, **raw})


def resources(*records: Node | QueuedResource, unreachable: tuple[str, ...] = ()) -> Known[ProjectResources]:
    return Known(
        ProjectResources(
            tuple(one for one in records if isinstance(one, Node)),
            tuple(one for one in records if isinstance(one, QueuedResource)),
            unreachable,
        )
    )


def quota(name: str, value: int | None, **places: str) -> QuotaLimit:
    """Return a limit by its name, as error messages have it; its scope follows from the name."""
    scope = "zone" if "PerZone" in name else "region"
    return QuotaLimit("", name, f"1/{{project}}/{{{scope}}}", value, places)


def summaries(rule: CheckRule[CheckFacts], about: CheckFacts) -> list[tuple[str, str, str]]:
    """Return level, subject and text of each finding."""
    return [(str(found.level), found.subject, found.text) for found in found_by(rule, about)]


def found_by(rule: CheckRule[CheckFacts], about: CheckFacts) -> list[RuleResult]:
    return list(rule.judge(about))
