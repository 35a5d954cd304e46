"""The contract with scripts: ids of checks, and JSON fields with their types, as in their schemas."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from tests.json_contract import check_documents, declared_types, observed_types
from tpuctl.check.ai_platform import JOB_RULES
from tpuctl.check.facts import Absent, BucketFacts, BucketUse, CheckFacts, Known, ProjectResources, Unknown, WantedNode
from tpuctl.check.findings import CheckRule, EnableService, Level, Remedy, RuleResult, evaluate_rules
from tpuctl.check.report_rendering import ZONES_SCHEMA_VERSION, findings_view, ranking_view, wanted_to_json
from tpuctl.check.rules import CATEGORIES, RETIRED_RULES
from tpuctl.check.rules import RULES as OF_NODES
from tpuctl.check.zone_ranking import rank_zones
from tpuctl.models.bucket import BucketPlacement
from tpuctl.models.grants import Grant
from tpuctl.models.node import Tier
from tpuctl.models.project import QuotaLimit
from tpuctl.models.spec import NodeSpec
from tpuctl.names import NodeName
from tpuctl.output.terminal import OutputFormat, StandardStreams, Terminal, View, show_view

RULES: tuple[CheckRule[Any], ...] = (*OF_NODES, *JOB_RULES)

# Frozen: an id keeps its meaning for ever. A new check gets a new one; none is renamed, removed or used again.
# The other ids up to TPU820 were merged before the first release; their numbers stay unused.
IDS = (
    *("TPU101", "TPU102", "TPU103", "TPU104", "TPU105", "TPU106", "TPU107", "TPU108"),
    *("TPU201", "TPU202", "TPU203", "TPU204"),
    *("TPU301", "TPU302", "TPU303", "TPU304", "TPU305", "TPU306"),
    *("TPU401", "TPU402", "TPU403", "TPU404", "TPU405", "TPU406", "TPU407", "TPU408", "TPU409"),
    *("TPU501", "TPU502", "TPU503", "TPU504", "TPU505", "TPU506"),
    *("TPU601", "TPU602", "TPU603", "TPU604", "TPU605", "TPU606"),
    *("TPU701", "TPU702", "TPU703", "TPU704"),
    *("TPU801", "TPU803", "TPU808", "TPU812", "TPU817"),
)


def test_check_ids_are_never_renamed_or_removed() -> None:
    assert sorted(rule.id for rule in RULES) == sorted(IDS)
    assert not set(IDS) & set(RETIRED_RULES)
    assert {"TPU807", "TPU819", "TPU820"} <= set(RETIRED_RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_check_has_id_title_and_text(rule: CheckRule[Any]) -> None:
    assert re.fullmatch(r"TPU\d{3}", rule.id)
    assert rule.id[:4] in CATEGORIES
    assert rule.title
    assert not rule.title.endswith(".")
    assert rule.text.endswith((".", "]")), "the docstring is the text of the reference"


@pytest.mark.parametrize("prefix", CATEGORIES)
def test_every_category_has_checks(prefix: str) -> None:
    assert any(rule.id.startswith(prefix) for rule in RULES)


def assert_all_types_are_declared(definition: str, *values: dict[str, Any]) -> None:
    """Assert that values fit their schema, and that each type which it allows occurs."""
    check_documents("check", "".join(map(json.dumps, values)))
    declared, observed = declared_types(definition), observed_types(*values)
    assert {path: observed.get(path) for path in declared} == declared


def shown_json(view: View, *, sandbox: bool) -> dict[str, Any]:
    """Return the object that `-o json` prints."""
    out = io.StringIO()
    terminal = Terminal(StandardStreams(io.StringIO(), out, io.StringIO(), False, False, False, 80), {})
    show_view(view, terminal, OutputFormat.JSON, sandbox=sandbox)
    return dict(json.loads(out.getvalue()))


BARE = WantedNode(project="p", zone="z-a", spec=NodeSpec(accelerator_type="v4-8", runtime_version="r"))
FULL = WantedNode(
    project="p",
    zone="z-a",
    spec=NodeSpec(accelerator_type="v4-8", runtime_version="r", tier=Tier.SPOT, topology="2x2x1"),
    name=NodeName("p", "z-a", "n"),
    buckets=(BucketUse("b"),),
    machine="vm",
)
SAID = RuleResult(
    level=Level.ERROR,
    subject="s",
    text="t",
    why="w",
    remedies=(Remedy("r"), Remedy.by(EnableService("p", "a"), "r")),
    facts={"any": None},
)


def test_report_json_matches_its_schema() -> None:
    facts = CheckFacts(now=datetime(2026, 1, 1, tzinfo=UTC), wanted=BARE, project=Absent())
    found = evaluate_rules(
        facts, [CheckRule("TPU101", "t", "", lambda _: [SAID, RuleResult(level=Level.NOTE, subject="s", text="u")])]
    )

    full, bare = (
        shown_json(findings_view(found, about={"target": wanted_to_json(wanted)}), sandbox=wanted is FULL)
        for wanted in (FULL, BARE)
    )

    assert_all_types_are_declared("checkReport", full, bare)
    assert full.keys() - bare.keys() == {"sandbox"}
    assert [each.keys() for each in full["findings"]] == [full["findings"][0].keys()] * 2
    assert list(full["summary"]) == [str(level) for level in Level] == ["error", "warning", "unknown", "note"]
    assert (full["schemaVersion"], ZONES_SCHEMA_VERSION) == (2, 1)


def test_ranking_json_matches_its_schema() -> None:
    spec = NodeSpec(accelerator_type="v4-8", runtime_version="r")
    far, priced = Known({"us-east5-b": ("v6e-8",)}), NodeSpec(accelerator_type="v6e-8", runtime_version="r")
    hidden = BucketFacts(use=BucketUse("c"), bucket=Unknown("why", "permission"))
    gone = BucketFacts(use=BucketUse("d"), bucket=Absent())
    placed = BucketFacts(use=BucketUse("b"), bucket=Unknown("why"), layout=Known(BucketPlacement("US-EAST1", "region")))
    grant = Grant("us-central2-b", "v4", "on-demand", 8, None)
    quotas = Known((QuotaLimit("", "TPUV4PerProjectPerZoneForTPUAPI", "1/{project}/{zone}", 8),))
    full = rank_zones(
        spec,
        grants=(grant,),
        project="p",
        today=date(2026, 1, 1),
        buckets=[placed, hidden, gone],
        quotas=quotas,
        resources=Known(ProjectResources()),
    )
    bare = rank_zones(priced, project="p", today=date(2026, 1, 1), offers=far)
    here = Known({"us-central2-b": ("v4-8",)})
    unpriced = rank_zones(replace(spec, tier=Tier.SPOT), project="p", today=date(2026, 1, 1), offers=here)

    shown = [shown_json(ranking_view(each), sandbox=each is full) for each in (full, bare, unpriced)]

    assert_all_types_are_declared("zoneRanking", *shown)
