"""Changes of an object's metadata; its bytes, and so its generation, stay."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from tpuctl.sandbox import rendering
from tpuctl.sandbox.storage import objects, refusals
from tpuctl.sandbox.storage.bucket_changes import merged
from tpuctl.sandbox.storage.buckets import opened

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

# Documentation of objects.patch and objects.update. They do not include the storage class: a rewrite changes it, and a patch
# of it is ignored (unverified; gcloud 528 sends the current one).
_CHOSEN = (
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "customTime"),
    *("metadata", "eventBasedHold", "temporaryHold"),
)


def patch(session: Session, call: Call) -> Json:
    """Answer objects.patch: null removes a field, metadata are merged, all other values are replaced (documentation)."""
    current = _opened(session, call)
    change = merged(current, {key: call.body[key] for key in _CHOSEN if key in call.body})
    return _kept(session, current, {**current, **change})


def update(session: Session, call: Call) -> Json:
    """Answer objects.update: fields that the request omits are removed (documentation: a full update)."""
    current = _opened(session, call)
    rest = {key: value for key, value in current.items() if key not in _CHOSEN}
    return _kept(session, current, {**rest, **{key: call.body[key] for key in _CHOSEN if key in call.body}})


def _opened(session: Session, call: Call) -> Json:
    """Return the object. Raises `ApiError` unless the caller may change it, it exists, and preconditions hold."""
    bucket, name = str(call.params["bucket"]), str(call.params["object"])
    session.log_request(call.method, f"{bucket}/{name}")
    opened(session, call, "storage.objects.update")
    found = objects.named(session, call)
    objects.check_preconditions(call, found)
    if found is None:
        raise refusals.no_object(bucket, name)
    return found


def _kept(session: Session, current: Json, changed: Json) -> Json:
    metageneration = int(current["metageneration"]) + 1
    etag = base64.b64encode(int(current["generation"]).to_bytes(8, "big") + metageneration.to_bytes(4, "big")).decode()
    document = {
        "contentType": "application/octet-stream",
        **{key: value for key, value in changed.items() if value is not None},
        "metageneration": str(metageneration),
        "etag": etag,
        "updated": rendering.milliseconds(session.now),
    }
    session.resources.put(objects.KIND, document["bucket"], document["name"], document)
    return document
