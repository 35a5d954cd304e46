"""Anywhere Caches: zonal read caches of buckets. A new cache runs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import paging, rendering
from tpuctl.sandbox.storage import refusals
from tpuctl.sandbox.storage.buckets import KIND as BUCKET
from tpuctl.sandbox.storage.buckets import opened

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "storage.anywhereCache"
_CHOSEN = ("admissionPolicy", "ingestOnWrite", "ttl")
_LINK = "https://www.googleapis.com/storage/v1/b"


def add(session: Session, bucket: str, zone: str, *, fields: Json) -> Json:
    """Store a cache of a bucket and return it. Raises `ApiError` 404 for a bucket that does not exist."""
    found = session.resources.find(BUCKET, bucket)
    if found is None:
        raise refusals.no_bucket()
    now = rendering.milliseconds(session.now)
    # Documentation: a cache is named after its zone; its states are RUNNING, PAUSED, DISABLED, CREATING.
    document: Json = {
        "kind": "storage#anywhereCache",
        "id": f"{found.document['document']['projectNumber']}/{bucket}/{zone}",
        "selfLink": f"{_LINK}/{bucket}/anywhereCaches/{zone}",
        "bucket": bucket,
        "anywhereCacheId": zone,
        "zone": zone,
        "state": "RUNNING",
        "ttl": "86400s",
        "admissionPolicy": "admit-on-first-miss",
        "createTime": now,
        "updateTime": now,
        **fields,
    }
    session.resources.put(KIND, bucket, zone, document)
    return document


def insert(session: Session, call: Call) -> Json:
    """Answer anywhereCaches.insert with a finished operation; operations of Cloud Storage are not stored."""
    bucket, zone = str(call.params["bucket"]), str(call.body.get("zone") or "")
    session.log_request(call.method, f"{bucket}/{zone}")
    opened(session, call, "storage.anywhereCaches.create")
    if not zone:
        raise refusals.invalid("Required")  # unverified words
    if session.resources.get(KIND, bucket, zone) is not None:
        raise refusals.cache_exists()
    made = add(session, bucket, zone, fields={key: call.body[key] for key in _CHOSEN if call.body.get(key)})
    number = session.next_incarnation(f"storage.operation/{bucket}")
    # An operation's metadata is a message that the discovery document does not have.
    return {
        "kind": "storage#operation",
        "name": f"projects/_/buckets/{bucket}/operations/sandbox-{number}",
        "selfLink": f"{_LINK}/{bucket}/operations/sandbox-{number}",
        "done": True,
        "response": {"@type": "type.googleapis.com/google.storage.control.v2.AnywhereCache", **made},
    }


def get(session: Session, call: Call) -> Json:
    """Answer anywhereCaches.get."""
    opened(session, call, "storage.anywhereCaches.get")
    found = session.resources.get(KIND, str(call.params["bucket"]), str(call.params["anywhereCacheId"]))
    if found is None:
        raise refusals.no_cache()
    return found


def list_(session: Session, call: Call) -> Json:
    """Answer anywhereCaches.list."""
    opened(session, call, "storage.anywhereCaches.list")
    found = [entry.document for entry in session.resources.list_records(KIND, str(call.params["bucket"]))]
    shown, next_token = paging.page(call, found)
    answer: Json = {"kind": "storage#anywhereCaches"}
    if shown:
        answer["items"] = list(shown)
    return {**answer, "nextPageToken": next_token} if next_token else answer
