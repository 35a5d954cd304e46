"""All rules of `doctor`, by subject, and their evaluation without a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.check.findings import run_rules
from tpuctl.check.rules.project_rules import apis_are_enabled, project_is_active, project_is_billed
from tpuctl.doctor.cloud_rules import IDENTITY_RULES, NETWORK_RULES, PROJECT_ACCESS_RULES
from tpuctl.doctor.framework_rules import FRAMEWORK_RULES
from tpuctl.doctor.local_rules import KEY_RULES, MACHINE_RULES, PROGRAM_RULES, SETTING_RULES
from tpuctl.doctor.node_rules import NODE_CONDITION_RULES, NODE_EQUIPMENT_RULES
from tpuctl.doctor.worker_rules import WORKER_MACHINE_RULES, WORKER_TPU_RULES, WORKER_VARIABLE_RULES

if TYPE_CHECKING:
    from tpuctl.check.findings import CheckRule, Finding
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
ENVIRONMENT_RULES = (
    *MACHINE_RULES,
    *PROGRAM_RULES,
    *KEY_RULES,
    *IDENTITY_RULES,
    *NETWORK_RULES,
    *PROJECT_ACCESS_RULES,
    *SETTING_RULES,
)
# The rules of `check` about the project itself, with the same ids.
PROJECT_RULES = (apis_are_enabled, project_is_billed, project_is_active)
NODE_RULES = (*NODE_CONDITION_RULES, *NODE_EQUIPMENT_RULES)
WORKER_RULES = (*WORKER_TPU_RULES, *WORKER_MACHINE_RULES, *WORKER_VARIABLE_RULES, *FRAMEWORK_RULES)
# Without those that are `check`'s.
DOCTOR_RULES: tuple[CheckRule[Any], ...] = (*ENVIRONMENT_RULES, *NODE_RULES, *WORKER_RULES)
DOCTOR_RULE_IDS = tuple(sorted(rule.id for rule in (*DOCTOR_RULES, *PROJECT_RULES)))


def evaluate_environment(environment: EnvironmentFacts) -> tuple[Finding, ...]:
    """Return all findings without a node; those about the project only if it could be read."""
    facts = environment.cloud.facts
    return (*run_rules(environment, ENVIRONMENT_RULES), *(run_rules(facts, PROJECT_RULES) if facts else ()))
