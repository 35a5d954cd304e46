"""Fetch snapshots of many nodes with few calls: one list call for each zone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.errors import ServiceUnavailableError, TpuctlError

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpuctl.actions.cloud import Cloud
    from tpuctl.model import Node, QueuedResource
    from tpuctl.names import NodeName

# Beyond this many zones one call for all of them is cheaper.
_ZONES_ONE_BY_ONE = 3


@dataclass(frozen=True, slots=True)
class Sight:
    """One node as fetched at one moment."""

    # None only if the API said that the node does not exist, or with an `error`.
    node: Node | None = None
    # Its queued resource, if that was requested.
    request: QueuedResource | None = None
    error: TpuctlError | None = None


def look(
    cloud: Cloud, names: Collection[NodeName], *, present: Collection[NodeName], requested: Collection[NodeName]
) -> dict[NodeName, Sight]:
    """Return a snapshot of each node.

    A `present` node that is missing in a list is fetched by name before it is called absent. The queued resources of the
    `requested` nodes are fetched too.
    """
    if len(names) == 1:
        (name,) = names
        snapshots = {name: _one(cloud, name)}
    else:
        snapshots = _many(cloud, names)
        for name in present:
            if snapshots[name].node is None and snapshots[name].error is None:
                snapshots[name] = _one(cloud, name)
    for name, request in _owners(cloud, [name for name in requested if snapshots[name].error is None]).items():
        snapshots[name] = request if request.error else Sight(snapshots[name].node, request.request)
    return snapshots


def _one(cloud: Cloud, name: NodeName) -> Sight:
    try:
        return Sight(cloud.find_node(name))
    except TpuctlError as error:
        return Sight(error=error)


def _many(cloud: Cloud, names: Collection[NodeName]) -> dict[NodeName, Sight]:
    zones: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        zones[name.project].add(name.zone)
    found: dict[NodeName, Node] = {}
    errors: dict[tuple[str, str], TpuctlError] = {}
    for project, wanted in zones.items():
        calls: list[tuple[str, ...]] = [(zone,) for zone in sorted(wanted)]
        for zones_asked in calls if len(wanted) <= _ZONES_ONE_BY_ONE else [()]:
            try:
                listing = cloud.list_nodes(project, zones_asked)
            except TpuctlError as error:
                errors |= {(project, zone): error for zone in zones_asked or wanted}
                continue
            found |= {node.name: node for node in listing.nodes}
            errors |= {(project, zone): _unreachable(zone) for zone in listing.unreachable}
    return {name: Sight(found.get(name), error=errors.get((name.project, name.zone))) for name in names}


def _owners(cloud: Cloud, names: Collection[NodeName]) -> dict[NodeName, Sight]:
    """Return the queued resources that own, or owned, these nodes."""
    snapshots: dict[NodeName, Sight] = {}
    for project, zone in {(name.project, name.zone) for name in names}:
        here = [name for name in names if (name.project, name.zone) == (project, zone)]
        try:
            listing = cloud.list_queued_resources(project, (zone,))
        except TpuctlError as error:
            snapshots |= {name: Sight(error=error) for name in here}
            continue
        for name in here:
            owners = (request for request in listing.queued_resources if request.owns(name.node_id))
            missing = _unreachable(zone) if zone in listing.unreachable else None
            snapshots[name] = Sight(request=next(owners, None), error=missing)
    return snapshots


def _unreachable(zone: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"no answer from {zone}")
