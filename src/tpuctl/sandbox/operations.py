"""Long-running operations: begun by the handlers, ended when their target gets where it should.

Handlers of `tpu.projects.locations.operations`; in every API version the answer is in that version's own types.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox import lifecycle, paging, rendering, resource_names
from tpuctl.sandbox.refusals import invalid, not_found
from tpuctl.sandbox.world import NodeRecord, OperationRecord, QueuedRecord, records

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.lifecycle import Timeline
    from tpuctl.sandbox.world import Session

_TYPES = "type.googleapis.com/google.cloud.tpu."


def get(session: Session, call: Call) -> Json:
    """Answer operations.get."""
    return render(session, _find(session, call), call.version)


def list_(session: Session, call: Call) -> Json:
    """Answer operations.list, oldest first. A filter other than `done=true|false` is ignored (its language is unverified)."""
    where = resource_names.parse(str(call.params["name"]).removesuffix("/operations"))
    place = paging.position(call)
    if place and not place[0].isdecimal():
        raise invalid("The page token is not valid.")
    limit = paging.size(call)
    zone = None if where.zone == resource_names.ANYWHERE else where.zone
    found = session.operations(where.project, zone, after=int(place[0]) if place else 0, limit=limit + 1)
    wanted = {"done=true": True, "done=false": False}.get(str(call.params.get("filter", "")).replace(" ", "").lower())
    shown = [op for _, op in found[:limit] if wanted is None or op.is_done(session.now) is wanted]
    answer: Json = {"operations": [render(session, operation, call.version) for operation in shown]}
    if len(found) > limit:
        answer["nextPageToken"] = paging.token(str(found[limit - 1][0]))
    return answer


def cancel(session: Session, call: Call) -> Json:
    """Answer operations.cancel: best effort, as documented; here the operation notes it and goes on."""
    operation = _find(session, call)
    if not operation.is_done(session.now):
        session.put_operation(replace(operation, cancel_requested=True))
    return {}


def delete(session: Session, call: Call) -> Json:
    """Answer operations.delete: the client is no longer interested; what was begun goes on."""
    session.delete_operation(_find(session, call).name)
    return {}


def begin(
    session: Session,
    target: NodeRecord | QueuedRecord,
    verb: str,
    call: Call,
    *,
    goal: str,
    ended: datetime | None = None,
    error: Json | None = None,
) -> Json:
    """Keep a new operation on a record that was just changed, and return it as the answer.

    It ends when the record reaches `goal`, unless it is told to end at a time, perhaps with an error.
    """
    now = session.now
    begun = f"{target.name}/{target.incarnation}/{verb}/{now.timestamp()}/{len(target.timeline)}"
    digest = hashlib.blake2b(begun.encode(), digest_size=15).hexdigest()
    name = f"operation-{int(now.timestamp() * 1000)}-{digest[:13]}-{digest[13:21]}-{digest[21:29]}"
    operation = OperationRecord(
        name=f"projects/{target.project}/locations/{target.zone}/operations/{name}",
        project=target.project,
        zone=target.zone,
        verb=verb,
        target=target.name,
        incarnation=target.incarnation,
        created=now,
        goal=goal,
        version=call.version,
        snapshot=_snapshot(target),
        ended=ended if ended else lifecycle.first(target.timeline, goal, since=now),
        error=error,
        request_id=_request_id(call),
    )
    session.put_operation(operation)
    return render(session, operation, call.version)


def repeated(session: Session, call: Call) -> Json | None:
    """Return the operation that the same `requestId` has begun before, if any (documented: a repeat is harmless)."""
    request_id = _request_id(call)
    operation = session.operation_of_request(request_id) if request_id else None
    return render(session, operation, call.version) if operation else None


def settle(session: Session, target: str, timeline: Timeline) -> None:
    """Let the operations that still run on a resource end as its changed timeline says.

    One whose goal is no longer reached ends where the resource got lost, with ABORTED (the code is unverified).
    """
    for operation in session.pending_operations(target):
        if operation.error:
            continue
        reached = lifecycle.first(timeline, operation.goal, since=operation.created)
        lost = next((p for p in timeline if p.at >= operation.created and p.state in _LOST), None)
        if lost and (reached is None or lost.at < reached) and operation.goal not in _LOST:
            message = f"The operation was aborted: the resource is in state {lost.state}."
            error: Json = {"code": 10, "message": message}
            session.put_operation(replace(operation, ended=lost.at, error=error))
        else:
            session.put_operation(replace(operation, ended=reached))


_LOST = frozenset({"DELETING", "PREEMPTED", "TERMINATED", "SUSPENDING", "FAILED", lifecycle.GONE})


def render(session: Session, operation: OperationRecord, version: str) -> Json:
    """Return an operation as one version of the API shows it now."""
    done = operation.is_done(session.now)
    metadata: Json = {
        "@type": f"{_TYPES}{version}.OperationMetadata",
        "createTime": rendering.timestamp(operation.created),
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": operation.version,
        "cancelRequested": operation.cancel_requested,
    }
    answer: Json = {"name": operation.name, "metadata": metadata, "done": done}
    if not done or operation.ended is None:
        return answer
    metadata["endTime"] = rendering.timestamp(operation.ended)
    if operation.error:
        answer["error"] = operation.error
    elif operation.goal == lifecycle.GONE:
        answer["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
    else:
        kind = "QueuedResource" if "/queuedResources/" in operation.target else "Node"
        if kind == "QueuedResource" and version.startswith("v1"):
            version = operation.version  # v1 has no such message: as it was packed (unverified)
        answer["response"] = {"@type": f"{_TYPES}{version}.{kind}", **_result(session, operation, version)}
    return answer


def _result(session: Session, operation: OperationRecord, version: str) -> Json:
    """Return the target as it was when the operation ended; as it was at the beginning when it has since been replaced."""
    where = resource_names.parse(operation.target)
    is_queued = "/queuedResources/" in operation.target
    record = session.queued_resource(*where) if is_queued else session.node(*where)
    if record is None or record.incarnation != operation.incarnation:
        record = _restored(operation.snapshot)
    return _shown(record, operation.ended or session.now, version)


def _snapshot(target: NodeRecord | QueuedRecord) -> Json:
    """Return a record as it is kept with an operation; any version of the API may ask for it later."""
    if isinstance(target, QueuedRecord):
        return {"queued": (target.project, target.zone, target.queued_resource_id, records.dump_queued(target))}
    place = (target.project, target.zone, target.node_id, target.number, target.first_address, target.workers)
    return {"node": (*place, records.dump_node(target))}


def _restored(snapshot: Json) -> NodeRecord | QueuedRecord:
    if "queued" in snapshot:
        return records.load_queued(tuple(snapshot["queued"]))
    return records.load_node(tuple(snapshot["node"]))


def _shown(record: NodeRecord | QueuedRecord, now: datetime, version: str) -> Json:
    if isinstance(record, NodeRecord):
        return rendering.node(record, now, version)
    return rendering.queued_resource(record, now, version)


def _find(session: Session, call: Call) -> OperationRecord:
    name = str(call.params["name"])
    operation = session.operation(name)
    if operation is None:
        raise not_found(name)
    return operation


def _request_id(call: Call) -> str:
    value = str(call.params.get("requestId") or "")
    return f"{call.params.get('parent') or call.params.get('name')}/{call.method}/{value}" if value else ""
