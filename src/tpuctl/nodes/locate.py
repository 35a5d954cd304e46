"""Find the node that a name refers to, in one zone or in all."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.errors import (
    AccessError,
    ConflictError,
    CredentialsError,
    InvalidRequestError,
    NodeNotFoundError,
    NodeNotInProjectError,
    NotFoundError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.models.node import QueuedState
from tpuctl.names import NodeName, NodeReference, closest_match

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpuctl.cloud.tpu import NodeListing, QueuedListing, TpuClient
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource


_NAME_SIMILARITY = 0.75  # `trainr` is similar to `trainer`, `train` to `eval` is not


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """Where to search: the project, and the zone if the user named one."""

    project: str
    zone: str | None = None
    # The zone of gcloud's configuration. It is used to create nodes; it does not hide nodes of other zones.
    default_zone: str | None = None

    def name(self, reference: NodeReference) -> NodeName | None:
        """Return the full name of a node whose zone the user named."""
        zone = reference.zone or self.zone
        return NodeName(reference.project or self.project, zone, reference.node_id) if zone else None


def locate_node(finder: TpuClient, place: SearchPlace, reference: NodeReference) -> Node:
    """Return the node of a name.

    Raises `NodeNotFoundError` if it does not exist, `ConflictError` if there are several, and
    `ServiceUnavailableError` if a zone that might have it did not answer.
    """
    name = place.name(reference)
    if name is not None:
        node = finder.find_node(name)
        if node is None:
            raise NodeNotFoundError(name.node_id, name.zone)
        return node
    listing = finder.list_nodes(reference.project or place.project)
    node = _only_node_of(listing, reference)
    if node is None:
        error = NodeNotInProjectError(reference.node_id, reference.project or place.project)
        if near := _near_name(reference.node_id, listing.nodes):
            error.hint = f"did you mean `{near}`?\n{error.hint}"
        raise error
    return node


def _near_name(node_id: str, nodes: Iterable[Node]) -> str | None:
    """Return the existing name that a mistyped one probably means; None if there is none.

    Names that differ in a number name different nodes.
    """
    numbers = re.findall(r"\d+", node_id)
    names = sorted(node.name.node_id for node in nodes if re.findall(r"\d+", node.name.node_id) == numbers)
    return closest_match(node_id.lower().replace("_", "-"), names, similarity=_NAME_SIMILARITY)


def search_node(finder: TpuClient, place: SearchPlace, reference: NodeReference) -> Node | None:
    """Search a node in all zones; None if every zone answered that it has none."""
    return _only_node_of(finder.list_nodes(reference.project or place.project), reference)


def _only_node_of(listing: NodeListing, reference: NodeReference) -> Node | None:
    found = only_node(listing.nodes, reference.node_id)
    if found is None and listing.unreachable:
        raise unreachable_zones_error(reference.node_id, listing.unreachable)
    return found


def search_requested_name(
    finder: TpuClient, project: str, reference: NodeReference, zones: Sequence[str]
) -> NodeName | None:
    """Return the full name of a node that exists, or is requested, in one of the zones, or in any; None if there is none.

    Raises `ConflictError` if it exists, or is requested, in several zones: each of them would bill. Raises
    `ServiceUnavailableError` if a zone that might have it did not answer.
    """
    nodes, node_id = finder.list_nodes(project, zones), reference.node_id
    node = only_node(nodes.nodes, node_id)
    try:
        requests = finder.list_queued_resources(project, zones)
    except CredentialsError:
        raise
    except AccessError:
        # A user who may see nodes may lack the permission to list queued resources.
        if node is None:
            raise
        return node.name
    owners = [request for request in requests.queued_resources if request.owns(node_id)]
    alive = [one for one in owners if not (one.state.is_dead or one.state is QueuedState.DELETING)]
    places = {request.zone: f"{request.zone} (queued resource {request.state})" for request in alive}
    if node is not None:
        places[node.name.zone] = f"{node.name.zone} ({node.state})"
    if len(places) > 1:
        raise ConflictError(
            f"`{node_id}` exists, or is requested, in {len(places)} zones: {', '.join(places.values())}",
            hint=f"`tpuctl down {node_id}` cancels a race, and `tpuctl down ZONE/{node_id}` one of them; `--race` goes on "
            "with a race",
        )
    if places:
        return NodeName(project, next(iter(places)), node_id)
    if owners:  # records of dead ones
        return NodeName(project, owners[0].zone, node_id)
    if missing := tuple(dict.fromkeys((*nodes.unreachable, *requests.unreachable))):
        raise unreachable_zones_error(node_id, missing)
    return None


def only_node(nodes: Iterable[Node], node_id: str) -> Node | None:
    """Return the only node of a name in a list, or None. Raises `ConflictError` if there are several."""
    found = [node for node in nodes if node.name.node_id == node_id]
    if len(found) > 1:
        raise several_nodes_error(node_id, [node.name for node in found])
    return found[0] if found else None


def several_nodes_error(node_id: str, found: Sequence[NodeName]) -> ConflictError:
    """Return the error for a name that several nodes have."""
    where = ", ".join(f"{name.zone}/{name.node_id}" for name in found)
    return ConflictError(
        f"there are {len(found)} nodes `{node_id}`: {where}", hint="name the zone: `--zone ZONE` or `ZONE/NODE`"
    )


def queued_resources_or_none(cloud: TpuClient, project: str, zones: Sequence[str]) -> tuple[QueuedResource, ...]:
    """Return the queued resources of some zones, or of all. Empty if they cannot be listed: they are only extra information."""
    try:
        return list_requests(cloud, project, zones).queued_resources
    except TpuctlError:
        return ()


def list_requests(cloud: TpuClient, project: str, zones: Sequence[str]) -> QueuedListing:
    """Return the queued resources of some zones, or of all, as v2alpha1 shows them: with best-effort and flex-start.

    As v2 shows them if the project may not use v2alpha1.
    """
    try:
        return cloud.list_queued_resources(project, zones, version="v2alpha1")
    except CredentialsError:
        raise
    except (AccessError, NotFoundError, InvalidRequestError):
        return cloud.list_queued_resources(project, zones)


def find_request(cloud: TpuClient, place: SearchPlace, reference: NodeReference) -> QueuedResource | None:
    """Return the queued resource of a name: its own id, the id of one of its nodes, or their prefix. None if there is none.

    Raises `ConflictError` if there are several, and `ServiceUnavailableError` if a zone did not answer.
    """
    project, zone = reference.project or place.project, reference.zone or place.zone
    listing = list_requests(cloud, project, (zone,) if zone else ())
    own = [request for request in listing.queued_resources if request.queued_resource_id == reference.node_id]
    found = own or [
        request
        for request in listing.queued_resources
        if request.is_named(reference.node_id) or request.owns(reference.node_id)
    ]
    if len(found) > 1:
        where = ", ".join(f"{request.zone}/{request.queued_resource_id} ({request.state})" for request in found)
        raise ConflictError(
            f"there are {len(found)} queued resources `{reference.node_id}`: {where}",
            hint="name one of them: `ZONE/NAME`",
        )
    if not found and listing.unreachable:
        raise unreachable_zones_error(reference.node_id, listing.unreachable)
    return found[0] if found else None


def request_not_found_error(place: SearchPlace, reference: NodeReference) -> NotFoundError:
    """Return the error for a queued resource that does not exist."""
    zone = reference.zone or place.zone
    where = zone or f"any zone of project {reference.project or place.project}"
    return NotFoundError(
        f"no queued resource `{reference.node_id}` in {where}",
        hint="`tpuctl queue list` shows all; `tpuctl list` shows nodes",
    )


def unreachable_zones_error(node_id: str, zones: Sequence[str]) -> ServiceUnavailableError:
    """Return the error for a name that was not found while some zones did not answer."""
    named = ", ".join(zones[:8]) + (f" and {len(zones) - 8} more" if len(zones) > 8 else "")
    return ServiceUnavailableError(
        f"`{node_id}` was not found, but {named} did not answer and may have it",
        hint="try again later, or name the zone with `--zone`",
    )


class IncompleteListError(ServiceUnavailableError):
    """Some `zones` did not answer, or refused: the list may lack nodes. `nodes` are those of the other zones, for a program."""

    def __init__(self, zones: Sequence[str], nodes: Sequence[Node] = ()) -> None:
        super().__init__(
            f"the list is incomplete: {', '.join(zones)} could not be listed",
            hint=f"nodes there are not shown; try again later, or see why with `tpuctl list --zone {zones[0]}`",
        )
        self.zones, self.nodes = tuple(zones), tuple(nodes)
