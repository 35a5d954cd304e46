"""Long-running operations: handlers start them, and they end when their target reaches its goal.

Handlers of `tpu.projects.locations.operations`; every API version answers with its own types.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox import api_calls, lifecycle
from tpuctl.sandbox.api_calls import answers, not_found, page_number, page_size, page_token, parse_resource_name
from tpuctl.sandbox.lifecycle import first_time_in
from tpuctl.sandbox.representation import nanosecond_timestamp, render_node, render_queued_resource
from tpuctl.sandbox.state_session import NodeRecord, OperationRecord, QueuedRecord, dump_record, load_record

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.lifecycle import Timeline
    from tpuctl.sandbox.state_session import StateSession

_TYPE_PREFIX = "type.googleapis.com/google.cloud.tpu."


@answers("tpu.projects.locations.operations.get")
def _get_operation(session: StateSession, call: Call) -> Json:
    return _render_operation(session, _find_operation(session, call), call.version)


@answers("tpu.projects.locations.operations.list")
def _list_operations(session: StateSession, call: Call) -> Json:
    """List operations, oldest first. A filter other than `done=true|false` is ignored (its language is unverified)."""
    where = parse_resource_name(call["name"].removesuffix("/operations"))
    limit = page_size(call)
    zone = None if where.zone == api_calls.ANYWHERE else where.zone
    operations = session.operations(where.project, zone, after=page_number(call), limit=limit + 1)
    is_done = {"done=true": True, "done=false": False}.get(call["filter"].replace(" ", "").lower())
    page = [op for _, op in operations[:limit] if is_done is None or op.is_done(session.now) is is_done]
    answer: Json = {"operations": [_render_operation(session, operation, call.version) for operation in page]}
    if len(operations) > limit:
        answer["nextPageToken"] = page_token(str(operations[limit - 1][0]))
    return answer


@answers("tpu.projects.locations.operations.cancel")
def _cancel_operation(session: StateSession, call: Call) -> Json:
    """Cancel an operation: best effort, as documented. Here the operation records the request and continues."""
    operation = _find_operation(session, call)
    if not operation.is_done(session.now):
        session.put_operation(replace(operation, cancel_requested=True))
    return {}


@answers("tpu.projects.locations.operations.delete")
def _delete_operation(session: StateSession, call: Call) -> Json:
    """Remove an operation; its effect continues."""
    session.delete_operation(_find_operation(session, call).name)
    return {}


def begin_operation(
    session: StateSession,
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
    snapshot = {"queued" if isinstance(target, QueuedRecord) else "node": dump_record(target)}
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
        ended=ended if ended else first_time_in(target.timeline, goal, since=now),
        error=error,
        request_id=_request_id(call),
    )
    session.put_operation(operation)
    return _render_operation(session, operation, call.version)


def repeated_operation(session: StateSession, call: Call) -> Json | None:
    """Return the operation of an earlier call with the same `requestId`, if any (documented: a repeat is harmless)."""
    request_id = _request_id(call)
    operation = session.operation_of_request(request_id) if request_id else None
    return _render_operation(session, operation, call.version) if operation else None


def settle_operations(session: StateSession, target: str, timeline: Timeline) -> None:
    """Set the ends of the pending operations on a resource from its changed timeline.

    An operation whose goal is no longer reached ends with ABORTED when the resource is lost (the code is unverified).
    """
    for operation in session.pending_operations(target):
        if operation.error:
            continue
        reached = first_time_in(timeline, operation.goal, since=operation.created)
        lost = next((p for p in timeline if p.at >= operation.created and p.state in _LOST_STATES), None)
        if lost and (reached is None or lost.at < reached) and operation.goal not in _LOST_STATES:
            message = f"The operation was aborted: the resource is in state {lost.state}."
            error: Json = {"code": 10, "message": message}
            session.put_operation(replace(operation, ended=lost.at, error=error))
        else:
            session.put_operation(replace(operation, ended=reached))


_LOST_STATES = frozenset({"DELETING", "PREEMPTED", "TERMINATED", "SUSPENDING", "FAILED", lifecycle.GONE})


def _render_operation(session: StateSession, operation: OperationRecord, version: str) -> Json:
    """Return an operation as one version of the API shows it now.

    Its result is the target at the end of the operation; if the target was replaced since, the target at its start. A change
    that took effect at once has the target as it left it: a result is stored with the operation and never changes
    [google.longrunning.Operation.response].
    """
    done = operation.is_done(session.now)
    metadata: Json = {
        "@type": f"{_TYPE_PREFIX}{version}.OperationMetadata",
        "createTime": nanosecond_timestamp(operation.created),
        "target": operation.target,
        "verb": operation.verb,
        "apiVersion": operation.version,
        "cancelRequested": operation.cancel_requested,
    }
    answer: Json = {"name": operation.name, "metadata": metadata, "done": done}
    if not done or operation.ended is None:
        return answer
    metadata["endTime"] = nanosecond_timestamp(operation.ended)
    if operation.error:
        answer["error"] = operation.error
    elif operation.goal == lifecycle.GONE:
        answer["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
    else:
        kind = "QueuedResource" if "/queuedResources/" in operation.target else "Node"
        if kind == "QueuedResource" and version.startswith("v1"):
            version = operation.version  # v1 has no such message: shown in the version of the operation (unverified)
        where = parse_resource_name(operation.target)
        record: NodeRecord | QueuedRecord | None
        record = session.queued_resource(*where) if kind == "QueuedResource" else session.node(*where)
        if record is None or record.incarnation != operation.incarnation or operation.ended == operation.created:
            [(stored, row)] = operation.snapshot.items()
            record = load_record(QueuedRecord, row) if stored == "queued" else load_record(NodeRecord, row)
        if isinstance(record, NodeRecord):
            document = render_node(record, operation.ended, version)
        else:
            document = render_queued_resource(record, operation.ended, version)
        answer["response"] = {"@type": f"{_TYPE_PREFIX}{version}.{kind}", **document}
    return answer


def _find_operation(session: StateSession, call: Call) -> OperationRecord:
    name = call["name"]
    operation = session.operation(name)
    if operation is None:
        raise not_found(name)
    return operation


def _request_id(call: Call) -> str:
    value = call["requestId"]
    return f"{call.params.get('parent') or call.params.get('name')}/{call.method}/{value}" if value else ""
