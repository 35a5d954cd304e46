"""Find out which node a name means: where it is, or where it would be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tpuctl.errors import ConflictError, NodeNotFoundError, NodeNowhereError, ServiceUnavailableError, TpuctlError
from tpuctl.names import NodeName, NodeReference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.actions.cloud import NodeListing, QueuedListing
    from tpuctl.model import Node, QueuedResource


class Finder(Protocol):
    """The reading part of a cloud."""

    def find_node(self, name: NodeName) -> Node | None:
        """Return the node, or nothing if there is none."""

    def list_nodes(self, project: str, zones: Sequence[str] = ()) -> NodeListing:
        """Return the nodes of some zones, or of all."""


class RequestFinder(Protocol):
    """The part of a cloud that lists queued resources."""

    def list_queued_resources(self, project: str, zones: Sequence[str] = ()) -> QueuedListing:
        """Return the queued resources of some zones, or of all."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to look: the project, and the zone if the user named one.

    `default_zone` comes from gcloud's configuration: good for creating, but it hides nothing that is elsewhere.
    """

    project: str
    zone: str | None = None
    default_zone: str | None = None

    def name(self, reference: NodeReference) -> NodeName | None:
        """Return the full name of a node whose zone the user named."""
        zone = reference.zone or self.zone
        return NodeName(reference.project or self.project, zone, reference.node_id) if zone else None


def locate(finder: Finder, place: Place, reference: NodeReference) -> Node:
    """Return the one node that a name means.

    Raises `NodeNotFoundError` where there is none, `ConflictError` where there are several, and
    `ServiceUnavailableError` where a zone that might have it did not answer.
    """
    name = place.name(reference)
    if name is not None:
        node = finder.find_node(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node
    node = search(finder, place, reference)
    if node is None:
        raise NodeNowhereError(reference.node_id, reference.project or place.project)
    return node


def search(finder: Finder, place: Place, reference: NodeReference) -> Node | None:
    """Return the one node of that name in all zones, or nothing where every zone answered that it has none."""
    listing = finder.list_nodes(reference.project or place.project)
    found = the_only(listing.nodes, reference.node_id)
    if found is None and listing.unreachable:
        raise unreachable(reference.node_id, listing.unreachable)
    return found


def the_only(nodes: Iterable[Node], node_id: str) -> Node | None:
    """Return the one node of a name among some, or nothing. Raises `ConflictError` where there are several."""
    found = [node for node in nodes if node.name.node_id == node_id]
    if len(found) > 1:
        where = ", ".join(f"{node.name.zone}/{node.name.node_id}" for node in found)
        raise ConflictError(
            f"there are {len(found)} nodes `{node_id}`: {where}", hint="name the zone: `--zone ZONE` or `ZONE/NODE`"
        )
    return found[0] if found else None


def requests_to_mention(cloud: RequestFinder, project: str, zones: Sequence[str]) -> tuple[QueuedResource, ...]:
    """Return the queued resources of some zones, or of all; none where they cannot be listed: nobody asked for them."""
    try:
        return cloud.list_queued_resources(project, zones).queued_resources
    except TpuctlError:
        return ()


def unreachable(node_id: str, zones: Sequence[str]) -> ServiceUnavailableError:
    """Return the error for a name that was not found while some zones did not answer."""
    named = ", ".join(zones[:8]) + (f" and {len(zones) - 8} more" if len(zones) > 8 else "")
    return ServiceUnavailableError(
        f"`{node_id}` was not found, but {named} could not be asked: it may be there",
        hint="try again later, or name the zone with `--zone`",
    )


def incomplete(zones: Sequence[str]) -> ServiceUnavailableError:
    """Return the error for a list in which some zones are missing."""
    return ServiceUnavailableError(
        f"the list is incomplete: {', '.join(zones)} could not be asked",
        hint="there may be nodes there that are not shown; try again later",
    )
