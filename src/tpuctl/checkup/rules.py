"""All rules about this machine and the way to the cloud, in the order of their ids, and those of the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.checkup import cloud, configuration, identity, keys, machine, network, programs
from tpuctl.checkup.judging import findings_of
from tpuctl.preflight.evaluation import evaluate
from tpuctl.preflight.rules import project

if TYPE_CHECKING:
    from tpuctl.checkup.judging import CheckupRule
    from tpuctl.checkup.surroundings import Surroundings
    from tpuctl.preflight.findings import Finding

# The hundreds are `check`'s; each of these is a chapter of the reference, from this id on.
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
RULES: tuple[CheckupRule, ...] = tuple(
    sorted(
        (
            *machine.RULES,
            *programs.RULES,
            *keys.RULES,
            *identity.RULES,
            *network.RULES,
            *cloud.RULES,
            *configuration.RULES,
        ),
        key=lambda rule: rule.id,
    )
)
# Of the checks before a node is made those that are about the project itself; their ids are the same.
PROJECT_RULES = (project.services, project.billing, project.project)


def judge(seen: Surroundings) -> tuple[Finding, ...]:
    """Return everything that is to be said, in the order of the rules."""
    facts = seen.cloud.facts
    return (*findings_of(seen, RULES), *(evaluate(facts, PROJECT_RULES).findings if facts else ()))
