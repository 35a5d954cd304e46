"""Queued resources: handlers of `tpu.projects.locations.queuedResources`, and their plans.

A queued resource waits for capacity and then creates nodes. Its plan says when it gets capacity, which nodes it creates
then, and how it fails; its state follows from the stored times, as for nodes. The durations of the states are the sandbox's
choice (observed: 2 to 5 minutes until ACTIVE).
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import parse_timestamp
from tpuctl.sandbox import api_calls, capacity, catalog, faults
from tpuctl.sandbox.api_calls import (
    already_exists,
    answers,
    failed_precondition,
    invalid,
    invalid_field,
    list_response,
    not_found,
    parse_resource_name,
)
from tpuctl.sandbox.capacity import check_quotas, quota_metrics, quota_refusal
from tpuctl.sandbox.catalog import check_tpu_zone, zone_names
from tpuctl.sandbox.faults import (
    FaultKind,
    FaultTarget,
    apply_faults,
    durations_of,
    durations_of_new,
    follow_nodes,
    operation_failure,
    store_node,
    store_queued_resource,
    take_fault,
)
from tpuctl.sandbox.lifecycle import (
    GONE,
    LifecyclePhase,
    delete_timeline,
    end_of_timeline,
    first_time_in,
    restart_timeline,
    timeline_until,
)
from tpuctl.sandbox.representation import nanosecond_timestamp, render_queued_resource
from tpuctl.sandbox.state_session import QueuedRecord
from tpuctl.sandbox.tpu_nodes import begin_maintenance, check_node, client_fields, prepare_node
from tpuctl.sandbox.tpu_operations import begin_operation, repeated_operation

if TYPE_CHECKING:
    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.lifecycle import PhaseDurations
    from tpuctl.sandbox.state_session import NodeRecord, StateSession

_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")  # unverified: the document does not say
_DELETABLE = frozenset({"ACCEPTED", "FAILED", "SUSPENDED", "DELETING"})  # API field text of `force`
# The fields that a client may set; all others are output only and ignored, as proto3 APIs do.
_CHOSEN = (
    *("tpu", "spot", "guaranteed", "bestEffort", "queueingPolicy", "reservationName", "provisioningModel"),
    "runDuration",
)


@answers("tpu.projects.locations.queuedResources.get")
def _get_queued_resource(session: StateSession, call: Call) -> Json:
    return render_queued_resource(find_queued_resource(session, call["name"]), session.now, call.version)


@answers("tpu.projects.locations.queuedResources.list")
def _list_queued_resources(session: StateSession, call: Call) -> Json:
    """List a zone, or all with `locations/-` (unverified that the service has that)."""
    where = parse_resource_name(call["parent"])
    everywhere = where.zone == api_calls.ANYWHERE
    if not everywhere:
        catalog.check_location(where.project, where.zone)
    unreachable = faults.unreachable_zones(session, where.project, zone_names()) if everywhere else ()
    found = session.queued_resources(where.project, zone=None if everywhere else where.zone)
    visible = [record for record in found if record.zone not in unreachable and session.exists(record)]
    rendered = [render_queued_resource(record, session.now, call.version) for record in visible]
    absent = [f"projects/{where.project}/locations/{zone}" for zone in unreachable]
    return list_response(call, "queuedResources", rendered, **({"unreachable": absent} if absent else {}))


@answers("tpu.projects.locations.queuedResources.create")
def _create_queued_resource(session: StateSession, call: Call) -> Json:
    """Create a queued resource: the operation ends when the request is ACCEPTED, long before there is a node."""
    if repeated := repeated_operation(session, call):
        return repeated
    where = parse_resource_name(call["parent"])
    queued_resource_id = call["queuedResourceId"]
    name = f"{call.params['parent']}/queuedResources/{queued_resource_id}"
    check_tpu_zone(where.project, where.zone)
    if not _ID.fullmatch(queued_resource_id):
        raise invalid_field("QueuedResourceId", queued_resource_id)
    if session.queued_resource(where.project, where.zone, queued_resource_id):
        raise already_exists(name)
    document = {field: copy.deepcopy(call.body[field]) for field in _CHOSEN if call.body.get(field) is not None}
    for spec in (document.get("tpu") or {}).get("nodeSpec") or []:
        spec["node"] = client_fields(spec.get("node") or {})
    nodes = capacity.requested_nodes(document)
    _check_request(session, where, document, nodes)
    target = FaultTarget(call.method, where.project, where.zone, queued_resource_id)
    wanted = capacity.node_demands(where.project, where.zone, nodes.values())
    if fault := take_fault(session, FaultKind.QUOTA, target):
        metric, place = quota_metrics(wanted[0])[1]
        raise quota_refusal(metric, place, limit=fault.limit, is_queued=True).committing()
    check_quotas(session, wanted, is_queued=True)
    record = QueuedRecord(
        where.project,
        where.zone,
        queued_resource_id,
        session.next_incarnation(name),
        {**document, "name": name, "createTime": nanosecond_timestamp(session.now)},
        (),
        tuple(nodes),
    )
    record = _plan(session, record, failing=take_fault(session, FaultKind.OPERATION_ERROR, target))
    session.put_queued_resource(record)
    return begin_operation(session, record, "create", call, goal="ACCEPTED")


@answers("tpu.projects.locations.queuedResources.delete")
def _delete_queued_resource(session: StateSession, call: Call) -> Json:
    """Delete a queued resource; without `force` only in the states that the API's field text names."""
    if repeated := repeated_operation(session, call):
        return repeated
    record = find_queued_resource(session, call["name"])
    owned = _nodes_of(session, record)
    state = record.state(session.now)
    are_deleted = state == "ACTIVE" and not any(session.exists(node) for node in owned)
    if not call.params.get("force") and state not in _DELETABLE and not are_deleted:
        raise failed_precondition(
            f"The queued resource is in state {state}; delete its nodes first, or set force."  # unverified words
        )
    if state == "DELETING":
        return begin_operation(session, record, "delete", call, goal=GONE)
    pace = durations_of(session, record)
    begun = (*timeline_until(record.timeline, session.now), LifecyclePhase(session.now, "DELETING", initiator="USER"))
    record = replace(record, timeline=begun)
    session.put_queued_resource(record)  # stored first, so that the end of its nodes does not suspend it
    ends = [session.now + pace.of("delete")]
    for node in owned:
        kept = store_node(session, node, delete_timeline(node.timeline, session.now, durations_of(session, node)))
        ends.append(end_of_timeline(kept.timeline) or session.now)
    record = store_queued_resource(session, record, (*begun, LifecyclePhase(max(ends), GONE)))
    return begin_operation(session, record, "delete", call, goal=GONE)


@answers("tpu.projects.locations.queuedResources.reset")
def _reset_queued_resource(session: StateSession, call: Call) -> Json:
    """Restart the nodes. Refused from any state but ACTIVE.

    Observed for SUSPENDED; that ACTIVE accepts it, and what becomes of the nodes, is unverified.
    """
    record = find_queued_resource(session, call["name"])
    if (state := record.state(session.now)) != "ACTIVE":
        raise failed_precondition(f"reset is not supported while in state {state}")
    ended = session.now
    for node in _nodes_of(session, record):
        restarted = restart_timeline(node.timeline, session.now, durations_of(session, node))
        timeline = apply_faults(session, node, restarted)
        store_node(session, node, timeline)
        ended = max(ended, first_time_in(timeline, "READY", since=session.now) or ended)
    return begin_operation(session, record, "reset", call, goal="", ended=ended)


def find_queued_resource(session: StateSession, name: str) -> QueuedRecord:
    """Return a queued resource that is there now. Raises `ApiError` 404, or 403 for an unknown zone."""
    where = parse_resource_name(name)
    catalog.check_location(where.project, where.zone)
    record = session.queued_resource(*where)
    if record is None or not session.exists(record):
        raise not_found(name)
    return record


def _nodes_of(session: StateSession, record: QueuedRecord) -> list[NodeRecord]:
    """Return the nodes of a request, planned ones included."""
    found = [session.node(record.project, record.zone, node_id) for node_id in record.node_ids]
    return [node for node in found if node and node.queued_resource == record.name]


def _check_request(
    session: StateSession, where: api_calls.ResourceName, document: Json, nodes: dict[str, Json]
) -> None:
    """Raise `ApiError` unless every node of a request could be created, in this zone (words unverified)."""
    tiers = [tier for tier in ("spot", "guaranteed", "bestEffort") if tier in document]
    if len(tiers) > 1:
        raise invalid("Only one tier may be set.")  # API field text: a union field
    for spec in document["tpu"]["nodeSpec"]:
        if str(spec.get("parent") or "").split("/")[2:] != ["locations", where.zone]:
            raise invalid_field("Parent", str(spec.get("parent") or ""))
    check_valid_interval(document, session.now)
    for node_id, body in nodes.items():
        check_node(session, where.project, where.zone, node_id, body=body)


_PLANNING_HORIZON = timedelta(days=36_500)
_STATES_DECIDING = timedelta(seconds=2)
_UNDECIDED = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"})


def check_valid_interval(document: Json, now: datetime) -> None:
    """Raise `ApiError` 400 for a request that can never be provisioned: its end is past, or before its start (unverified)."""
    begin, end = _valid_time(document, "After", now), _valid_time(document, "Until", now)
    if end and (end <= now + _STATES_DECIDING or (begin and end <= begin)):
        raise invalid("The queueing policy's valid-until time must be in the future and after its valid-after time.")


def _plan(session: StateSession, record: QueuedRecord, *, failing: faults.Fault | None) -> QueuedRecord:
    """Return a new request with its planned timeline, and store its planned nodes. `failing` fails its provisioning."""
    now = session.now
    waiting = (
        LifecyclePhase(now, "CREATING"),
        LifecyclePhase(now + _STATES_DECIDING, "ACCEPTED"),
        LifecyclePhase(now + timedelta(seconds=12), "WAITING_FOR_RESOURCES"),
        LifecyclePhase(_turn_with_capacity(session, record, _earliest_turn(session, record)), "PROVISIONING"),
    )
    record = replace(record, timeline=apply_faults(session, record, waiting))
    turn = first_time_in(record.timeline, "PROVISIONING", since=now)
    if failing is None or turn is None or _deadline_before(record, turn):
        return _decide(session, record, turn)
    # Observed: PROVISIONING, SUSPENDING by the service, FAILED within minutes.
    pace = durations_of(session, record)
    lost = turn + pace.of("failure")
    ending = (
        LifecyclePhase(lost, "SUSPENDING", initiator="SERVICE"),
        LifecyclePhase(lost + pace.of("delete"), "FAILED", initiator="SERVICE"),
    )
    method = "tpu.projects.locations.queuedResources.create"
    target = FaultTarget(method, record.project, record.zone, record.queued_resource_id)
    error = operation_failure(failing, target, _demands(record)[0].tier)
    return replace(record, timeline=(*record.timeline, *ending), error=error)


def replan_waiting(session: StateSession) -> None:
    """Plan waiting requests again after a change of capacity: they are provisioned sooner or later.

    A request that hangs without an end keeps hanging.
    """
    for record in session.queued_resources():
        phase, turn = record.phase(session.now), first_time_in(record.timeline, "PROVISIONING", since=session.now)
        is_expiring = turn is None and any(p.state == "FAILED" and p.at > session.now for p in record.timeline)
        is_failing = turn is not None and record.error is not None
        if phase is None or phase.state not in _UNDECIDED or is_failing or (turn is None and not is_expiring):
            continue
        soonest = max(_earliest_turn(session, record), session.now + timedelta(seconds=30))
        at = _turn_with_capacity(session, record, soonest)
        waiting = (*(p for p in record.timeline if p.state in _UNDECIDED), LifecyclePhase(at, "PROVISIONING"))
        moved = _decide(session, replace(record, timeline=waiting, error=None), at)
        session.put_queued_resource(moved)
        store_queued_resource(session, moved, moved.timeline)


def _decide(session: StateSession, record: QueuedRecord, turn: datetime | None) -> QueuedRecord:
    """Return a request with the end of its wait: it is provisioned at its turn (None: never), or expires before.

    It is FAILED then at its valid-until time (API field text), if it has one.
    """
    limit = _deadline_before(record, turn)
    if turn is not None and limit is None:
        return _provision(session, record, turn)
    for node in _nodes_of(session, record):
        session.put_node(replace(node, timeline=(LifecyclePhase(session.now, GONE),)))
    if limit is None:
        return record
    # Code and words are unverified.
    error = {"code": 4, "message": "The queued resource could not be provisioned before its valid-until time."}
    waited = tuple(phase for phase in record.timeline if phase.at <= limit and phase.state in _UNDECIDED)
    return replace(record, timeline=(*waited, LifecyclePhase(limit, "FAILED", initiator="SERVICE")), error=error)


def _deadline_before(record: QueuedRecord, turn: datetime | None) -> datetime | None:
    """Return the valid-until time of a request if its turn comes later or never."""
    limit = _valid_time(record.document, "Until", record.timeline[0].at)
    return limit if limit is not None and (turn is None or turn > limit) else None


def _demands(record: QueuedRecord) -> list[capacity.Demand]:
    return capacity.node_demands(record.project, record.zone, capacity.requested_nodes(record.document).values())


def _earliest_turn(session: StateSession, record: QueuedRecord) -> datetime:
    """Return when a request would be provisioned without a shortage of capacity."""
    created = record.timeline[0].at if record.timeline else session.now
    pace: PhaseDurations = durations_of_new(session, record.name, record.incarnation, 0)
    return max(created + pace.draw("queue", 60, 200), _valid_time(record.document, "After", created) or created)


def _turn_with_capacity(session: StateSession, record: QueuedRecord, soonest: datetime) -> datetime:
    """Return when there is capacity for all nodes of a request."""
    return max(capacity.available_at(session, demand, soonest) for demand in _demands(record))


def _provision(session: StateSession, record: QueuedRecord, turn: datetime) -> QueuedRecord:
    wanted = capacity.requested_nodes(record.document)
    for node_id, body in wanted.items():
        node = session.node(record.project, record.zone, node_id)
        if node and node.queued_resource == record.name and node.timeline:
            delay = turn - node.timeline[0].at
            later = tuple(replace(phase, at=phase.at + delay) for phase in node.timeline)
            session.put_node(replace(node, timeline=later))
        else:
            node = prepare_node(
                session,
                record.project,
                record.zone,
                node_id,
                body=body,
                begin=turn - session.now,
                queued_resource=record.name,
            )
            if len(wanted) > 1:
                node.document["multisliceNode"] = True
            timeline = apply_faults(session, node, node.timeline)
            session.put_node(replace(node, timeline=timeline))
    return replace(record, timeline=follow_nodes(session, record, initiator="SERVICE"))


def _valid_time(document: Json, which: str, created: datetime) -> datetime | None:
    """Return the start or end of a request's validity. None if it has none; at most a hundred years from now."""
    policy = document.get("queueingPolicy") or {}
    interval = policy.get("validInterval") or {}
    end = {"After": "startTime", "Until": "endTime"}[which]
    duration = str(policy.get(f"valid{which}Duration") or "")
    if duration:
        return created + min(timedelta(seconds=float(duration.removesuffix("s"))), _PLANNING_HORIZON)
    bound = parse_timestamp(policy.get(f"valid{which}Time") or interval.get(end))
    return min(bound, created + _PLANNING_HORIZON).astimezone(UTC) if bound else None


@answers("tpu.projects.locations.queuedResources.getMaintenanceInfo")
def _get_maintenance_info(session: StateSession, call: Call) -> Json:
    """Return an entry for each node with announced or ongoing maintenance."""
    record = find_queued_resource(session, call["name"])
    entries = [
        {"nodeName": node.node_id, "nodeUid": node.number, "upcomingMaintenance": phase.maintenance}
        for node in _nodes_of(session, record)
        if (phase := node.phase(session.now)) and phase.maintenance
    ]
    return {"nodeUpcomingMaintenances": entries} if entries else {}


@answers("tpu.projects.locations.queuedResources.performMaintenanceQueuedResource")
def _perform_queued_maintenance(session: StateSession, call: Call) -> Json:
    """Start announced maintenance now, on the named nodes, by default for all (unverified).

    Rejected, without a change, if one of them is not of this request or has no maintenance that a customer may start.
    """
    record = find_queued_resource(session, call["name"])
    nodes = {node.node_id: node for node in _nodes_of(session, record)}
    wanted = [str(name).rpartition("/")[2] for name in call.body.get("nodeNames") or nodes]
    for node_id in wanted:
        if node_id not in nodes:
            raise invalid_field("NodeNames", node_id)  # unverified
    ends = [begin_maintenance(session, nodes[node_id], call) for node_id in dict.fromkeys(wanted)]
    return begin_operation(session, record, "performMaintenance", call, goal="", ended=max([session.now, *ends]))
