"""Store records and update those that depend on them: operations, and the queued resource that owns a node.

Every change of a node's timeline goes through here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.sandbox import faults, lifecycle, operations
from tpuctl.sandbox.lifecycle import Pace, Phase

if TYPE_CHECKING:
    from tpuctl.sandbox.lifecycle import Timeline
    from tpuctl.sandbox.world import NodeRecord, QueuedRecord, Session


def pace_of(session: Session, name: str, incarnation: int, step: int) -> Pace:
    """Return the durations for one incarnation of a resource: the same history gives the same durations."""
    lag = session.setting("health_lag", [0, 20])
    return Pace(f"{session.seed}/{name}/{incarnation}/{step}", (float(lag[0]), float(lag[1])))


def pace(session: Session, record: NodeRecord | QueuedRecord) -> Pace:
    """Return the durations of the next transition of a record."""
    return pace_of(session, record.name, record.incarnation, len(lifecycle.until(record.timeline, session.now)))


def keep(session: Session, node: NodeRecord, timeline: Timeline, *, initiator: str = "SERVICE") -> NodeRecord:
    """Store a node with a new timeline, update its operations and its queued resource, and return it."""
    node = replace(node, timeline=timeline)
    session.put_node(node)
    operations.settle(session, node.name, timeline)
    if node.queued_resource:
        owner = session.queued_resource(node.project, node.zone, node.queued_resource.rpartition("/")[2])
        if owner:
            keep_queued(session, owner, follow(session, owner, initiator=initiator))
    return node


def keep_queued(session: Session, record: QueuedRecord, timeline: Timeline) -> QueuedRecord:
    """Store a queued resource with a new timeline, update its operations, and return it."""
    record = replace(record, timeline=timeline)
    session.put_queued_resource(record)
    operations.settle(session, record.name, timeline)
    return record


def follow(session: Session, owner: QueuedRecord, *, initiator: str) -> Timeline:
    """Return the timeline of a queued resource that follows from its nodes' timelines.

    It is ACTIVE once all nodes have been READY (unverified for several). When a node is preempted or deleted, it is SUSPENDING
    until that ends, then SUSPENDED (observed for preemption, with initiator SERVICE).
    """
    nodes = [session.node(owner.project, owner.zone, node_id) for node_id in owner.node_ids]
    owned = [node for node in nodes if node and node.queued_resource == owner.name]
    if any(
        phase.state in {"SUSPENDING", "SUSPENDED", "DELETING", "FAILED"} and phase.at <= session.now
        for phase in owner.timeline
    ):
        return owner.timeline
    kept = [phase for phase in owner.timeline if phase.state not in {"ACTIVE", "SUSPENDING", "SUSPENDED"}]
    kept += [phase for phase in owner.timeline if phase.state == "ACTIVE" and phase.at <= session.now]
    ready = [next((p.at for p in node.timeline if p.state == "READY"), None) for node in owned]
    if kept[-1].state == "PROVISIONING" and ready and all(ready):
        kept.append(Phase(max(at for at in ready if at), "ACTIVE"))
    lost = [phase.at for node in owned for phase in node.timeline if phase.state in {"DELETING", "PREEMPTED"}]
    if lost and kept[-1].state in {"PROVISIONING", "ACTIVE"}:
        begin = min(lost)
        ends = [end for node in owned if (end := lifecycle.end_of(node.timeline))]
        kept = [phase for phase in kept if phase.at <= begin]
        kept.append(Phase(begin, "SUSPENDING", initiator=initiator))
        kept.append(Phase(max([begin, *ends]), "SUSPENDED", initiator=initiator))
    return tuple(kept)


def meet(session: Session, fault_id: int) -> None:
    """Apply a new fault to the existing nodes and queued resources, in order of zone and name."""
    for node in session.nodes():
        if faults.get_fault(session, fault_id) is None:
            return
        timeline = faults.meet(session, fault_id, node, pace(session, node))
        if timeline is not None:
            keep(session, node, timeline)
    for record in session.queued_resources():
        timeline = faults.meet_queued(session, fault_id, record)
        if timeline is not None:
            _postpone(session, record, timeline)
            keep_queued(session, record, timeline)


def _postpone(session: Session, record: QueuedRecord, timeline: Timeline) -> None:
    """Delay the nodes that a queued resource has not started to create until its new turn, or forever."""
    planned = lifecycle.first(record.timeline, "PROVISIONING", since=session.now)
    turn = lifecycle.first(timeline, "PROVISIONING", since=session.now)
    for node_id in record.node_ids if planned else ():
        node = session.node(record.project, record.zone, node_id)
        if node and planned:
            later = tuple(replace(phase, at=phase.at + (turn - planned)) for phase in node.timeline) if turn else ()
            session.put_node(replace(node, timeline=later))
