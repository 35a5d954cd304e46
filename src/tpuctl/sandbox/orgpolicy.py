"""Organization Policy v2: the constraints on a project.

Projects have no organisation here: only policies of the project itself apply, and a constraint without a policy has its
default.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog, constraints, paging, projects, rendering
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "orgpolicy.policy"


def put(session: Session, project: str, constraint: str, spec: Json) -> Json:
    """Store a project's policy for a constraint and return it as the API shows it."""
    constraint = constraint.rpartition("/")[2]
    session.resources.put(KIND, project, constraint, {**spec, "updateTime": rendering.milliseconds(session.now)})
    return _policy(session, project, constraint)


def denies_all(session: Session, project: str, constraint: str) -> bool:
    """Return whether a list constraint denies all values."""
    return any(rule.get("denyAll") for rule in _effective(session, project, constraint)["rules"])


def is_enforced(session: Session, project: str, constraint: str) -> bool:
    """Return whether a boolean constraint is enforced."""
    return any(rule.get("enforce") for rule in _effective(session, project, constraint)["rules"])


def get(session: Session, call: Call) -> Json:
    """Answer projects.policies.get: 404 if the project has no policy of its own (API method text)."""
    project, constraint = _named(session, str(call.params["name"]))
    return _policy(session, project, constraint)


def list_(session: Session, call: Call) -> Json:
    """Answer projects.policies.list: the policies of the project itself."""
    project = projects.named(session, str(call.params["parent"]).partition("/")[2])
    names = [found.name for found in session.resources.list_records(KIND, project)]
    shown, next_token = paging.page(call, [_policy(session, project, name) for name in names])
    answer: Json = {"policies": list(shown)} if shown else {}
    return {**answer, "nextPageToken": next_token} if next_token else answer


def get_effective(session: Session, call: Call) -> Json:
    """Answer projects.policies.getEffectivePolicy: without an etag (API field text)."""
    project, constraint = _named(session, str(call.params["name"]))
    return {"name": _name(project, constraint), "spec": _effective(session, project, constraint)}


def create(session: Session, call: Call) -> Json:
    """Answer projects.policies.create: 409 if the policy exists."""
    project, constraint = _named(session, str(call.body.get("name") or ""))
    session.log_request(call.method, _name(project, constraint))
    if session.resources.get(KIND, project, constraint) is not None:
        raise ApiError(409, "ALREADY_EXISTS", "Requested entity already exists")  # unverified words
    return put(session, project, constraint, _chosen(call.body))


def patch(session: Session, call: Call) -> Json:
    """Answer projects.policies.patch: the whole policy is replaced (API method text)."""
    project, constraint = _named(session, str(call.params["name"]))
    session.log_request(call.method, _name(project, constraint))
    _check_etag(_policy(session, project, constraint), str(call.body.get("etag") or ""))
    return put(session, project, constraint, _chosen(call.body))


def delete(session: Session, call: Call) -> Json:
    """Answer projects.policies.delete."""
    project, constraint = _named(session, str(call.params["name"]))
    session.log_request(call.method, _name(project, constraint))
    _check_etag(_policy(session, project, constraint), str(call.params.get("etag") or ""))
    session.resources.delete(KIND, project, constraint)
    return {}


def _chosen(body: Json) -> Json:
    return {key: value for key, value in (body.get("spec") or {}).items() if key not in {"etag", "updateTime"}}


def _check_etag(current: Json, given: str) -> None:
    if given not in {"", current["etag"]}:
        raise ApiError(409, "ABORTED", "The etag is not that of the policy as it is.")  # unverified words


def _named(session: Session, name: str) -> tuple[str, str]:
    """Return project and constraint of a policy's name. Raises `ApiError` 404 for an unknown constraint."""
    parts = name.split("/")
    constraint = parts[-1]
    if len(parts) != 4 or constraints.default(constraint) is None:
        raise _not_found()
    return projects.named(session, parts[1]), constraint


def _policy(session: Session, project: str, constraint: str) -> Json:
    spec = session.resources.get(KIND, project, constraint)
    if spec is None:
        raise _not_found()
    digest = hashlib.blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=16).digest()
    etag = base64.b64encode(digest).decode()
    return {"name": _name(project, constraint), "spec": {**spec, "etag": etag}, "etag": etag}


def _effective(session: Session, project: str, constraint: str) -> Json:
    kept = session.resources.get(KIND, project, constraint) or {}
    # API method text: the returned policy is evaluated and has no conditions. Resources here have no tags that match them.
    rules = [rule for rule in kept.get("rules") or [] if not rule.get("condition")]
    if rules:
        return {"rules": rules}
    # Documentation: the default of a constraint is shown as a rule.
    return {"rules": [constraints.default(constraint) or {}]}


def _name(project: str, constraint: str) -> str:
    # API field text: answers name the project by its number.
    return f"projects/{catalog.project_number(project)}/policies/{constraint}"


def _not_found() -> ApiError:
    return ApiError(404, "NOT_FOUND", "Requested entity was not found.")
