"""IAM: the policies of projects and buckets, and the roles that they grant.

The caller owns the sandbox: it has every permission but those that the resource was made without (`denied`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tpuctl.sandbox import projects
from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session


ROLE = "iam.role"
_WITH_CONDITIONS = 3  # API field text of Policy.version


def policy(session: Session, kind: str, name: str, *, default: Json, version: int = _WITH_CONDITIONS) -> Json:
    """Return a resource's policy with its etag; `default` is what it begins with.

    Only `version` 3 shows conditions. Of an older one the condition is left out, and the role's name says that there is one
    (documentation: troubleshooting `withcond`).
    """
    found = session.resources.get("iam.policy", kind, name) or default
    bindings = found.get("bindings") or []
    is_conditional = any(binding.get("condition") for binding in bindings)
    shown: Json = {**found, "version": _WITH_CONDITIONS if is_conditional else 1, "etag": _etag(found)}
    if is_conditional and version < _WITH_CONDITIONS:
        shown |= {"version": 1, "bindings": [_without_condition(binding) for binding in bindings]}
    return shown


def _without_condition(binding: Json) -> Json:
    if not (condition := binding.get("condition")):
        return binding
    digest = hashlib.blake2b(json.dumps(condition, sort_keys=True).encode(), digest_size=10).hexdigest()
    return {"role": f"{binding['role']}_withcond_{digest}", "members": binding["members"]}


def set_policy(session: Session, kind: str, name: str, wanted: Json, *, default: Json) -> Json | None:
    """Replace a policy and return it; nothing when its etag says that it was read before another change."""
    current = policy(session, kind, name, default=default)
    # gcloud sends bytes back in the alphabet of URLs.
    given = str(wanted.get("etag") or "").replace("-", "+").replace("_", "/")
    if given not in {"", current["etag"]}:
        return None
    conditional = any(binding.get("condition") for binding in wanted.get("bindings") or [])
    if conditional and int(wanted.get("version") or 0) < _WITH_CONDITIONS:
        # API field text of Policy.version: whoever sets conditions must say 3; the words are unverified.
        raise ApiError(400, "INVALID_ARGUMENT", "A policy with conditions must specify version 3.")
    put_policy(session, kind, name, wanted)
    return policy(session, kind, name, default=default)


def put_policy(session: Session, kind: str, name: str, wanted: Json) -> None:
    """Keep a policy as it is given, whatever was there."""
    kept = {key: value for key, value in wanted.items() if key in {"version", "bindings", "auditConfigs"} and value}
    # Each set is a change, also back to what was: the etag must differ.
    kept["serial"] = session.next_incarnation(f"iam.policy/{kind}/{name}")
    session.resources.put("iam.policy", kind, name, kept)


def shown(document: Json) -> Json:
    """Return a policy without what only the sandbox knows of it."""
    return {key: value for key, value in document.items() if key != "serial"}


def allowed(asked: Iterable[str], denied: Iterable[str]) -> list[str]:
    """Return those of some permissions that the caller has."""
    return [permission for permission in asked if not is_denied(permission, denied)]


def is_denied(permission: str, denied: Iterable[str]) -> bool:
    """Tell whether a permission is among those denied, which may be patterns."""
    return any(fnmatchcase(permission, pattern) for pattern in denied)


def add_role(session: Session, project: str, name: str, *, fields: Json) -> Json:
    """Keep a custom role of a project and return it; `name` is its id, or its full name."""
    role = name.rpartition("/")[2]
    document = {
        "name": f"projects/{project}/roles/{role}",
        "title": role,
        "stage": "GA",
        "etag": "BwUjMhCsNvY=",
        **{key: value for key, value in fields.items() if key != "name"},
    }
    session.resources.put(ROLE, project, role, document)
    return document


def get_custom_role(session: Session, call: Call) -> Json:
    """Answer projects.roles.get."""
    name = str(call.params["name"])
    _, given, _, role = name.split("/")
    project = projects.named(session, given)
    if not projects.is_known(session, project):
        raise ApiError(403, "PERMISSION_DENIED", f"You don't have permission to get the role at {name}.")  # unverified
    found = session.resources.get(ROLE, project, role)
    if found is None:
        raise ApiError(404, "NOT_FOUND", f"The role named {name} was not found.")
    return found


def get_role(session: Session, call: Call) -> Json:
    """Answer roles.get with the permissions of the role that matter to TPU clients: not all that the real one has."""
    del session
    name = str(call.params["name"])
    role = _roles().get(name.removeprefix("roles/"))
    if role is None:
        # Observed: what `gcloud iam roles describe` prints.
        raise ApiError(404, "NOT_FOUND", f"The role named {name} was not found.")
    return {
        "name": name,
        "title": role["title"],
        "stage": role.get("stage", "GA"),
        "etag": "AA==",
        "includedPermissions": sorted(_permissions(name.removeprefix("roles/"))),
    }


@cache
def _roles() -> dict[str, Any]:
    import yaml  # noqa: PLC0415  # only for roles.get: 20 ms

    text = files("tpuctl.data").joinpath("roles.yaml").read_bytes()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return dict(yaml.load(text, Loader=loader))  # noqa: S506  # both are the safe loader


def _permissions(role: str) -> set[str]:
    found = _roles()[role]
    included = (_permissions(other) for other in found.get("includes", []))
    return set(found.get("permissions", [])).union(*included)


def _etag(document: Json) -> str:
    digest = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=6).digest()
    return base64.b64encode(b"\x07" + digest[:5] + b"\x00\x01").decode()
