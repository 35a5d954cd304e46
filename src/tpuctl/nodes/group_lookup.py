"""Find what a name refers to, for a deletion: a node, the queued resources that own or request it, and its race."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.errors import AccessError, ConflictError, NodeNotInProjectError
from tpuctl.names import NodeName
from tpuctl.nodes.lookup import unreachable_zones_error
from tpuctl.nodes.race import find_race
from tpuctl.nodes.race_rules import race_id_of
from tpuctl.nodes.resource_group import ResourceGroup, belongs_to, is_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.names import NodeReference
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.lookup import SearchPlace


def find_group(context: ActionContext, place: SearchPlace, reference: NodeReference) -> ResourceGroup | None:
    """Return the node or queued resource of a name; None if every zone answered that it has neither.

    A queued resource is found by the names of its nodes, by their prefix and by its own name. A reference with a zone means
    nothing in other zones, whereas a zone of the settings does not divide a race. Raises `ConflictError` if the name
    is ambiguous or belongs to another zone than the one named, and `ServiceUnavailableError` if a zone did not answer.
    """
    project, name, cloud = reference.project or place.project, place.name(reference), context.cloud
    node = cloud.find_node(name) if name is not None and reference.kind != "queuedResources" else None
    nodes: Sequence[Node] = (node,) if node else ()
    blind: tuple[str, ...] = ()
    if node is None:
        listing = cloud.list_nodes(project)
        nodes, blind = listing.nodes, listing.unreachable
    zones = (node.name.zone,) if node else ()
    try:
        queued = cloud.list_queued_resources(project, zones)
    except AccessError:
        # A user who may delete nodes may lack the permission to list queued resources. The node itself names its owner.
        if node is None or node.queued_resource:
            raise
        return ResourceGroup(project, (node,), asked=reference.node_id)
    requests, blind = queued.queued_resources, tuple(dict.fromkeys((*blind, *queued.unreachable)))
    if node is not None and any(len(one.node_ids) > 1 and one.owns(reference.node_id) for one in requests):
        siblings = cloud.list_nodes(project, zones)
        if siblings.unreachable:
            raise unreachable_zones_error(reference.node_id, siblings.unreachable)
        nodes = (node, *(one for one in siblings.nodes if one.name != node.name))
    found: list[ResourceGroup] = []
    if reference.kind != "queuedResources":
        found += _groups_named(nodes, requests, reference, project)
    if node is not None and node.queued_resource and blind and found[0].request is None:
        raise unreachable_zones_error(node.name.node_id, blind)
    if node is not None and reference.kind == "nodes":
        found = found[:1]
    elif reference.kind != "nodes":
        named = [request for request in requests if request.is_named(reference.node_id)]
        owners = {request.name for group in found for request in group.requests}
        found += [request_group(request, nodes, reference, project) for request in named if request.name not in owners]
    group = _choose(context, found, name, reference)
    if group is None and blind:
        raise unreachable_zones_error(reference.node_id, blind)
    return group


def _choose(
    context: ActionContext, found: Sequence[ResourceGroup], name: NodeName | None, reference: NodeReference
) -> ResourceGroup | None:
    """Return the group that is meant, with its race; `name` has the zone that the user named. Raises `ConflictError`."""
    is_alone = reference.zone is not None
    here = [group for group in found if name is None or group.zone == name.zone]
    if here and len({_race_id(group) for group in found}) == 1 and _race_id(found[0]):
        # Requests of one race are one group, if they are this user's.
        group = _with_race(context, here[0], of_owner=name is None, is_alone=is_alone)
        names = group.race.names if group.race else ()
        if name is not None or {other.name for other in found} <= {here[0].name, *names}:
            return group
    if len(here) == 1 and (name is not None or len(found) == 1):
        return _with_race(context, here[0], of_owner=name is None, is_alone=is_alone)
    if found:
        raise _ambiguous(here or found, name, reference)
    return None


def _race_id(group: ResourceGroup) -> str:
    """Return the id of the race that its request is one of; empty if it is not."""
    return race_id_of(group.request, group.name.node_id) if group.request else ""


def _with_race(
    context: ActionContext, group: ResourceGroup, *, of_owner: bool, is_alone: bool = False
) -> ResourceGroup:
    """Return the group with its race, if that has other requests or has not ended; `is_alone`: with what is left."""
    race_id = _race_id(group)
    race = find_race(context, group.name, race_id, of_owner=of_owner) if race_id else None
    if race is None or not is_alone:
        return replace(group, race=race)
    left = [name.zone for name in race.names if name != group.name and (name in race.requests or name in race.sent)]
    return replace(group, left_zones=tuple(left))


def _groups_named(
    nodes: Sequence[Node], requests: Sequence[QueuedResource], reference: NodeReference, project: str
) -> Iterator[ResourceGroup]:
    """Yield each existing or requested node of a name with the request that owns it, then other requests for that name."""
    there = {node.name: node for node in nodes if node.name.node_id == reference.node_id}
    asked_for = [request for request in requests if request.owns(reference.node_id)]
    for name in dict.fromkeys((*there, *(NodeName(project, request.zone, reference.node_id) for request in asked_for))):
        node = there.get(name)
        here = [request for request in asked_for if request.zone == name.zone]
        # The node names its owner; else it is the first request.
        owner = next((request for request in here if node and is_of(node, request)), next(iter(here), None))
        others = [request for request in here if request is not owner]
        if node or not others:
            own: tuple[Node, ...] = (node,) if node else ()
            if owner:
                own += tuple(one for one in nodes if one is not node and belongs_to(one, owner))
            group = ResourceGroup(project, own, owner, _next_request(reference.node_id, others), reference.node_id)
            yield group
            others = [request for request in others if request is not group.next_request]
        elif owner:
            others = [owner, *others]
        for request in others:
            yield request_group(request, nodes, reference, project)


def _next_request(node_id: str, others: Sequence[QueuedResource]) -> QueuedResource | None:
    """Return tpuctl's own request for the same node, if there is one besides the owner."""
    return next((request for request in others if request.is_from_tpuctl and request.owns(node_id)), None)


def request_group(
    request: QueuedResource, nodes: Sequence[Node], reference: NodeReference, project: str
) -> ResourceGroup:
    """Return a queued resource that was named, with those of its nodes that exist."""
    own = tuple(node for node in nodes if belongs_to(node, request) and request.owns(node.name.node_id))
    return ResourceGroup(project, own, request, asked=reference.node_id, is_request_named=True)


def complete_group(context: ActionContext, group: ResourceGroup, requests: Sequence[QueuedResource]) -> ResourceGroup:
    """Return a listed group with what a deletion of its name includes: the next request for its node, and its race.

    `requests` are those of all zones.
    """
    request, is_single = group.request, len(group.nodes) == 1
    if request is None or (is_single and len(request.node_ids) == 1):
        name = group.name
        others = [one for one in requests if one is not request and one.zone == name.zone and one.owns(name.node_id)]
        group = replace(group, next_request=_next_request(name.node_id, others))
    else:
        group = replace(group, is_request_named=True)
    return _with_race(context, replace(group, asked=group.id), of_owner=False)


def check_whole_request(group: ResourceGroup, *, all_nodes: bool) -> None:
    """Raise `ConflictError` if the deletion includes other nodes, unless `all_nodes`."""
    request = group.request
    if request is None or len(request.node_ids) < 2 or all_nodes:
        return
    if group.is_request_named:
        ids = request.node_ids
        text = f"the queued resource `{request.queued_resource_id}` has {len(ids)} nodes: {', '.join(ids)}"
    else:
        node_id = group.name.node_id
        others = ", ".join(other for other in request.node_ids if other != node_id)
        text = f"`{node_id}` belongs to the queued resource `{request.queued_resource_id}`, which also has {others}"
    raise ConflictError(text, hint="add `--all-nodes` to delete them all")


def _full_name(group: ResourceGroup) -> str:
    """Return the resource name of what the user named."""
    return group.resource_name if group.is_request_named else str(group.name)


def _ambiguous(found: Sequence[ResourceGroup], wanted: NodeName | None, reference: NodeReference) -> ConflictError:
    """Return the error for a name that belongs to another zone, or to several resources."""
    things = [
        f"the queued resource {group.request.zone}/{group.request.queued_resource_id} ({group.request.state})"
        if group.request and group.is_request_named
        else f"{group.name.zone}/{group.name.node_id}"
        for group in found
    ]
    zones = {group.name.zone for group in found}
    if wanted is not None and wanted.zone not in zones:
        first = found[0]
        full = _full_name(first) if first.is_request_named else f"{first.name.zone}/{first.name.node_id}"
        return ConflictError(
            f"`{reference.node_id}` is not in {wanted.zone}; found {', '.join(things)}",
            hint=f"to delete that one, run `tpuctl down {full}`",
        )
    if len(zones) == len(found):
        hint = "name the zone: `--zone ZONE` or `ZONE/NODE`"
    else:
        full_names = map(_full_name, found)
        hint = "use a full name: " + " or ".join(f"`tpuctl down {full_name}`" for full_name in full_names)
    kind = "nodes" if not any(group.is_request_named for group in found) else "resources"
    return ConflictError(f"there are {len(found)} {kind} `{reference.node_id}`: {', '.join(things)}", hint=hint)


def absent_error(reference: NodeReference, place: SearchPlace) -> NodeNotInProjectError:
    """Return the error of a strict `delete` for a name that does not exist."""
    hint = "`--ignore-not-found` makes this a success; `tpuctl list` shows all nodes"
    return NodeNotInProjectError(reference.node_id, reference.project or place.project, hint=hint)
