"""Buckets are made, and changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpuctl.sandbox import projects, rendering
from tpuctl.sandbox.storage import buckets, refusals

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

# Documentation: 3 to 63 characters; with dots 222, of which each part has 63; no address, nothing that begins with goog.
_NAME = re.compile(
    r"(?!goog)(?!\d+(\.\d+){3}$)(?=.{3,222}$)[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)*"
)
# What a client may say of a bucket; access control lists are left out: access is uniform.
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
    if (found := session.resources.named(buckets.KIND, name)) is not None:
        raise refusals.taken(is_own=found.parent == project)
    fields = {key: call.body[key] for key in _CHOSEN if call.body.get(key) is not None}
    return buckets.add(
        session, project, name, fields={"location": call.body.get("location") or "US", **fields}, denied=()
    )


def patch(session: Session, call: Call) -> Json:
    """Answer buckets.patch: what is null goes, objects are merged, all else is replaced."""
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
    """Raise `ApiError` 400 for what cannot be a bucket's name (documentation; words unverified)."""
    if not _NAME.fullmatch(name):
        raise refusals.invalid(f"Invalid bucket name: '{name}'")


def merged(current: Json, change: Json) -> Json:
    """Return what a patch sets: objects merged with what is there, all else as it came; null stays for who drops it."""
    result: Json = {}
    for key, value in change.items():
        before = current.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            result[key] = {k: v for k, v in {**before, **merged(before, value)}.items() if v is not None}
        else:
            result[key] = value
    return result
