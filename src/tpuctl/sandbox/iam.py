"""IAM: the policies of projects and buckets, and the roles that they grant.

The caller owns the sandbox and has every permission except those that the resource lists as `denied`.
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
    """Return a resource's policy with its etag; `default` is the initial policy.

    Only `version` 3 shows conditions. An older version omits the condition, and the role's name shows that there is one
    (documentation: troubleshooting `withcond`).
    """
    found = session.resources.get("iam.policy", kind, name) or default
    bindings = found.get("bindings") or []
    is_conditional = any(binding.get("condition") for binding in bindings)
    digest = hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=6).digest()
    etag = base64.b64encode(b"\x07" + digest[:5] + b"\x00\x01").decode()
    shown: Json = {**found, "version": _WITH_CONDITIONS if is_conditional else 1, "etag": etag}
    if is_conditional and version < _WITH_CONDITIONS:
        plain = []
        for binding in bindings:
            if condition := binding.get("condition"):
                suffix = hashlib.blake2b(json.dumps(condition, sort_keys=True).encode(), digest_size=10).hexdigest()
                plain.append({"role": f"{binding['role']}_withcond_{suffix}", "members": binding["members"]})
            else:
                plain.append(binding)
        shown |= {"version": 1, "bindings": plain}
    return shown


def set_policy(session: Session, kind: str, name: str, wanted: Json, *, default: Json) -> Json | None:
    """Replace a policy and return it. None if its etag is not the current one."""
    current = policy(session, kind, name, default=default)
    # gcloud sends bytes back in the URL-safe alphabet.
    given = str(wanted.get("etag") or "").replace("-", "+").replace("_", "/")
    if given not in {"", current["etag"]}:
        return None
    conditional = any(binding.get("condition") for binding in wanted.get("bindings") or [])
    if conditional and int(wanted.get("version") or 0) < _WITH_CONDITIONS:
        # API field text of Policy.version: a policy with conditions must specify 3; the message is unverified.
        raise ApiError(400, "INVALID_ARGUMENT", "A policy with conditions must specify version 3.")
    put_policy(session, kind, name, wanted)
    return policy(session, kind, name, default=default)


def put_policy(session: Session, kind: str, name: str, wanted: Json) -> None:
    """Store a policy, replacing the current one."""
    kept = {key: value for key, value in wanted.items() if key in {"version", "bindings", "auditConfigs"} and value}
    # Each set changes the etag, even if it restores an earlier policy.
    kept["serial"] = session.next_incarnation(f"iam.policy/{kind}/{name}")
    session.resources.put("iam.policy", kind, name, kept)


def shown(document: Json) -> Json:
    """Return a policy without the sandbox's internal fields."""
    return {key: value for key, value in document.items() if key != "serial"}


def allowed(asked: Iterable[str], denied: Iterable[str]) -> list[str]:
    """Return the permissions that the caller has."""
    return [permission for permission in asked if not is_denied(permission, denied)]


def is_denied(permission: str, denied: Iterable[str]) -> bool:
    """Return whether a permission is denied; `denied` may contain patterns."""
    return any(fnmatchcase(permission, pattern) for pattern in denied)


def add_role(session: Session, project: str, name: str, *, fields: Json) -> Json:
    """Store a custom role of a project and return it; `name` is its id, or its full name."""
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
    """Answer roles.get with the permissions that matter to TPU clients: a part of the real role's."""
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
