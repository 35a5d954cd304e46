"""An unread fact is reported once, by one rule, with the permission and its place; and it is never ok."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.check.bucket_facts import a_bucket
from tests.check.rule_cases import FACTS, ZONE, wanted
from tpuctl.check.facts import (
    EXTERNAL_IPS,
    OS_LOGIN,
    SHIELDED_VM,
    BucketFacts,
    BucketUse,
    CheckFacts,
    Known,
    ProjectResources,
    Unknown,
)
from tpuctl.check.findings import Level, evaluate_rules
from tpuctl.check.rules import RULES
from tpuctl.models.compute_resources import ComputeNetwork
from tpuctl.models.node import DataDisk, Tier
from tpuctl.models.project import IamPolicy, Project
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName

LATE = Unknown("no answer within 15s", is_passing=True)
DOWN = Unknown("it is broken")
REFUSED = Unknown("you may not", "the.permission")
USE = BucketUse("b")
WHOLE = wanted(
    name=NodeName("p", ZONE, "trainer"),
    machine="projects/machines/zones/z/instances/loader",
    buckets=(USE,),
    spec={
        "tier": Tier.RESERVED,
        "network": "projects/host/global/networks/shared",
        "data_disks": (DataDisk("projects/disks/zones/us-central2-b/disks/one"),),
    },
)


def with_bucket(**changes: Any) -> CheckFacts:
    known: dict[str, Any] = {"bucket": Known(a_bucket()), "policy": Known(IamPolicy((), ""))}
    return replace(FACTS, wanted=WHOLE, buckets=(BucketFacts(use=USE, **(known | changes)),))


def with_fact(name: str, fact: Unknown) -> CheckFacts:
    """Return facts of which one was requested and could not be read."""
    if name.startswith("bucket."):
        return with_bucket(**{name.removeprefix("bucket."): fact})
    value: Any = {WHOLE.spec.data_disks[0].source: fact} if name == "disks" else fact
    if name == "org_policies":
        value = dict.fromkeys((EXTERNAL_IPS, OS_LOGIN, SHIELDED_VM), fact)
    if name == "project_policy":
        return replace(with_bucket(), project_policy=fact)
    return replace(FACTS, wanted=WHOLE, **{name: value})


ROWS = [
    ("project", "TPU506", "resourcemanager.projects.get", "p"),
    ("types", "TPU301", "tpu.acceleratortypes.list", "p"),
    ("versions", "TPU305", "tpu.runtimeversions.list", "p"),
    ("resources", "TPU306", "tpu.nodes.list", "p"),
    ("quotas", "TPU401", "serviceusage.quotas.get", "p"),
    ("region_quotas", "TPU403", "compute.regions.get", "p"),
    ("services", "TPU501", "serviceusage.services.get", "p"),
    ("billing", "TPU502", "resourcemanager.projects.get", "p"),
    ("org_policies", "TPU503", "orgpolicy.policy.get", "p"),
    ("network", "TPU601", "compute.networks.get", "host"),
    ("subnetwork", "TPU602", "compute.subnetworks.get", "host"),
    ("firewalls", "TPU604", "compute.firewalls.list", "host"),
    ("machine", "TPU701", "compute.instances.list", "machines"),
    ("disks", "TPU703", "compute.disks.get", "disks"),
    ("reservations", "TPU407", "tpu.nodes.list", "p"),
]


@pytest.mark.parametrize(("name", "id_", "permission", "project"), ROWS, ids=[row[0] for row in ROWS])
@pytest.mark.parametrize(
    ("fact", "start"),
    [
        (LATE, "check again; reading it takes the permission"),
        (DOWN, "fix that and check again; reading it takes the permission"),
        (REFUSED, "ask for the permission"),
    ],
)
def test_unread_fact_is_reported_by_one_rule(  # noqa: PLR0917  # what a row says
    name: str, id_: str, permission: str, project: str, fact: Unknown, start: str
) -> None:
    report = evaluate_rules(with_fact(name, fact), RULES)

    needed = fact.permission or permission
    assert [
        (one.id, one.found.facts["permission"], one.found.is_passing, one.found.remedies[0].text)
        for one in report.of(Level.UNKNOWN)
    ] == [(id_, needed, fact.is_passing, f"{start} `{needed}` on project `{project}`")]
    assert fact.reason in report.of(Level.UNKNOWN)[0].found.text
    assert report.is_lasting is (not fact.is_passing)


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("bucket.bucket", "TPU102"),
        ("bucket.policy", "TPU201"),
        ("bucket.contents", "TPU108"),
        ("project_policy", "TPU201"),
    ],
)
@pytest.mark.parametrize("fact", [LATE, DOWN, REFUSED])
def test_unread_bucket_fact_is_reported_by_one_rule(name: str, id_: str, fact: Unknown) -> None:
    facts = replace(with_fact(name, fact), project=Known(Project("p", "42", "ACTIVE")))
    unknown = evaluate_rules(facts, RULES).of(Level.UNKNOWN)

    found = [(one.id, one.found.is_passing) for one in unknown if fact.reason in one.found.text]
    assert found == [(id_, fact.is_passing)]
    assert all(one.found.remedies for one in unknown)


def test_facts_not_requested_are_silent() -> None:
    """Return a node without buckets, of which only the project is known."""
    plain = wanted(spec={"network": None})
    report = evaluate_rules(replace(FACTS, wanted=plain), RULES)

    assert report.findings == ()
    assert len(report.examined) == len(RULES)
    assert isinstance(plain.spec, NodeSpec)


def test_unreachable_zones_are_reported_once() -> None:
    resources = Known(ProjectResources(unreachable=("europe-west4-a", ZONE)))
    facts = replace(FACTS, wanted=WHOLE, resources=resources, network=Known(ComputeNetwork("shared", "", True, False)))

    assert [(one.id, one.found.is_passing) for one in evaluate_rules(facts, RULES).of(Level.UNKNOWN)] == [
        ("TPU306", True)
    ]
