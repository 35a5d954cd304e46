"""Queued resources: handlers of `tpu.projects.locations.queuedResources`, and their plans.

A queued resource waits for capacity and then creates nodes: `schedule` looks for capacity after each transaction that changes
the stock or its use, and at the next release of capacity. Its state follows from the stored times, as for nodes. The durations
of the states are the sandbox's choice (observed: 2 to 5 minutes until ACTIVE).
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from datetime import UTC, timedelta
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
    end_of_slice,
    fall_back,
    follow_nodes,
    operation_failure,
    store_node,
    store_queued_resource,
    store_waiting,
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
    withdrawn_timeline,
)
from tpuctl.sandbox.representation import nanosecond_timestamp, render_queued_resource
from tpuctl.sandbox.state_session import QueuedRecord
from tpuctl.sandbox.stock import check_reservation, find_shortage, release_times
from tpuctl.sandbox.tpu_nodes import begin_maintenance, check_node, client_fields, prepare_node
from tpuctl.sandbox.tpu_operations import begin_operation, repeated_operation

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.api_calls import Call, Json
    from tpuctl.sandbox.lifecycle import PhaseDurations, Timeline
    from tpuctl.sandbox.state_session import NodeRecord, StateSession

_ID = re.compile(r"[A-Za-z0-9_.~+%-]+")  # text of the parameter `queuedResourceId`
_DELETABLE = frozenset({"ACCEPTED", "FAILED", "SUSPENDED", "DELETING"})  # API field text of `force`
# The fields that a client may set; all others are output only and ignored, as proto3 APIs do.
_CHOSEN = (
    *("tpu", "spot", "guaranteed", "bestEffort", "queueingPolicy", "reservationName", "provisioningModel"),
    "runDuration",
)


@answers("tpu.projects.locations.queuedResources.get")
def _get_queued_resource(session: StateSession, call: Call) -> Json:
    return render_queued_resource(_find_queued_resource(session, call["name"]), session.now, call.version)


@answers("tpu.projects.locations.queuedResources.list")
def _list_queued_resources(session: StateSession, call: Call) -> Json:
    """List a zone, or all with `locations/-` (unverified that the service has that)."""
    where = parse_resource_name(call["parent"])
    everywhere = where.zone == api_calls.ANYWHERE
    if not everywhere:
        catalog.check_location(where.project, where.zone)
    unreachable = faults.unreachable_zones(session, where.project, zone_names()) if everywhere else ()
    records = session.queued_resources(where.project, zone=None if everywhere else where.zone)
    visible = [record for record in records if record.zone not in unreachable and session.exists(record)]
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
    demands = capacity.node_demands(where.project, where.zone, nodes.values())
    if fault := take_fault(session, FaultKind.QUOTA, target):
        metric, place = quota_metrics(demands[0])[1]
        raise quota_refusal(metric, place, limit=fault.limit, is_queued=True).committing()
    check_quotas(session, demands, is_queued=True)
    record = QueuedRecord(
        where.project,
        where.zone,
        queued_resource_id,
        session.next_incarnation(name),
        {**document, "name": name, "createTime": nanosecond_timestamp(session.now)},
        (),
        tuple(nodes),
    )
    record = _plan(session, record)
    return begin_operation(session, record, "create", call, goal="ACCEPTED")


@answers("tpu.projects.locations.queuedResources.delete")
def _delete_queued_resource(session: StateSession, call: Call) -> Json:
    """Delete a queued resource; without `force` only in the states that the API's field text names."""
    if repeated := repeated_operation(session, call):
        return repeated
    record = _find_queued_resource(session, call["name"])
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
    target = FaultTarget(call.method, record.project, record.zone, record.queued_resource_id)
    if state in {"FAILED", "SUSPENDED"} and take_fault(session, FaultKind.SURVIVES_DELETE, target):
        # axlearn deletes a second time what is still there (its source); that the operation succeeded is unverified.
        return begin_operation(session, record, "delete", call, goal=GONE, ended=session.now + pace.of("delete"))
    begun = (*timeline_until(record.timeline, session.now), LifecyclePhase(session.now, "DELETING", initiator="USER"))
    record = replace(record, timeline=begun, not_before=None)
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
    record = _find_queued_resource(session, call["name"])
    if (state := record.state(session.now)) != "ACTIVE":
        raise failed_precondition(f"reset is not supported while in state {state}")
    ended = session.now
    for node in _nodes_of(session, record):
        restarted = restart_timeline(node.timeline, session.now, durations_of(session, node))
        timeline = apply_faults(session, node, restarted)
        store_node(session, node, timeline)
        ended = max(ended, first_time_in(timeline, "READY", since=session.now) or ended)
    return begin_operation(session, record, "reset", call, goal="", ended=ended)


def _find_queued_resource(session: StateSession, name: str) -> QueuedRecord:
    """Return a queued resource that is there now. Raises `ApiError` 404, or 403 for an unknown zone."""
    where = parse_resource_name(name)
    catalog.check_location(where.project, where.zone)
    record = session.queued_resource(*where)
    if record is None or not session.exists(record):
        raise not_found(name)
    return record


def _nodes_of(session: StateSession, record: QueuedRecord) -> list[NodeRecord]:
    """Return the nodes of a request, planned ones included."""
    nodes = [session.node(record.project, record.zone, node_id) for node_id in record.node_ids]
    return [node for node in nodes if node and node.queued_resource == record.name]


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
    _check_valid_interval(document, session.now)
    _check_run(document, session.now)
    reservation = str(document.get("reservationName") or "")
    if document.get("provisioningModel") == "RESERVATION_BOUND" and not reservation:
        raise invalid_field("ReservationName", "")
    check_reservation(session, reservation, where.zone)
    for node_id, body in nodes.items():
        check_node(session, where.project, where.zone, node_id, body=body)


_PLANNING_HORIZON = timedelta(days=36_500)
_STATES_DECIDING = timedelta(seconds=2)


def _check_valid_interval(document: Json, now: datetime) -> None:
    """Raise `ApiError` 400 for a request that can never be provisioned: its end is past, or before its start (unverified)."""
    begin, end = _valid_time(document, "After", now), _valid_time(document, "Until", now)
    if end and (end <= now + _STATES_DECIDING or (begin and end <= begin)):
        raise invalid("The queueing policy's valid-until time must be in the future and after its valid-after time.")


def _check_run(document: Json, now: datetime) -> None:
    """Raise `ApiError` 400 for a run that is over before it begins, or longer than flex-start allows (words unverified)."""
    bounds = document.get("runDuration") or {}
    run, end = _parse_seconds(bounds.get("maxRunDuration")), parse_timestamp(bounds.get("terminationTime"))
    if (run is not None and run <= timedelta()) or (end and end <= now):
        raise invalid("The run duration must be positive, and its termination time in the future.")
    if run and document.get("provisioningModel") == "FLEX_START" and run > _LONGEST_RUN:
        raise invalid_field("MaxRunDuration", str(bounds["maxRunDuration"]))


def _plan(session: StateSession, record: QueuedRecord) -> QueuedRecord:
    """Store a new request with its wait and return it; `schedule` ends the wait."""
    now = session.now
    # The same for all requests of a zone, which are selected in the order of their creation.
    queue = durations_of_new(session, f"queue of {record.zone}", 0, 0).draw("queue", 60, 200)
    earliest = max(now + queue, _valid_time(record.document, "After", now) or now)
    waiting = (
        LifecyclePhase(now, "CREATING"),
        LifecyclePhase(now + _STATES_DECIDING, "ACCEPTED"),
        LifecyclePhase(now + timedelta(seconds=12), "WAITING_FOR_RESOURCES"),
        LifecyclePhase(earliest, "PROVISIONING"),
    )
    record = replace(record, expires=_valid_time(record.document, "Until", now))
    if record.expires:
        # Code and words are unverified.
        message = "The queued resource could not be provisioned before its valid-until time."
        record = replace(record, error={"code": 4, "message": message})
    return store_waiting(session, record, apply_faults(session, record, waiting))


def schedule(session: StateSession) -> None:
    """Provision the waiting requests for which there is capacity now, in the order of their creation.

    One that fits does not wait for an earlier one that needs more (unverified). The others are looked at again when capacity
    may be released next.
    """
    waiting = [record for record in session.queued_resources(is_waiting=True) if record.not_before]
    starved = []
    for record in sorted(waiting, key=lambda record: (str(record.document.get("createTime")), record.name)):
        if record.expires and record.expires <= session.now:
            session.put_queued_resource(replace(record, not_before=None))
        elif record.not_before and record.not_before > session.now:
            continue
        elif find_shortage(session, *_demands(record)) is not None:
            starved.append(record)
        else:
            _provision(session, record)
    waiting = session.queued_resources(is_waiting=True)
    times = [record.not_before for record in waiting if record.not_before]
    if starved:
        times += release_times(session)
    session.plan_tick(min((at for at in times if at > session.now), default=None))


def _provision(session: StateSession, record: QueuedRecord) -> None:
    """Create the nodes of a request now, unless a fault lets it fail, or wait again."""
    now, pace = session.now, durations_of(session, record)
    waited = tuple(phase for phase in record.timeline if phase.at <= now)
    begun: Timeline = (*waited, LifecyclePhase(now, "PROVISIONING"))
    record = replace(record, not_before=None)
    create = FaultTarget(
        "tpu.projects.locations.queuedResources.create", record.project, record.zone, record.queued_resource_id
    )
    lost = now + pace.of("failure")
    if fault := take_fault(session, FaultKind.FALL_BACK, create):
        # Observed: PROVISIONING coming and going for 45 minutes. That there is no node meanwhile is unverified.
        fall_back(session, record, begun, fault, lost)
        return
    if fault := take_fault(session, FaultKind.OPERATION_ERROR, create):
        # Observed: PROVISIONING, SUSPENDING by the service, FAILED within minutes.
        begun = (
            *begun,
            LifecyclePhase(lost, "SUSPENDING", initiator="SERVICE"),
            LifecyclePhase(lost + pace.of("delete"), "FAILED", initiator="SERVICE"),
        )
        error = operation_failure(fault, create, _demands(record)[0].tier)
        store_queued_resource(session, replace(record, error=error), begun)
        return
    nodes = capacity.requested_nodes(record.document)
    for node_id, body in nodes.items():
        node = prepare_node(session, record.project, record.zone, node_id, body=body, queued_resource=record.name)
        if len(nodes) > 1:
            node.document["multisliceNode"] = True
        timeline = _limit_run(record, node.timeline, durations_of(session, node))
        session.put_node(replace(node, timeline=apply_faults(session, node, timeline)))
    _end_together(session, _nodes_of(session, record))
    record = replace(record, timeline=begun)
    store_queued_resource(session, record, follow_nodes(session, record, initiator="SERVICE"))


def _end_together(session: StateSession, nodes: list[NodeRecord]) -> None:
    """Let the nodes of a request end with the first that is lost for good: a suspended request has none [API field text]."""
    lost = {node.name: phase for node in nodes if (phase := end_of_slice(node.timeline))}
    first = min(lost.values(), key=lambda phase: phase.at, default=None)
    for node in nodes if first else ():
        if first and node.name not in lost:
            pace = durations_of(session, node)
            ended = withdrawn_timeline(node.timeline, first.at, pace, initiator=first.initiator)
            session.put_node(replace(node, timeline=ended))


def _demands(record: QueuedRecord) -> list[capacity.Demand]:
    return capacity.node_demands(record.project, record.zone, capacity.requested_nodes(record.document).values())


_LONGEST_RUN = timedelta(days=7)  # documented for flex-start


def _limit_run(record: QueuedRecord, timeline: Timeline, pace: PhaseDurations) -> Timeline:
    """Return a node's timeline with its end after the run duration: deleted, its request SUSPENDED (documentation).

    That the duration counts from READY, and that a flex-start request without one runs for the longest, is unverified.
    """
    document = record.document
    bounds = document.get("runDuration") or {}
    is_flexible = document.get("provisioningModel") == "FLEX_START"
    ready = first_time_in(timeline, "READY", since=timeline[0].at)
    if ready is None or not (bounds or is_flexible):
        return timeline
    run = _parse_seconds(bounds.get("maxRunDuration"))
    end = ready + (run if run is not None else _LONGEST_RUN) if run is not None or is_flexible else None
    termination = parse_timestamp(bounds.get("terminationTime"))
    end = min((at for at in (end, termination) if at), default=None)
    return withdrawn_timeline(timeline, max(end, ready), pace, initiator="SERVICE") if end else timeline


def _parse_seconds(text: str | None) -> timedelta | None:
    """Return a duration of the API (`3600s`), at most a hundred years. None if there is none."""
    return min(timedelta(seconds=float(text.removesuffix("s"))), _PLANNING_HORIZON) if text else None


def _valid_time(document: Json, which: str, created: datetime) -> datetime | None:
    """Return the start or end of a request's validity. None if it has none; at most a hundred years from now."""
    policy = document.get("queueingPolicy") or {}
    interval = policy.get("validInterval") or {}
    end = {"After": "startTime", "Until": "endTime"}[which]
    if (duration := _parse_seconds(policy.get(f"valid{which}Duration"))) is not None:
        return created + duration
    bound = parse_timestamp(policy.get(f"valid{which}Time") or interval.get(end))
    return min(bound, created + _PLANNING_HORIZON).astimezone(UTC) if bound else None


@answers("tpu.projects.locations.queuedResources.getMaintenanceInfo")
def _get_maintenance_info(session: StateSession, call: Call) -> Json:
    """Return an entry for each node with announced or ongoing maintenance."""
    record = _find_queued_resource(session, call["name"])
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
    record = _find_queued_resource(session, call["name"])
    nodes = {node.node_id: node for node in _nodes_of(session, record)}
    node_ids = [str(name).rpartition("/")[2] for name in call.body.get("nodeNames") or nodes]
    for node_id in node_ids:
        if node_id not in nodes:
            raise invalid_field("NodeNames", node_id)  # unverified
    ends = [begin_maintenance(session, nodes[node_id], call) for node_id in dict.fromkeys(node_ids)]
    return begin_operation(session, record, "performMaintenance", call, goal="", ended=max([session.now, *ends]))
