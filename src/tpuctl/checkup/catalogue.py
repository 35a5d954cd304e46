"""All rules of `doctor`, by subject, and their evaluation without a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.checkup.node import condition, equipment
from tpuctl.checkup.surroundings import identity, keys, machine, network, programs, settings
from tpuctl.checkup.surroundings import project as own_project
from tpuctl.checkup.workers import frameworks, tpu, variables
from tpuctl.checkup.workers import machine as worker_machine
from tpuctl.preflight.evaluation import findings_of
from tpuctl.preflight.rules import project

if TYPE_CHECKING:
    from tpuctl.checkup.surroundings.facts import Surroundings
    from tpuctl.preflight.findings import Finding, Rule

# Chapters of the reference, each with the id where it begins. The hundreds have chapters of `check`.
CHAPTERS = {
    "TPU901": "This machine",
    "TPU915": "The ssh key",
    "TPU921": "Credentials",
    "TPU931": "The network",
    "TPU940": "The project",
    "TPU945": "Settings",
    "TPU950": "The node",
    "TPU965": "The workers",
}
OF_SURROUNDINGS = (
    *machine.RULES,
    *programs.RULES,
    *keys.RULES,
    *identity.RULES,
    *network.RULES,
    *own_project.RULES,
    *settings.RULES,
)
# The rules of `check` about the project itself, with the same ids.
OF_PROJECTS = (project.services, project.billing, project.project)
OF_NODES = (*condition.RULES, *equipment.RULES)
OF_WORKERS = (*tpu.RULES, *worker_machine.RULES, *variables.RULES, *frameworks.RULES)
# Without those that are `check`'s.
OWN: tuple[Rule[Any], ...] = (*OF_SURROUNDINGS, *OF_NODES, *OF_WORKERS)
IDS = tuple(sorted(rule.id for rule in (*OWN, *OF_PROJECTS)))


def judge(environment: Surroundings) -> tuple[Finding, ...]:
    """Return all findings without a node; those about the project only if it could be read."""
    facts = environment.cloud.facts
    return (*findings_of(environment, OF_SURROUNDINGS), *(findings_of(facts, OF_PROJECTS) if facts else ()))
