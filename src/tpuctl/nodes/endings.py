"""Decide when `watch` ends a node: its time has ended, or it was idle for the time of its limit. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tpuctl.durations import format_duration
from tpuctl.models.node import NodeState, QueuedState
from tpuctl.nodes.conditions import Condition, Done, End, EndReason, Requeue
from tpuctl.nodes.expiry import is_expired
from tpuctl.nodes.idle_limit import IDLE_WARNING, IdleAction
from tpuctl.nodes.polling import WATCH_INTERVAL

if TYPE_CHECKING:
    from datetime import datetime

    from tpuctl.models.node import Node
    from tpuctl.nodes.conditions import Now, ObservedState
    from tpuctl.nodes.idle_limit import IdleLimit

# A deletion that the service accepted and that does not show for this long is sent again.
_DELETION_LAG = timedelta(minutes=5)
# The service changes a request in these states: it is deleted afterwards, or with the node that comes of it.
_PASSING_STATES = frozenset({QueuedState.PROVISIONING, QueuedState.SUSPENDING, QueuedState.DELETING})


def has_expired(seen: ObservedState, now: Now) -> bool:
    """Return whether the node exists and its time has ended."""
    node = seen.node
    return node is not None and not seen.outage and not node.is_kept and is_expired(node, now.utc)


def decide_end(seen: ObservedState, last_end: datetime | None, now: Now) -> End | Requeue | Done | None:
    """Return the next step to end a node, or a request without one, whose time has ended; None if it has time left.

    `last_end` is the end of the node that was seen last. Done: it is gone, and is not created again.
    """
    node, sent = seen.node, seen.end_sent
    if sent is not None and sent.node_id and (node is None or node.id != sent.node_id):
        return Done(Condition.GONE)
    is_sent = sent is not None and now.at - sent.at < _DELETION_LAG
    if has_expired(seen, now) or (is_sent and node is not None):
        if seen.outage:
            return Requeue(WATCH_INTERVAL, "the API does not answer")
        if is_sent or (node is not None and node.state is NodeState.DELETING):
            return Requeue(WATCH_INTERVAL, "it is being deleted")
        if node is not None and node.state is NodeState.CREATING:
            return Requeue(WATCH_INTERVAL, "its time has ended: it is deleted when it is no longer CREATING")
        return End(EndReason.EXPIRED, IdleAction.DELETE)
    if seen.outage:
        return None
    if seen.request is not None and seen.has_time_ended:
        if seen.request.state in _PASSING_STATES:
            return Requeue(WATCH_INTERVAL, f"its time has ended: its queued resource is {seen.request.state}")
        if is_sent:
            return Requeue(WATCH_INTERVAL, "its time has ended: its queued resource is being deleted")
        return End(EndReason.EXPIRED, IdleAction.DELETE)
    is_gone = node is None and seen.request is None and not seen.pending
    if is_gone and last_end is not None and last_end <= now.utc:
        return Done(Condition.GONE, "its time has ended, and it does not exist: it is not created again")
    return None


def decide_idle_end(limit: IdleLimit, node: Node, idle: timedelta) -> End | None:
    """Return how a node ends that was idle for this long; None if it has time left, or is kept."""
    action = limit.action_for(node)
    return End(EndReason.IDLE, action) if action is not None and idle >= limit.after else None


def idle_warning(limit: IdleLimit, node: Node, idle: timedelta) -> str | None:
    """Return the warning before a node ends that is idle; None if there is time left."""
    left, action = limit.after - idle, limit.action_for(node)
    if action is None or not timedelta() < left <= IDLE_WARNING:
        return None
    return f"idle for {format_duration(idle)}: it is {action.past} in {format_duration(left)} unless it is used"
