"""Compare two snapshots of a node, and yield the events to report and to write to the journal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.clock import format_timestamp
from tpuctl.events import Event, EventKind
from tpuctl.model import Health, Node, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tpuctl.model import QueuedResource
    from tpuctl.names import NodeName


def news(
    name: NodeName,
    at: datetime,
    before: tuple[Node | None, QueuedResource | None],
    now: tuple[Node | None, QueuedResource | None],
) -> Iterator[Event]:
    """Yield an event for each change between two snapshots of a node and of the queued resource that owns it."""
    (old, known), (node, request) = before, now
    is_preemption = was_preempted(node, request) and not was_preempted(old, known)
    if is_preemption and (old is not None or node is not None):
        state = _state(name, at, node)
        identity = {"id": old.id} if node is None and old else {}
        yield replace(
            state,
            kind=EventKind.PREEMPTED,
            text=f"{state.text}: the service took it back",
            data={**state.data, **identity},
        )
    elif _shown(old) != _shown(node):
        yield _state(name, at, node)
    announced = node.upcoming_maintenance if node else None
    if node and announced and announced != (old.upcoming_maintenance if old else None):
        when = f" from {format_timestamp(announced.start)}" if announced.start else ""
        until = f" to {format_timestamp(announced.end)}" if announced.end else ""
        text = f"maintenance is {announced.status}{when}{until}"
        yield Event(EventKind.MAINTENANCE, at, name, text, {**_state(name, at, node).data, "status": announced.status})


def was_preempted(node: Node | None, request: QueuedResource | None) -> bool:
    """Return whether there is evidence that the service preempted the node [API field text: states of nodes and requests]."""
    if node is not None and node.state is not NodeState.DELETING:
        return node.is_preempted
    return request is not None and request.was_suspended_by_service


def _state(name: NodeName, at: datetime, node: Node | None) -> Event:
    if node is None:
        return Event(EventKind.STATE, at, name, "gone", {"state": None})
    health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
    text = f"{node.state} {health}".strip() if node.state is NodeState.READY else str(node.state)
    return Event(EventKind.STATE, at, name, text, {"state": str(node.state), "health": health or None, "id": node.id})


def _shown(node: Node | None) -> object:
    """Return the fields whose change is reported."""
    return node and (node.id, node.state, node.health)
