"""Organization Policy v2: the constraints on a project.

Projects have no organisation here: only policies of the project itself apply, and a constraint without a policy has its
default.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox.api_calls import DEFAULT_PROJECT, answers, error_of
from tpuctl.sandbox.catalog import number_of_project
from tpuctl.sandbox.representation import millisecond_timestamp
from tpuctl.sandbox.resource_manager import resolve_project
from tpuctl.yaml_reader import load_data

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.state_session import StateSession

ORG_POLICY_KIND = "orgpolicy.policy"


def put_org_policy(session: StateSession, name: str, spec: Json, *, project: str = DEFAULT_PROJECT) -> Json:
    """Store a project's policy for a constraint and return it; `spec` as in the API: `{"rules": [{"enforce": True}]}`.

    The name is the constraint, with `constraints/` or not, or that of a policy, whose project it names.
    """
    parts = name.split("/")
    project, constraint = parts[1] if len(parts) == 4 else project, parts[-1]
    document = {**spec, "updateTime": millisecond_timestamp(session.now)}
    session.resources.put(ORG_POLICY_KIND, project, constraint, document)
    return {"name": _policy_name(project, constraint), "spec": document}


def org_policy_denies_all(session: StateSession, project: str, constraint: str) -> bool:
    """Return whether a project's own policy for a list constraint denies all values."""
    return any(rule.get("denyAll") for rule in _own_rules(session, project, constraint))


def is_constraint_enforced(session: StateSession, project: str, constraint: str) -> bool:
    """Return whether a project's own policy enforces a boolean constraint."""
    return any(rule.get("enforce") for rule in _own_rules(session, project, constraint))


@answers("orgpolicy.projects.policies.getEffectivePolicy")
def _get_effective_policy(session: StateSession, call: Call) -> Json:
    """Return the effective policy: without an etag (API field text)."""
    project, constraint = _parse_policy_name(session, call["name"])
    # API method text: the returned policy is evaluated. Documentation: the default of a constraint is shown as a rule.
    rules = _own_rules(session, project, constraint) or [_default_rule(constraint) or {}]
    return {"name": _policy_name(project, constraint), "spec": {"rules": rules}}


def _parse_policy_name(session: StateSession, name: str) -> tuple[str, str]:
    """Return project and constraint of a policy's name. Raises `ApiError` 404 for an unknown constraint."""
    parts = name.split("/")
    constraint = parts[-1]
    if len(parts) != 4 or _default_rule(constraint) is None:
        raise error_of(404)
    return resolve_project(session, parts[1]), constraint


def _own_rules(session: StateSession, project: str, constraint: str) -> list[Json]:
    """Return the rules without conditions: resources here have no tags that match one."""
    kept = session.resources.get(ORG_POLICY_KIND, project, constraint) or {}
    return [rule for rule in kept.get("rules") or [] if not rule.get("condition")]


def _policy_name(project: str, constraint: str) -> str:
    # API field text: answers name the project by its number.
    return f"projects/{number_of_project(project)}/policies/{constraint}"


@cache
def _load_constraints() -> Any:
    return load_data("org_policies.yaml")


def _default_rule(constraint: str) -> Json | None:
    """Return the rule that a constraint has by default. None for a constraint that does not exist."""
    known = _load_constraints()
    service, _, name = constraint.partition(".")
    if service == "custom" or name in known["booleans"].get(service, ()):
        return {"enforce": False}
    if name in known["lists"].get(service, ()):
        return {"allowAll": True}
    rule: Json | None = known["restricting"].get(constraint)
    return rule
