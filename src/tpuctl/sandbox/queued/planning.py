"""The plan of a queued resource: when it gets capacity, which nodes it creates then, and how it fails.

The durations of the states are the sandbox's choice (observed: 2 to 5 minutes until ACTIVE).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tpuctl.clock import parse_timestamp
from tpuctl.sandbox import capacity, consequences, faults, lifecycle
from tpuctl.sandbox.failures import failure
from tpuctl.sandbox.lifecycle import GONE, Phase
from tpuctl.sandbox.nodes import creation
from tpuctl.sandbox.refusals import invalid

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Json
    from tpuctl.sandbox.lifecycle import Pace
    from tpuctl.sandbox.world import QueuedRecord, Session

_HORIZON = timedelta(days=36_500)
_DECIDING = timedelta(seconds=2)
_UNDECIDED = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"})


def check_bounds(document: Json, now: datetime) -> None:
    """Raise `ApiError` 400 for a request that can never be provisioned: its end is past, or before its start (unverified)."""
    begin, end = _bound(document, "After", now), _bound(document, "Until", now)
    if end and (end <= now + _DECIDING or (begin and end <= begin)):
        raise invalid("The queueing policy's valid-until time must be in the future and after its valid-after time.")


def plan(session: Session, record: QueuedRecord, *, failing: faults.Fault | None) -> QueuedRecord:
    """Return a new request with its planned timeline, and store its planned nodes. `failing` fails its provisioning."""
    now = session.now
    waiting = (
        Phase(now, "CREATING"),
        Phase(now + _DECIDING, "ACCEPTED"),
        Phase(now + timedelta(seconds=12), "WAITING_FOR_RESOURCES"),
        Phase(_turn(session, record, _natural(session, record)), "PROVISIONING"),
    )
    record = replace(record, timeline=waiting)
    record = replace(record, timeline=faults.plan_queued(session, record))
    turn = lifecycle.first(record.timeline, "PROVISIONING", since=session.now)
    if turn is None or _misses(record, turn, session.now):
        return _expiring(record, session.now)
    if failing:  # observed: PROVISIONING, SUSPENDING by the service, FAILED within minutes
        pace = consequences.pace(session, record)
        lost, end = turn + pace.failure(), turn + pace.failure() + pace.delete()
        ending = (Phase(lost, "SUSPENDING", initiator="SERVICE"), Phase(end, "FAILED", initiator="SERVICE"))
        tier = capacity.node_demands(record.project, record.zone, capacity.requested_nodes(record.document).values())[
            0
        ].tier
        method = "tpu.projects.locations.queuedResources.create"
        target = faults.Target(method, record.project, record.zone, record.queued_resource_id)
        error = failure(failing, target, tier)
        return replace(record, timeline=(*record.timeline, *ending), error=error)
    return _provisioning(session, record, turn)


def requeue(session: Session) -> None:
    """Plan waiting requests again after a change of capacity: they are provisioned sooner or later.

    A request that hangs without an end keeps hanging.
    """
    for record in session.queued_resources():
        phase, turn = record.phase(session.now), lifecycle.first(record.timeline, "PROVISIONING", since=session.now)
        is_expiring = turn is None and any(p.state == "FAILED" and p.at > session.now for p in record.timeline)
        is_failing = turn is not None and record.error is not None
        if phase is None or phase.state not in _UNDECIDED or is_failing or (turn is None and not is_expiring):
            continue
        record = replace(record, error=None)  # noqa: PLW2901  # the same request, not yet decided
        soonest = max(_natural(session, record), session.now + timedelta(seconds=30))
        at = _turn(session, record, soonest)
        before = tuple(p for p in record.timeline if p.state in _UNDECIDED)
        moved = replace(record, timeline=(*before, Phase(at, "PROVISIONING")))
        if _misses(moved, at, record.timeline[0].at):
            for node_id in moved.node_ids:
                node = session.node(moved.project, moved.zone, node_id)
                if node and node.queued_resource == moved.name:
                    session.put_node(replace(node, timeline=(Phase(session.now, GONE),)))
            moved = _expiring(moved, record.timeline[0].at)
        else:
            moved = _provisioning(session, moved, at)
        session.put_queued_resource(moved)
        consequences.keep_queued(session, moved, moved.timeline)


def _natural(session: Session, record: QueuedRecord) -> datetime:
    """Return when a request would be provisioned without a shortage of capacity."""
    made = record.timeline[0].at if record.timeline else session.now
    pace: Pace = consequences.pace_of(session, record.name, record.incarnation, 0)
    return max(made + pace.draw("queue", 60, 200), _bound(record.document, "After", made) or made)


def _turn(session: Session, record: QueuedRecord, soonest: datetime) -> datetime:
    """Return when there is capacity for all nodes of a request."""
    wanted = capacity.node_demands(record.project, record.zone, capacity.requested_nodes(record.document).values())
    return max(capacity.available_at(session, demand, soonest) for demand in wanted)


def _misses(record: QueuedRecord, turn: datetime, made: datetime) -> bool:
    limit = _bound(record.document, "Until", made)
    return limit is not None and turn > limit


def _expiring(record: QueuedRecord, made: datetime) -> QueuedRecord:
    """Return a request that gets capacity too late or never: FAILED at its valid-until time (API field text), if it has one."""
    limit = _bound(record.document, "Until", made)
    if limit is None:
        return record
    # Code and words are unverified.
    error = {"code": 4, "message": "The queued resource could not be provisioned before its valid-until time."}
    waited = tuple(phase for phase in record.timeline if phase.at <= limit and phase.state in _UNDECIDED)
    return replace(record, timeline=(*waited, Phase(limit, "FAILED", initiator="SERVICE")), error=error)


def _provisioning(session: Session, record: QueuedRecord, turn: datetime) -> QueuedRecord:
    wanted = capacity.requested_nodes(record.document)
    for node_id, body in wanted.items():
        node = session.node(record.project, record.zone, node_id)
        if node and node.queued_resource == record.name and node.timeline:
            delay = turn - node.timeline[0].at
            later = tuple(replace(phase, at=phase.at + delay) for phase in node.timeline)
            session.put_node(replace(node, timeline=later))
        else:
            node = creation.prepare(
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
            timeline = faults.plan(session, node, node.timeline, consequences.pace(session, node))
            session.put_node(replace(node, timeline=timeline))
    return replace(record, timeline=consequences.follow(session, record, initiator="SERVICE"))


def _bound(document: Json, which: str, made: datetime) -> datetime | None:
    """Return the start or end of a request's validity. None if it has none; at most a hundred years from now."""
    policy = document.get("queueingPolicy") or {}
    interval = policy.get("validInterval") or {}
    end = {"After": "startTime", "Until": "endTime"}[which]
    duration = str(policy.get(f"valid{which}Duration") or "")
    if duration:
        return made + min(timedelta(seconds=float(duration.removesuffix("s"))), _HORIZON)
    bound = parse_timestamp(policy.get(f"valid{which}Time") or interval.get(end))
    return min(bound, made + _HORIZON).astimezone(UTC) if bound else None
