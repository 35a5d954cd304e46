"""Creation and changes of buckets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.sandbox import projects, rendering
from tpuctl.sandbox.storage import buckets, refusals

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

# Documentation: 3 to 63 characters; with dots 222, at most 63 for each part; no address, no name that begins with goog.
_NAME = re.compile(
    r"(?!goog)(?!\d+(\.\d+){3}$)(?=.{3,222}$)[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)*"
)
# The fields that a client may set; without access control lists, since access is uniform.
_CHOSEN = (
    *("autoclass", "billing", "cors", "customPlacementConfig", "defaultEventBasedHold", "encryption"),
    *("hierarchicalNamespace", "iamConfiguration", "labels", "lifecycle", "logging", "retentionPolicy", "rpo"),
    *("softDeletePolicy", "storageClass", "versioning", "website"),
)


def insert(session: Session, call: Call) -> Json:
    """Answer buckets.insert."""
    name, project = str(call.body.get("name") or ""), projects.named(session, str(call.params["project"]))
    session.log_request(call.method, name)
    if not projects.is_known(session, project):
        raise refusals.unknown_project(project)
    check_name(name)
    if (found := session.resources.find(buckets.KIND, name)) is not None:
        raise refusals.taken(is_own=found.parent == project)
    fields = {key: call.body[key] for key in _CHOSEN if call.body.get(key) is not None}
    return buckets.add(
        session, project, name, fields={"location": call.body.get("location") or "US", **fields}, denied=()
    )


def patch(session: Session, call: Call) -> Json:
    """Answer buckets.patch: null removes a field, objects are merged, all other values are replaced."""
    session.log_request(call.method, str(call.params["bucket"]))
    bucket = buckets.opened(session, call, "storage.buckets.update")
    current = bucket.document
    wanted = call.params.get("ifMetagenerationMatch")
    if wanted is not None and str(wanted) != current["metageneration"]:
        raise refusals.condition_not_met()
    if (current.get("retentionPolicy") or {}).get("isLocked") and "retentionPolicy" in call.body:
        raise refusals.locked(current["name"])
    document = {**current, **merged(current, {key: call.body[key] for key in _CHOSEN if key in call.body})}
    document = {key: value for key, value in document.items() if value is not None}
    document |= {
        "metageneration": str(int(current["metageneration"]) + 1),
        "updated": rendering.milliseconds(session.now),
    }
    kept = {"document": document, "denied": list(bucket.denied)}
    session.resources.put(buckets.KIND, bucket.project, current["name"], kept)
    return document


def check_name(name: str) -> None:
    """Raise `ApiError` 400 for an invalid bucket name (documentation; words unverified)."""
    if not _NAME.fullmatch(name):
        raise refusals.invalid(f"Invalid bucket name: '{name}'")


def merged(current: Json, change: Json) -> Json:
    """Return the fields that a patch sets: objects merged with the current ones, other values as given; null is kept."""
    result: Json = {}
    for key, value in change.items():
        before = current.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            result[key] = {k: v for k, v in {**before, **merged(before, value)}.items() if v is not None}
        else:
            result[key] = value
    return result
