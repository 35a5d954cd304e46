"""Long-running operations: handlers start them, and they end when their target reaches its goal.

Handlers of `tpu.projects.locations.operations`; every API version answers with its own types.
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
    """Answer operations.cancel: best effort, as documented. Here the operation records the request and continues."""
    operation = _find(session, call)
    if not operation.is_done(session.now):
        session.put_operation(replace(operation, cancel_requested=True))
    return {}


def delete(session: Session, call: Call) -> Json:
    """Answer operations.delete: the operation is removed; its effect continues."""
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
    """Store a new operation on a record that was just changed, and return it as the answer.

    It ends when the record reaches `goal`, or at `ended`, with `error` if one is given.
    """
    now = session.now
    # The record as it is now: any version of the API may show it later.
    if isinstance(target, QueuedRecord):
        columns = (target.project, target.zone, target.queued_resource_id)
        snapshot: Json = {"queued": (*columns, records.dump_queued(target))}
    else:
        place = (target.project, target.zone, target.node_id, target.number, target.first_address, target.workers)
        snapshot = {"node": (*place, records.dump_node(target))}
    key = f"{target.name}/{target.incarnation}/{verb}/{now.timestamp()}/{len(target.timeline)}"
    digest = hashlib.blake2b(key.encode(), digest_size=15).hexdigest()
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
        snapshot=snapshot,
        ended=ended if ended else lifecycle.first(target.timeline, goal, since=now),
        error=error,
        request_id=_request_id(call),
    )
    session.put_operation(operation)
    return render(session, operation, call.version)


def repeated(session: Session, call: Call) -> Json | None:
    """Return the operation of an earlier call with the same `requestId`, if any (documented: a repeat is harmless)."""
    request_id = _request_id(call)
    operation = session.operation_of_request(request_id) if request_id else None
    return render(session, operation, call.version) if operation else None


def settle(session: Session, target: str, timeline: Timeline) -> None:
    """Set the ends of the pending operations on a resource from its changed timeline.

    An operation whose goal is no longer reached ends with ABORTED when the resource is lost (the code is unverified).
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
    """Return an operation as one version of the API shows it now.

    Its result is the target at the end of the operation; if the target was replaced since, the target at its start.
    """
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
            version = operation.version  # v1 has no such message: shown in the version of the operation (unverified)
        where = resource_names.parse(operation.target)
        record: NodeRecord | QueuedRecord | None
        record = session.queued_resource(*where) if kind == "QueuedResource" else session.node(*where)
        if record is None or record.incarnation != operation.incarnation:
            snapshot = operation.snapshot
            if "queued" in snapshot:
                record = records.load_queued(tuple(snapshot["queued"]))
            else:
                record = records.load_node(tuple(snapshot["node"]))
        if isinstance(record, NodeRecord):
            shown = rendering.node(record, operation.ended, version)
        else:
            shown = rendering.queued_resource(record, operation.ended, version)
        answer["response"] = {"@type": f"{_TYPES}{version}.{kind}", **shown}
    return answer


def _find(session: Session, call: Call) -> OperationRecord:
    name = str(call.params["name"])
    operation = session.operation(name)
    if operation is None:
        raise not_found(name)
    return operation


def _request_id(call: Call) -> str:
    value = str(call.params.get("requestId") or "")
    return f"{call.params.get('parent') or call.params.get('name')}/{call.method}/{value}" if value else ""
