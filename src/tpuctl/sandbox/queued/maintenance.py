"""Maintenance of the nodes of a queued resource (v2alpha1): show announced maintenance, and start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import operations
from tpuctl.sandbox.nodes.maintenance import begin_now
from tpuctl.sandbox.queued.requests import find
from tpuctl.sandbox.refusals import invalid_field

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import NodeRecord, QueuedRecord, Session


def get_maintenance_info(session: Session, call: Call) -> Json:
    """Answer queuedResources.getMaintenanceInfo: an entry for each node with announced or ongoing maintenance."""
    record = find(session, str(call.params["name"]))
    entries = [
        {"nodeName": node.node_id, "nodeUid": node.number, "upcomingMaintenance": phase.maintenance}
        for node in _nodes(session, record)
        if (phase := node.phase(session.now)) and phase.maintenance
    ]
    return {"nodeUpcomingMaintenances": entries} if entries else {}


def perform_maintenance(session: Session, call: Call) -> Json:
    """Answer queuedResources.performMaintenanceQueuedResource for the named nodes, by default for all (unverified).

    Rejected, without a change, if one of them is not of this request or has no maintenance that a customer may start.
    """
    session.log_request(call.method, str(call.params["name"]))
    record = find(session, str(call.params["name"]))
    nodes = {node.node_id: node for node in _nodes(session, record)}
    wanted = [str(name).rpartition("/")[2] for name in call.body.get("nodeNames") or nodes]
    for node_id in wanted:
        if node_id not in nodes:
            raise invalid_field("NodeNames", node_id)  # unverified
    ends = [begin_now(session, nodes[node_id], call) for node_id in dict.fromkeys(wanted)]
    return operations.begin(session, record, "performMaintenance", call, goal="", ended=max([session.now, *ends]))


def _nodes(session: Session, record: QueuedRecord) -> list[NodeRecord]:
    found = [session.node(record.project, record.zone, node_id) for node_id in record.node_ids]
    return [node for node in found if node and node.queued_resource == record.name and session.exists(node)]
