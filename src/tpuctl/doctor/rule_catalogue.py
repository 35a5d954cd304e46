"""All rules of `doctor`, by subject, and their evaluation without a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.check.findings import CheckReport, CheckRule, evaluate_rules, join_reports
from tpuctl.check.rules import RETIRED_RULES, RULES
from tpuctl.check.rules.project_rules import apis_are_enabled, project_is_active, project_is_billed
from tpuctl.doctor import cloud_rules, framework_rules, local_rules, node_rules, worker_rules

if TYPE_CHECKING:
    from types import ModuleType

    from tpuctl.doctor.doctor_facts import EnvironmentFacts

# Chapters of the reference, each with the id where it begins. The hundreds have chapters of `check`.
REFERENCE_CHAPTERS = {
    "TPU901": "This machine",
    "TPU915": "The ssh key",
    "TPU921": "Credentials",
    "TPU931": "The network",
    "TPU940": "The project",
    "TPU945": "Settings",
    "TPU950": "The node",
    "TPU965": "The workers",
}


def _rules_in(*modules: ModuleType) -> tuple[CheckRule[Any], ...]:
    """Return the rules that are written in these modules."""
    return tuple(value for module in modules for value in vars(module).values() if isinstance(value, CheckRule))


ENVIRONMENT_RULES = _rules_in(local_rules, cloud_rules)
NODE_RULES = _rules_in(node_rules)
WORKER_RULES = _rules_in(worker_rules, framework_rules)
# The rules of `check` about the project itself, with the same ids.
PROJECT_RULES = (apis_are_enabled, project_is_billed, project_is_active)
# Without those that are `check`'s.
DOCTOR_RULES = (*ENVIRONMENT_RULES, *NODE_RULES, *WORKER_RULES)
# A NODE is checked with all rules of `check`. A retired id may still be skipped by a script.
DOCTOR_RULE_IDS = tuple(sorted({*(rule.id for rule in (*DOCTOR_RULES, *RULES)), *RETIRED_RULES}))


def evaluate_environment(environment: EnvironmentFacts) -> CheckReport:
    """Return the report without a node; it has findings about the project only if that could be read."""
    report, facts = evaluate_rules(environment, ENVIRONMENT_RULES), environment.cloud.facts
    return join_reports(report, evaluate_rules(facts, PROJECT_RULES)) if facts else report
