"""Queued resources: requests that wait for capacity, and then make nodes.

Their states follow from stored times like the nodes'. How long each lasts is the sandbox's choice (observed: 2-5 minutes).
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.sandbox import catalog, consequences, faults, lifecycle, operations, paging, rendering, resource_names
from tpuctl.sandbox.faults import FaultKind, Target
from tpuctl.sandbox.lifecycle import GONE, Phase
from tpuctl.sandbox.nodes import creation
from tpuctl.sandbox.refusals import already_exists, failed_precondition, invalid, invalid_field, not_found, quota
from tpuctl.sandbox.world import QueuedRecord

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.lifecycle import Pace, Timeline
    from tpuctl.sandbox.world import Session

_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")  # unverified: the document does not say
_DELETABLE = frozenset({"ACCEPTED", "FAILED", "SUSPENDED", "DELETING"})  # API field text of `force`


def get(session: Session, call: Call) -> Json:
    """Answer queuedResources.get."""
    return rendering.queued_resource(_find(session, str(call.params["name"])), session.now, call.version)


def list_(session: Session, call: Call) -> Json:
    """Answer queuedResources.list for a zone, or for all with `locations/-` (unverified that the service has that)."""
    where = resource_names.parse(str(call.params["parent"]))
    everywhere = where.zone == resource_names.ANYWHERE
    if not everywhere:
        catalog.check_location(where.project, where.zone)
    lost = faults.unreachable_zones(session, where.project, catalog.zones()) if everywhere else ()
    found = session.queued_resources(where.project, zone=None if everywhere else where.zone)
    visible = [record for record in found if record.zone not in lost and session.is_there(record)]
    shown, following = paging.page(call, visible)
    answer: Json = {}
    if shown:
        answer["queuedResources"] = [rendering.queued_resource(r, session.now, call.version) for r in shown]
    if lost:
        answer["unreachable"] = [f"projects/{where.project}/locations/{zone}" for zone in lost]
    return {**answer, "nextPageToken": following} if following else answer


def create(session: Session, call: Call) -> Json:
    """Answer queuedResources.create: the operation is done when the request is ACCEPTED, long before there is a node."""
    if repeated := operations.repeated(session, call):
        return repeated
    where = resource_names.parse(str(call.params["parent"]))
    queued_resource_id = str(call.params.get("queuedResourceId") or "")
    name = f"{call.params['parent']}/queuedResources/{queued_resource_id}"
    session.log_request(call.method, name)
    catalog.check_zone(where.project, where.zone)
    if not _ID.fullmatch(queued_resource_id):
        raise invalid_field("QueuedResourceId", queued_resource_id)
    if session.queued_resource(where.project, where.zone, queued_resource_id):
        raise already_exists(name)
    nodes = _requested(session, where.project, where.zone, call.body)
    target = Target(call.method, where.project, where.zone, queued_resource_id)
    if fault := faults.take(session, FaultKind.QUOTA, target):
        raise quota("TPUsPerProjectPerZoneForTPUAPI", where.zone, limit=fault.limit)
    record = QueuedRecord(
        where.project,
        where.zone,
        queued_resource_id,
        session.next_incarnation(name),
        {**copy.deepcopy(call.body), "name": name, "createTime": rendering.timestamp(session.now)},
        (),
        tuple(nodes),
    )
    record = _planned(session, record, nodes, failing=faults.take(session, FaultKind.OPERATION_ERROR, target))
    session.put_queued_resource(record)
    return operations.begin(session, record, "create", call, goal="ACCEPTED")


def delete(session: Session, call: Call) -> Json:
    """Answer queuedResources.delete; without `force` only in the states and cases that the API's field text names."""
    if repeated := operations.repeated(session, call):
        return repeated
    session.log_request(call.method, str(call.params["name"]))
    record = _find(session, str(call.params["name"]))
    phase = record.phase(session.now)
    nodes = [node for node_id in record.node_ids if (node := session.node(record.project, record.zone, node_id))]
    owned = [node for node in nodes if node.queued_resource == record.name]
    existing = [node for node in owned if session.is_there(node)]
    if (
        not call.params.get("force")
        and phase
        and phase.state not in _DELETABLE
        and (existing or phase.state != "ACTIVE")
    ):
        raise failed_precondition(
            f"The queued resource is in state {phase.state}; delete its nodes first, or set force."  # unverified words
        )
    if phase and phase.state == "DELETING":
        return operations.begin(session, record, "delete", call, goal=GONE)
    pace = consequences.pace(session, record)
    begun = (*lifecycle.until(record.timeline, session.now), Phase(session.now, "DELETING", initiator="USER"))
    record = replace(record, timeline=begun)
    session.put_queued_resource(record)  # first, so that the nodes' end no longer suspends it
    ends = [session.now + pace.delete()]
    for node in owned:
        kept = consequences.keep(
            session, node, lifecycle.delete(node.timeline, session.now, consequences.pace(session, node))
        )
        ends.append(lifecycle.end_of(kept.timeline) or session.now)
    record = consequences.keep_queued(session, record, (*begun, Phase(max(ends), GONE)))
    return operations.begin(session, record, "delete", call, goal=GONE)


def reset(session: Session, call: Call) -> Json:
    """Answer queuedResources.reset: the nodes restart. Refused from any state but ACTIVE.

    Observed for SUSPENDED; that ACTIVE accepts it, and what becomes of the nodes, is unverified.
    """
    session.log_request(call.method, str(call.params["name"]))
    record = _find(session, str(call.params["name"]))
    phase = record.phase(session.now)
    if phase is None or phase.state != "ACTIVE":
        state = phase.state if phase else "DELETING"
        raise failed_precondition(f"reset is not supported while in state {state}")
    ended = session.now
    for node_id in record.node_ids:
        node = session.node(record.project, record.zone, node_id)
        if node and node.queued_resource == record.name:
            pace = consequences.pace(session, node)
            timeline = faults.plan(session, node, lifecycle.restart(node.timeline, session.now, pace), pace)
            consequences.keep(session, node, timeline)
            ended = max(ended, lifecycle.first(timeline, "READY", since=session.now) or ended)
    return operations.begin(session, record, "reset", call, goal="", ended=ended)


def _find(session: Session, name: str) -> QueuedRecord:
    where = resource_names.parse(name)
    catalog.check_location(where.project, where.zone)
    record = session.queued_resource(*where)
    if record is None or not session.is_there(record):
        raise not_found(name)
    return record


def _requested(session: Session, project: str, zone: str, body: Json) -> dict[str, Json]:
    """Return the nodes that a request asks for, by node id. Raises `ApiError` when one could not be made."""
    specs = (body.get("tpu") or {}).get("nodeSpec") or []
    if not specs:
        raise invalid_field("Tpu", "")
    nodes: dict[str, Json] = {}
    for spec in specs:
        several = spec.get("multisliceParams") or spec.get("multiNodeParams")
        if bool(several) == bool(spec.get("nodeId")):
            raise invalid("Exactly one of node_id and multislice_params must be set.")  # unverified words
        node = dict(spec.get("node") or {})
        if "spot" in body:
            node["schedulingConfig"] = {**node.get("schedulingConfig", {}), "spot": True}
        ids = [str(spec["nodeId"])] if not several else _numbered(several)
        for node_id in ids:
            creation.check(session, project, zone, node_id, body=node)
            nodes[node_id] = node
    return nodes


def _numbered(several: Json) -> list[str]:
    """Return the ids `prefix-0`, `prefix-1`, … (API field text: the count must be above one)."""
    count = int(several.get("nodeCount") or 0)
    if not 1 < count <= 1000:
        raise invalid_field("NodeCount", str(count))
    prefix = str(several.get("nodeIdPrefix") or "node")
    return [f"{prefix}-{index}" for index in range(count)]


def _planned(
    session: Session, record: QueuedRecord, nodes: dict[str, Json], *, failing: faults.Fault | None
) -> QueuedRecord:
    """Return a request with its life ahead, and keep the nodes that it will make."""
    now, pace = session.now, consequences.pace(session, record)
    record = replace(record, timeline=_waiting(now, pace, after=_bound(record.document, "After", now)))
    record = replace(record, timeline=faults.plan_queued(session, record))
    turn = lifecycle.first(record.timeline, "PROVISIONING", since=now)
    limit = _bound(record.document, "Until", now)
    if limit and (turn is None or turn > limit):
        error = {"code": 4, "message": "The queued resource could not be provisioned before its valid-until time."}
        waited = tuple(phase for phase in record.timeline if phase.at <= limit)
        return replace(record, timeline=(*waited, Phase(limit, "FAILED", initiator="SERVICE")), error=error)
    if turn is None:
        return record
    if failing:  # observed: PROVISIONING, SUSPENDING by the service, FAILED within minutes
        lost, end = turn + pace.failure(), turn + pace.failure() + pace.delete()
        ending = (Phase(lost, "SUSPENDING", initiator="SERVICE"), Phase(end, "FAILED", initiator="SERVICE"))
        return replace(record, timeline=(*record.timeline, *ending), error=creation.failure(failing, record.zone))
    several = len(nodes) > 1
    for node_id, body in nodes.items():
        begin = turn - now
        node = creation.prepare(
            session, record.project, record.zone, node_id, body=body, begin=begin, queued_resource=record.name
        )
        if several:
            node.document["multisliceNode"] = True
        timeline = faults.plan(session, node, node.timeline, consequences.pace(session, node))
        session.put_node(replace(node, timeline=timeline))
    return replace(record, timeline=consequences.follow(session, record, initiator="SERVICE"))


def _waiting(now: datetime, pace: Pace, *, after: datetime | None) -> Timeline:
    turn = max(now + pace.between("queue", 60, 200), after or now)
    return (
        Phase(now, "CREATING"),
        Phase(now + timedelta(seconds=2), "ACCEPTED"),
        Phase(now + timedelta(seconds=12), "WAITING_FOR_RESOURCES"),
        Phase(turn, "PROVISIONING"),
    )


def _bound(document: Json, which: str, now: datetime) -> datetime | None:
    """Return the time after or until which a request may be honoured, if it says so."""
    policy = document.get("queueingPolicy") or {}
    duration = str(policy.get(f"valid{which}Duration") or "")
    if duration:
        return now + timedelta(seconds=float(duration.removesuffix("s")))
    interval = policy.get("validInterval") or {}
    end = {"After": "startTime", "Until": "endTime"}[which]
    return parse_timestamp(policy.get(f"valid{which}Time") or interval.get(end))
