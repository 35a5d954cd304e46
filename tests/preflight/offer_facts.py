"""What the rules of offers, quota and grants look at, made short."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tpuctl.model import Node, NodeSpec, QueuedResource, Tier
from tpuctl.model.project import Project, QuotaLimit
from tpuctl.names import NodeName
from tpuctl.preflight.fact import Known
from tpuctl.preflight.facts import Facts, Held
from tpuctl.preflight.findings import Found, Rule
from tpuctl.preflight.wanted import Wanted

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
ZONE = "us-central2-b"


def spec(accelerator_type: str = "v4-8", tier: Tier | None = None, **more: Any) -> NodeSpec:  # any field of a spec
    more = {"runtime_version": "tpu-ubuntu2204-base", **more}
    return NodeSpec(accelerator_type=accelerator_type, tier=tier, **more)


def wanted(made: NodeSpec | None = None, zone: str = ZONE, name: str | None = "trainer", **more: Any) -> Wanted:
    return Wanted(project="p", zone=zone, spec=made or spec(), name=NodeName("p", zone, name) if name else None, **more)


def facts(about: Wanted | None = None, **more: Any) -> Facts:  # any of the facts
    return Facts(now=NOW, wanted=about or wanted(), project=Known(Project("p", "7", "ACTIVE")), **more)


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


def held(*records: Node | QueuedResource, unreachable: tuple[str, ...] = ()) -> Known[Held]:
    return Known(
        Held(
            tuple(one for one in records if isinstance(one, Node)),
            tuple(one for one in records if isinstance(one, QueuedResource)),
            unreachable,
        )
    )


def quota(name: str, value: int | None, **places: str) -> QuotaLimit:
    """Return a limit by its name as refusals have it; where it counts follows from the name."""
    scope = "zone" if "PerZone" in name else "region"
    return QuotaLimit("", name, f"1/{{project}}/{{{scope}}}", value, places)


def said(rule: Rule[Facts], about: Facts) -> list[tuple[str, str, str]]:
    """Return level, subject and text of what a rule finds."""
    return [(str(found.level), found.subject, found.text) for found in found_by(rule, about)]


def found_by(rule: Rule[Facts], about: Facts) -> list[Found]:
    return list(rule.judge(about))
