"""Maintenance that a customer starts (v2alpha1): a simulated event, and announced maintenance at once.

The node's state during maintenance (READY and UNHEALTHY_MAINTENANCE) is unverified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import consequences, operations
from tpuctl.sandbox.afflictions import Fault, FaultKind, afflict
from tpuctl.sandbox.nodes.changes import begin
from tpuctl.sandbox.refusals import bad_request, failed_precondition, invalid

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import NodeRecord, Session


def simulate_maintenance_event(session: Session, call: Call) -> Json:
    """Answer nodes.simulateMaintenanceEvent: ten minutes of maintenance on the first named worker.

    The default is worker 0 (API field text).
    """
    node = begin(session, call)
    worker = next((str(index) for index in call.body.get("workerIds") or ()), "0")
    if not worker.isdecimal() or int(worker) >= node.workers:
        raise invalid(f'Cloud TPU received an invalid argument. The "WorkerId" value "{worker}" was not found.')
    _require_ready(node, session.now, "simulateMaintenanceEvent")
    ended = _maintain(session, node)
    return operations.begin(session, node, "simulateMaintenanceEvent", call, goal="", ended=ended)


def perform_maintenance(session: Session, call: Call) -> Json:
    """Answer nodes.performMaintenance: announced maintenance starts now; the operation ends with it."""
    node = begin(session, call)
    ended = begin_now(session, node, call)
    return operations.begin(session, node, "performMaintenance", call, goal="", ended=ended)


def begin_now(session: Session, node: NodeRecord, call: Call) -> datetime:
    """Start a node's announced maintenance now, and return its end.

    Raises `ApiError` 400 if none is pending, or only Google may start it (`canReschedule`, API field text; words unverified).
    """
    _require_ready(node, session.now, call.method.rpartition(".")[2])
    phase = node.phase(session.now)
    announced = (phase.maintenance if phase else None) or {}
    if announced.get("maintenanceStatus") != "PENDING" or not announced.get("canReschedule"):
        raise failed_precondition(f"The node {node.node_id} has no pending maintenance that can be performed now.")
    return _maintain(session, node)


def _maintain(session: Session, node: NodeRecord) -> datetime:
    """Start maintenance now, replacing announced maintenance; return its end."""
    pace, owned = consequences.pace(session, node), bool(node.queued_resource)
    timeline = afflict(node.timeline, Fault(FaultKind.MAINTENANCE), session.now, pace, owned=owned, is_new=False)
    node = consequences.keep(session, node, timeline or node.timeline)
    return next((p.at for p in node.timeline if p.at > session.now and not p.maintenance), session.now)


def _require_ready(node: NodeRecord, now: datetime, verb: str) -> None:
    phase = node.phase(now)
    if phase is None or phase.state != "READY":
        state = phase.state if phase else "DELETING"
        raise bad_request(f"{verb} is not supported while in state {state}")
