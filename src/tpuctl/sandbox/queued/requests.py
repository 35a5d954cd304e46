"""Queued resources in the API: requests that wait for capacity, and then create nodes.

Their states follow from stored times, as for nodes.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox import (
    capacity,
    catalog,
    consequences,
    faults,
    lifecycle,
    operations,
    paging,
    quotas,
    rendering,
    resource_names,
)
from tpuctl.sandbox.faults import FaultKind, Target
from tpuctl.sandbox.lifecycle import GONE, Phase
from tpuctl.sandbox.nodes import creation
from tpuctl.sandbox.queued import planning
from tpuctl.sandbox.refusals import already_exists, failed_precondition, invalid, invalid_field, not_found
from tpuctl.sandbox.world import QueuedRecord

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import NodeRecord, Session

_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")  # unverified: the document does not say
_DELETABLE = frozenset({"ACCEPTED", "FAILED", "SUSPENDED", "DELETING"})  # API field text of `force`
# The fields that a client may set; all others are output only and ignored, as proto3 APIs do.
_CHOSEN = (
    *("tpu", "spot", "guaranteed", "bestEffort", "queueingPolicy", "reservationName", "provisioningModel"),
    "runDuration",
)


def get(session: Session, call: Call) -> Json:
    """Answer queuedResources.get."""
    return rendering.queued_resource(find(session, str(call.params["name"])), session.now, call.version)


def list_(session: Session, call: Call) -> Json:
    """Answer queuedResources.list for a zone, or for all with `locations/-` (unverified that the service has that)."""
    where = resource_names.parse(str(call.params["parent"]))
    everywhere = where.zone == resource_names.ANYWHERE
    if not everywhere:
        catalog.check_location(where.project, where.zone)
    unreachable = faults.unreachable_zones(session, where.project, catalog.zones()) if everywhere else ()
    found = session.queued_resources(where.project, zone=None if everywhere else where.zone)
    visible = [record for record in found if record.zone not in unreachable and session.exists(record)]
    shown, next_token = paging.page(call, visible)
    answer: Json = {}
    if shown:
        answer["queuedResources"] = [rendering.queued_resource(r, session.now, call.version) for r in shown]
    if unreachable:
        answer["unreachable"] = [f"projects/{where.project}/locations/{zone}" for zone in unreachable]
    return {**answer, "nextPageToken": next_token} if next_token else answer


def create(session: Session, call: Call) -> Json:
    """Answer queuedResources.create: the operation ends when the request is ACCEPTED, long before there is a node."""
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
    document = {field: copy.deepcopy(call.body[field]) for field in _CHOSEN if call.body.get(field) is not None}
    for spec in (document.get("tpu") or {}).get("nodeSpec") or []:
        spec["node"] = creation.chosen(spec.get("node") or {})
    nodes = capacity.requested_nodes(document)
    _check(session, where, document, nodes)
    target = Target(call.method, where.project, where.zone, queued_resource_id)
    wanted = capacity.node_demands(where.project, where.zone, nodes.values())
    if fault := faults.take(session, FaultKind.QUOTA, target):
        metric, place = quotas.metrics(wanted[0])[1]
        raise quotas.refusal(metric, place, limit=fault.limit, is_queued=True).committing()
    quotas.check(session, wanted, is_queued=True)
    record = QueuedRecord(
        where.project,
        where.zone,
        queued_resource_id,
        session.next_incarnation(name),
        {**document, "name": name, "createTime": rendering.timestamp(session.now)},
        (),
        tuple(nodes),
    )
    record = planning.plan(session, record, failing=faults.take(session, FaultKind.OPERATION_ERROR, target))
    session.put_queued_resource(record)
    return operations.begin(session, record, "create", call, goal="ACCEPTED")


def delete(session: Session, call: Call) -> Json:
    """Answer queuedResources.delete; without `force` only in the states that the API's field text names."""
    if repeated := operations.repeated(session, call):
        return repeated
    session.log_request(call.method, str(call.params["name"]))
    record = find(session, str(call.params["name"]))
    owned = _owned(session, record)
    phase = record.phase(session.now)
    state = phase.state if phase else "DELETING"
    are_deleted = state == "ACTIVE" and not any(session.exists(node) for node in owned)
    if not call.params.get("force") and state not in _DELETABLE and not are_deleted:
        raise failed_precondition(
            f"The queued resource is in state {state}; delete its nodes first, or set force."  # unverified words
        )
    if state == "DELETING":
        return operations.begin(session, record, "delete", call, goal=GONE)
    pace = consequences.pace(session, record)
    begun = (*lifecycle.until(record.timeline, session.now), Phase(session.now, "DELETING", initiator="USER"))
    record = replace(record, timeline=begun)
    session.put_queued_resource(record)  # stored first, so that the end of its nodes does not suspend it
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
    record = find(session, str(call.params["name"]))
    phase = record.phase(session.now)
    if phase is None or phase.state != "ACTIVE":
        state = phase.state if phase else "DELETING"
        raise failed_precondition(f"reset is not supported while in state {state}")
    ended = session.now
    for node in _owned(session, record):
        pace = consequences.pace(session, node)
        timeline = faults.plan(session, node, lifecycle.restart(node.timeline, session.now, pace), pace)
        consequences.keep(session, node, timeline)
        ended = max(ended, lifecycle.first(timeline, "READY", since=session.now) or ended)
    return operations.begin(session, record, "reset", call, goal="", ended=ended)


def find(session: Session, name: str) -> QueuedRecord:
    """Return a queued resource that is there now. Raises `ApiError` 404, or 403 for an unknown zone."""
    where = resource_names.parse(name)
    catalog.check_location(where.project, where.zone)
    record = session.queued_resource(*where)
    if record is None or not session.exists(record):
        raise not_found(name)
    return record


def _owned(session: Session, record: QueuedRecord) -> list[NodeRecord]:
    """Return the nodes of a request, planned ones included."""
    found = [session.node(record.project, record.zone, node_id) for node_id in record.node_ids]
    return [node for node in found if node and node.queued_resource == record.name]


def _check(session: Session, where: resource_names.ResourceName, document: Json, nodes: dict[str, Json]) -> None:
    """Raise `ApiError` unless every node of a request could be created, in this zone (words unverified)."""
    tiers = [tier for tier in ("spot", "guaranteed", "bestEffort") if tier in document]
    if len(tiers) > 1:
        raise invalid("Only one tier may be set.")  # API field text: a union field
    for spec in document["tpu"]["nodeSpec"]:
        if str(spec.get("parent") or "").split("/")[2:] != ["locations", where.zone]:
            raise invalid_field("Parent", str(spec.get("parent") or ""))
    planning.check_bounds(document, session.now)
    for node_id, body in nodes.items():
        creation.check(session, where.project, where.zone, node_id, body=body)
