"""Copies of objects within the service, to another bucket or over themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox.calls import Media
from tpuctl.sandbox.storage import objects, refusals
from tpuctl.sandbox.storage.buckets import opened

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

# Metadata that a copy inherits unless the request sets them.
_CARRIED = ("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "customTime", "metadata")


def rewrite(session: Session, call: Call) -> Json:
    """Answer objects.rewrite: complete in one call for every size."""
    source, name = str(call.params["sourceBucket"]), str(call.params["sourceObject"])
    target, new_name = str(call.params["destinationBucket"]), str(call.params["destinationObject"])
    session.log_request(call.method, f"{target}/{new_name}")
    _open(session, call, source, "storage.objects.get")
    _open(session, call, target, "storage.objects.create")
    found = session.resources.get(objects.KIND, source, name)
    wanted = call.params.get("sourceGeneration")
    if found is None or (wanted and str(wanted) != found["generation"]):
        raise refusals.no_object(source, name)
    current = session.resources.get(objects.KIND, target, new_name)
    objects.check_preconditions(call, current)
    if current is not None:
        _open(session, call, target, "storage.objects.delete")  # documentation: replacing an object needs it
    content = session.resources.content(objects.key(source, found))
    fields = {**{key: found[key] for key in _CARRIED if key in found}, **call.body}
    media = Media(content, str(call.body.get("contentType") or found["contentType"]))
    document = objects.store(session, target, new_name, media=media, fields=fields)
    sizes = dict.fromkeys(("totalBytesRewritten", "objectSize"), document["size"])
    return {"kind": "storage#rewriteResponse", **sizes, "done": True, "resource": document}


def _open(session: Session, call: Call, bucket: str, permission: str) -> None:
    opened(session, replace(call, params={**call.params, "bucket": bucket}), permission)
