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

from tpuctl.sandbox.calls import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session


def policy(session: Session, kind: str, name: str, *, default: Json) -> Json:
    """Return a resource's policy with its etag; `default` is what it begins with."""
    found = session.resources.get("iam.policy", kind, name) or default
    return {"version": 1, **found, "etag": _etag(found)}


def set_policy(session: Session, kind: str, name: str, wanted: Json, *, default: Json) -> Json | None:
    """Replace a policy and return it; nothing when its etag says that it was read before another change."""
    current = policy(session, kind, name, default=default)
    # gcloud sends bytes back in the alphabet of URLs.
    given = str(wanted.get("etag") or "").replace("-", "+").replace("_", "/")
    if given not in {"", current["etag"]}:
        return None
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
