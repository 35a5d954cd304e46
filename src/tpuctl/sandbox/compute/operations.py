"""Operations of Compute Engine: all are finished when they are returned."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tpuctl.sandbox.compute.documents import BASE, not_found, number, timestamp

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

KIND = "compute.operation"
_KEPT = 1000


def begin(session: Session, call: Call, verb: str, *, target: str) -> Json:
    """Store and return the finished operation of a call, in the scope of its resource. `target` is a path."""
    project, place = str(call.params["project"]), _place(call)
    count = session.next_incarnation(f"{KIND}/{project}")
    digest = hashlib.blake2b(f"{session.seed}/{project}/{count}".encode(), digest_size=14).hexdigest()
    moment = int(session.now.timestamp() * 1000)
    name = f"operation-{moment:013d}-{count:07d}{digest[:6]}-{digest[6:14]}-{digest[14:22]}"
    now = timestamp(session.now)
    path = f"projects/{project}/{place}/operations/{name}"
    document: Json = {
        "kind": "compute#operation",
        "id": number(path),
        "name": name,
        "operationType": verb,
        "targetLink": BASE + target,
        "targetId": number(target),
        "status": "DONE",
        "progress": 100,
        "user": "user@example.com",
        **dict.fromkeys(("insertTime", "startTime", "endTime"), now),
        "selfLink": BASE + path,
    }
    if place != "global":
        document[place.partition("s/")[0]] = f"{BASE}projects/{project}/{place}"
    session.resources.put(KIND, project, name, document)
    session.resources.trim(KIND, project, keep=_KEPT)
    return document


def get(session: Session, call: Call) -> Json:
    """Answer get and wait of global, regional and zonal operations."""
    project, name = str(call.params["project"]), str(call.params["operation"])
    path = f"projects/{project}/{_place(call)}/operations/{name}"
    found = session.resources.get(KIND, project, name)
    if found is None or found["selfLink"] != BASE + path:
        raise not_found(path)
    return found


def _place(call: Call) -> str:
    scopes = (f"{word}s/{call.params[word]}" for word in ("region", "zone") if word in call.params)
    return next(scopes, "global")
