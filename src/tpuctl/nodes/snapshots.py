"""Fetch nodes: one list call serves all nodes of a zone. Say what changed between two snapshots of a node."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.durations import format_timestamp
from tpuctl.errors import ServiceUnavailableError, TpuctlError
from tpuctl.models.events import EventKind, NodeEvent
from tpuctl.models.node import Health, Node, NodeState
from tpuctl.models.spec_fields import V2

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime

    from tpuctl.cloud.tpu import TpuClient
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeName

# Beyond this many zones one call for all of them is cheaper.
_ZONES_ONE_BY_ONE = 3


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node as fetched at one moment."""

    # None only if the API said that the node does not exist, or with an `error`.
    node: Node | None = None
    # Its queued resource, if that was requested. With `has_request`, None only if a list said that there is none.
    request: QueuedResource | None = None
    has_request: bool = False
    error: TpuctlError | None = None


def fetch_snapshots(
    cloud: TpuClient,
    names: Collection[NodeName],
    *,
    present: Collection[NodeName],
    requested: Collection[NodeName],
    versions: tuple[str, str] = (V2, V2),
) -> dict[NodeName, NodeSnapshot]:
    """Return a snapshot of each node, with one list call for each zone; `versions` are those of nodes and of requests.

    A `present` node that is missing in a list is fetched by name before it is called absent. The queued resources of the
    `requested` nodes are fetched too.
    """
    if len(names) == 1:
        (name,) = names
        snapshots = {name: _fetch_one(cloud, name, version=versions[0])}
    else:
        snapshots = _fetch_many(cloud, names, version=versions[0])
        for name in present:
            if snapshots[name].node is None and snapshots[name].error is None:
                snapshots[name] = _fetch_one(cloud, name, version=versions[0])
    awaited = [name for name in requested if snapshots[name].error is None]
    for name, request in _fetch_owners(cloud, awaited, version=versions[1]).items():
        snapshots[name] = request if request.error else replace(request, node=snapshots[name].node)
    return snapshots


def _fetch_one(cloud: TpuClient, name: NodeName, *, version: str) -> NodeSnapshot:
    try:
        return NodeSnapshot(cloud.find_node(name, version=version))
    except TpuctlError as error:
        return NodeSnapshot(error=error)


def _fetch_many(cloud: TpuClient, names: Collection[NodeName], *, version: str) -> dict[NodeName, NodeSnapshot]:
    zones: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        zones[name.project].add(name.zone)
    found: dict[NodeName, Node] = {}
    errors: dict[tuple[str, str], TpuctlError] = {}
    for project, wanted in zones.items():
        calls: list[tuple[str, ...]] = [(zone,) for zone in sorted(wanted)]
        for zones_asked in calls if len(wanted) <= _ZONES_ONE_BY_ONE else [()]:
            try:
                listing = cloud.list_nodes(project, zones_asked, version=version)
            except TpuctlError as error:
                errors |= {(project, zone): error for zone in zones_asked or wanted}
                continue
            found |= {node.name: node for node in listing.nodes}
            errors |= {(project, zone): _zone_unreachable_error(zone) for zone in listing.unreachable}
    return {name: NodeSnapshot(found.get(name), error=errors.get((name.project, name.zone))) for name in names}


def _fetch_owners(cloud: TpuClient, names: Collection[NodeName], *, version: str) -> dict[NodeName, NodeSnapshot]:
    """Return the queued resources that own, or owned, these nodes."""
    snapshots: dict[NodeName, NodeSnapshot] = {}
    zones = {(name.project, name.zone) for name in names}
    calls = {(project, zone if len(zones) <= _ZONES_ONE_BY_ONE else "") for project, zone in zones}
    for project, zone in calls:
        here = [name for name in names if name.project == project and zone in {name.zone, ""}]
        try:
            listing = cloud.list_queued_resources(project, (zone,) if zone else (), version=version)
        except TpuctlError as error:
            snapshots |= {name: NodeSnapshot(error=error) for name in here}
            continue
        for name in here:
            in_zone = (request for request in listing.queued_resources if request.zone == name.zone)
            owners = [request for request in in_zone if request.owns(name.node_id)]
            # One with the id of the node is tpuctl's own.
            owners.sort(key=lambda request: request.queued_resource_id != name.node_id)
            missing = _zone_unreachable_error(name.zone) if name.zone in listing.unreachable else None
            snapshots[name] = NodeSnapshot(request=next(iter(owners), None), has_request=True, error=missing)
    return snapshots


def _zone_unreachable_error(zone: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"no answer from {zone}")


def node_events(
    name: NodeName,
    at: datetime,
    before: tuple[Node | None, QueuedResource | None],
    now: tuple[Node | None, QueuedResource | None],
) -> Iterator[NodeEvent]:
    """Yield an event for each change between two snapshots of a node and of the queued resource that owns it."""
    (old, known), (node, request) = before, now
    state = _state_event(name, at, node)
    is_preemption = was_preempted(node, request) and not was_preempted(old, known)
    if is_preemption and (old is not None or node is not None):
        identity = {"id": old.id} if node is None and old else {}
        text = f"{state.text}: the service took it back"
        yield replace(state, kind=EventKind.PREEMPTED, text=text, data={**state.data, **identity})
    elif compared_fields(old) != compared_fields(node):
        yield state
    announced = node.upcoming_maintenance if node else None
    if node and announced and announced != (old.upcoming_maintenance if old else None):
        when = f" from {format_timestamp(announced.start)}" if announced.start else ""
        until = f" to {format_timestamp(announced.end)}" if announced.end else ""
        text = f"maintenance is {announced.status}{when}{until}"
        data = {**state.data, "status": announced.status}
        yield NodeEvent(EventKind.MAINTENANCE, at, name, text, data)


def was_preempted(node: Node | None, request: QueuedResource | None) -> bool:
    """Return whether there is evidence that the service preempted the node [API field text: states of nodes and requests]."""
    if node is not None and node.state is not NodeState.DELETING:
        return node.is_preempted
    return request is not None and request.was_suspended_by_service


def _state_event(name: NodeName, at: datetime, node: Node | None) -> NodeEvent:
    if node is None:
        return NodeEvent(EventKind.STATE, at, name, "gone", {"state": None})
    health = "" if node.health is Health.HEALTH_UNSPECIFIED else str(node.health)
    text = f"{node.state} {health}".strip() if node.state is NodeState.READY else str(node.state)
    return NodeEvent(
        EventKind.STATE, at, name, text, {"state": str(node.state), "health": health or None, "id": node.id}
    )


def compared_fields(node: Node | None) -> object:
    """Return the fields whose change is reported."""
    return node and (node.id, node.state, node.health)
