"""Find the node or queued resource that a user named: a name, `ZONE/NAME`, a full resource name, or a selection.

A named zone is asked for the node, else all zones are listed. What no zone has is reported as absent only if every zone
answered. The functions without `App` come first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from tpuctl.accelerators import documented_zones_of, find_accelerator_type, suggest_listed_type
from tpuctl.clock import deadline_has_passed
from tpuctl.cloud.errors import is_connection_refused
from tpuctl.errors import (
    AccessError,
    ConflictError,
    CredentialsError,
    ExitCode,
    InvalidInputError,
    InvalidRequestError,
    NodeNotFoundError,
    NodeNotInProjectError,
    NotFoundError,
    QuotaError,
    ServiceUnavailableError,
    SettingError,
    TpuctlError,
    worst_exit_code,
)
from tpuctl.models.node import QueuedState
from tpuctl.models.spec import GROUP_LABEL
from tpuctl.names import NodeName, NodeReference, check_new_node_id, group_of_slice, natural_key
from tpuctl.nodes.conditions import Condition
from tpuctl.nodes.garbage import GarbageFacts, group_resources
from tpuctl.nodes.selection import GroupMatch, check_selection_project
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpuctl.accelerators import AcceleratorType
    from tpuctl.app.app import App
    from tpuctl.cloud.tpu import NodeListing, QueuedListing, TpuClient
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.models.spec import NodeSpec
    from tpuctl.nodes.selection import Selection

_NUMBER = re.compile(r"[0-9]+")
_NAME_SIMILARITY = 0.75  # `trianer` is similar to `trainer`, `train` to `eval` is not
# An error names this many zones that did not answer.
_MOST_ZONES = 8


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
        return NodeName(self.project_of(reference), zone, reference.node_id) if zone else None

    def project_of(self, reference: NodeReference) -> str:
        """Return the project of a reference: the one that it names, else this one."""
        return reference.project or self.project

    def zones_of(self, reference: NodeReference) -> tuple[str, ...]:
        """Return the zone of a reference; none for all zones."""
        zone = reference.zone or self.zone
        return (zone,) if zone else ()


class IncompleteListError(ServiceUnavailableError):
    """Some `zones` did not answer, or refused: they may have what was not found, the node `name` or more nodes.

    `nodes` are those of the other zones, for a program.
    """

    def __init__(self, zones: Sequence[str], nodes: Sequence[Node] = (), *, name: str | None = None) -> None:
        if name is None:
            text = f"the list is incomplete: {', '.join(zones)} could not be listed"
            hint = f"nodes there are not shown; try again later, or see why with `tpuctl list --zone {zones[0]}`"
        else:
            more = f" and {len(zones) - _MOST_ZONES} more" if len(zones) > _MOST_ZONES else ""
            text = f"`{name}` was not found, but {', '.join(zones[:_MOST_ZONES])}{more} did not answer and may have it"
            hint = "try again later, or name the zone with `--zone`"
        super().__init__(text, hint=hint)
        self.zones, self.nodes = tuple(zones), tuple(nodes)


def find_node(cloud: TpuClient, place: SearchPlace, reference: NodeReference) -> Node | None:
    """Return the node of a name, in its zone or in all; None if the API answered that there is none.

    Raises `ConflictError` if there are several, and `IncompleteListError` if a zone that might have it did not answer.
    """
    return _search_node(cloud, place, reference)[0]


def get_node(cloud: TpuClient, place: SearchPlace, reference: NodeReference) -> Node:
    """Return the node of a name, as `find_node`. Raises `NotFoundError`, with a near name, if it does not exist."""
    node, others = _search_node(cloud, place, reference)
    if node is None:
        raise node_not_found_error(place, reference, others)
    return node


def _search_node(cloud: TpuClient, place: SearchPlace, reference: NodeReference) -> tuple[Node | None, Sequence[Node]]:
    """Return the node of a name, and the nodes among which it was searched; none if its zone was asked for it."""
    if name := place.name(reference):
        return cloud.find_node(name), ()
    listing = cloud.list_nodes(place.project_of(reference))
    found = only_node(listing.nodes, reference.node_id)
    if found is None and listing.unreachable:
        raise IncompleteListError(listing.unreachable, name=reference.node_id)
    return found, listing.nodes


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


def node_not_found_error(place: SearchPlace, reference: NodeReference, nodes: Iterable[Node] = ()) -> NotFoundError:
    """Return the error for a node that does not exist; `nodes` are those that may have been meant."""
    node_id = reference.node_id
    error = (
        NodeNotFoundError(node_id, name.zone)
        if (name := place.name(reference))
        else NodeNotInProjectError(node_id, place.project_of(reference))
    )
    nodes = tuple(nodes)
    if slices := slices_named(node_id, nodes):
        error.hint = (
            f"`{node_id}` is a group of {describe_slices(slices)}: name them with `'{node_id}-*'`\n{error.hint}"
        )
    elif near := near_name(node_id, (node.name.node_id for node in nodes)):
        error.hint = f"did you mean `{near}`?\n{error.hint}"
    return error


def slices_named(group: str, nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that are slices of a group, by their label and name."""
    return [
        node for node in nodes if node.labels.get(GROUP_LABEL) == group and group_of_slice(node.name.node_id) == group
    ]


def describe_slices(slices: Sequence[Node]) -> str:
    """Return how many slices a group has, and their names."""
    names = ", ".join(node.name.node_id for node in sorted(slices, key=by_zone_and_name)[:8])
    return f"{len(slices)} slice{'s' * (len(slices) > 1)} ({names}{', …' * (len(slices) > 8)})"


def near_name(node_id: str, known: Iterable[str]) -> str | None:
    """Return the known name that a mistyped one probably means; None if there is none.

    Names that differ in a number name different nodes: `sweep-1` and `sweep-2`.
    """
    numbers = _NUMBER.findall(node_id)
    names = sorted({one for one in known if one != node_id and _NUMBER.findall(one) == numbers})
    return closest_match(node_id.lower().replace("_", "-"), names, similarity=_NAME_SIMILARITY)


def unreachable_zones_error(node_id: str, zones: Sequence[str]) -> IncompleteListError:
    """Return the error for a name that was not found while some zones did not answer."""
    return IncompleteListError(zones, name=node_id)


def by_zone_and_name(node: Node) -> tuple[str, list[str | int]]:
    """Return the key that nodes are sorted by: the zone, then the name, `sweep-2` before `sweep-10`."""
    return node.name.zone, natural_key(node.name.node_id)


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


def queued_resources_or_none(cloud: TpuClient, project: str, zones: Sequence[str]) -> tuple[QueuedResource, ...]:
    """Return the queued resources of some zones, or of all. Empty if they cannot be listed: they are only extra information."""
    try:
        return list_requests(cloud, project, zones).queued_resources
    except TpuctlError:
        return ()


def find_request(cloud: TpuClient, place: SearchPlace, reference: NodeReference) -> QueuedResource | None:
    """Return the queued resource of a name in its zone or in all, as `only_request`."""
    listing = list_requests(cloud, place.project_of(reference), place.zones_of(reference))
    return only_request(listing, reference.node_id)


def only_request(listing: QueuedListing, name: str) -> QueuedResource | None:
    """Return the queued resource of a name: its own id, the id of one of its nodes, or their prefix. None if there is none.

    Raises `ConflictError` if there are several, and `IncompleteListError` if a zone did not answer.
    """
    requests = listing.queued_resources
    own = [request for request in requests if request.queued_resource_id == name]
    found = own or [request for request in requests if request.is_named(name) or request.owns(name)]
    if len(found) > 1:
        where = ", ".join(f"{request.zone}/{request.queued_resource_id} ({request.state})" for request in found)
        raise ConflictError(
            f"there are {len(found)} queued resources `{name}`: {where}", hint="name one of them: `ZONE/NAME`"
        )
    if not found and listing.unreachable:
        raise IncompleteListError(listing.unreachable, name=name)
    return found[0] if found else None


def request_not_found_error(place: SearchPlace, reference: NodeReference) -> NotFoundError:
    """Return the error for a queued resource that does not exist."""
    where = next(iter(place.zones_of(reference)), f"any zone of project {place.project_of(reference)}")
    return NotFoundError(
        f"no queued resource `{reference.node_id}` in {where}",
        hint="`tpuctl queue list` shows all; `tpuctl list` shows nodes",
    )


def search_requested_name(
    finder: TpuClient, project: str, reference: NodeReference, zones: Sequence[str]
) -> NodeName | None:
    """Return the full name of a node that exists, or is requested, in one of the zones, or in any; None if there is none.

    Raises `ConflictError` if it exists, or is requested, in several zones: each of them would bill. Raises
    `IncompleteListError` if a zone that might have it did not answer.
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
        raise IncompleteListError(missing, name=node_id)
    return None


def near_node(app: App, reference: NodeReference) -> Node | None:
    """Return the node that a name which does not exist probably means; None if there is none, or the API does not answer."""
    try:
        nodes = app.services.client.list_nodes(reference.project or app.project).nodes
    except TpuctlError:
        return None  # the name itself was looked up without a failure
    near = near_name(reference.node_id, (node.name.node_id for node in nodes))
    return next((node for node in nodes if node.name.node_id == near), None)


def locate_for_create(
    app: App, text: str, spec: NodeSpec | None, *, wait: bool = False
) -> tuple[NodeName, Node | None]:
    """Return the full name of a node, existing or new, and the node if it exists.

    A zone from gcloud's configuration is used only for a new node: an existing one is found in any zone. With `wait`
    the node counts as missing if the API does not answer for the named zone, because the caller polls again. A refused
    connection and a passed deadline are still raised.
    """
    reference, place = app.reference(text), app.place
    name, began = place.name(reference), app.clock.monotonic()
    try:
        found = find_node(app.services.client, place, reference)
    except (ServiceUnavailableError, QuotaError) as error:
        if name is None or not wait or is_connection_refused(error) or deadline_has_passed():
            raise
        app.silent_since = began if app.silent_since is None else app.silent_since
        return name, None
    if found is not None:
        return found.name, found
    name = name or NodeName(place.project_of(reference), zone_to_create(app, reference, spec), reference.node_id)
    check_may_be_created(app, name)
    return name, None


def check_may_be_created(app: App, name: NodeName) -> None:
    """Raise `InvalidInputError` for a name that no new node can have; not for one that a node or a request had before."""
    try:
        check_new_node_id(name.node_id)
    except InvalidInputError:
        if app.services.journal.past(name).spec is None and app.services.client.find_queued_resource(name) is None:
            raise


def zone_to_create(app: App, reference: NodeReference, spec: NodeSpec | None) -> str:
    """Return the zone for a new node: of the settings, of past commands, or the only one that offers its type.

    Says which zone it is unless it is that of the settings. Raises `SettingError`, with zones that offer the type, if none is
    known.
    """
    accelerator = find_accelerator_type(spec.accelerator_type) if spec else None
    zone = likely_zone(app, reference, accelerator)
    if zone is not None:
        return zone
    zones = documented_zones_of(accelerator) if accelerator and accelerator.is_listed else ()
    if accelerator and len(zones) == 1:
        app.terminal.note(f"{reference.node_id}: in {zones[0]}, the only zone with {accelerator.name}")
        return zones[0]
    if spec and (near := suggest_listed_type(spec.accelerator_type)):
        raise InvalidInputError(
            f"`{spec.accelerator_type}` is not a known accelerator type", hint=f"did you mean `{near}`?"
        )
    error = app.missing_zone()
    if isinstance(error, SettingError):
        ways = [f"try all zones: `tpuctl up {reference.node_id} --zone any`"]
        ways += [f"{accelerator.name} is offered in {', '.join(zones[:6])}"] if accelerator and zones else []
        error.hint = "\n".join([*ways, error.hint or ""])
    raise error


def likely_zone(app: App, reference: NodeReference, accelerator: AcceleratorType | None = None) -> str | None:
    """Return the zone of the settings, else that of past commands, which is said; None if none is known.

    A zone of past commands that is known not to offer the type does not count.
    """
    if app.place.default_zone is not None:
        return app.place.default_zone
    zone = _remembered_zone(app, reference)
    offered = documented_zones_of(accelerator, single_tenant=True) if accelerator else ()
    if zone is None or (offered and zone not in offered):
        return None
    app.terminal.note(f"{reference.node_id}: in {zone}, where it was before")
    return zone


def _remembered_zone(app: App, reference: NodeReference) -> str | None:
    """Return the zone in which past commands had a node of that name; None unless it was one, in which they did not fail."""
    journal = app.services.journal
    found = journal.without_losers(journal.namesakes(app.place.project_of(reference), reference.node_id))
    if len({name.zone for name in found}) != 1 or journal.past(found[0]).has_failed_creation:
        return None
    return found[0].zone


class WaitTarget(NamedTuple):
    """A node to wait for or to watch; `is_queued`: a queued resource requests, or requested, it."""

    name: NodeName
    is_queued: bool = False


def locate_for_wait(app: App, texts: Iterable[str], *, goal: Condition) -> list[WaitTarget]:
    """Return the nodes to wait for, with each node of a queued resource, but not those that no zone has if the goal is gone."""
    # One list for all names.
    list_zones = cache(partial(list_requests, app.services.client))
    return [target for text in texts for target in _locate_for_wait(app, text, goal, list_zones)]


def _locate_for_wait(
    app: App, text: str, goal: Condition, list_zones: Callable[[str, tuple[str, ...]], QueuedListing]
) -> tuple[WaitTarget, ...]:
    reference, place = app.reference(text, allow_queued=True), app.place
    project, named = place.project_of(reference), place.name(reference)
    found = None if named else find_node(app.services.client, place, reference)
    if goal.is_usable and found is None:
        try:
            request = only_request(list_zones(project, place.zones_of(reference)), reference.node_id)
        except CredentialsError:
            raise
        except AccessError:
            # A user who may see nodes may lack the permission to list queued resources.
            request = None
        except (ServiceUnavailableError, QuotaError):
            if named is None:
                raise
            request = None
        if request and (named is None or request.owns(named.node_id) or app.services.client.find_node(named) is None):
            names = request.full_names(project)
            its_own = [each for each in names if each.node_id == reference.node_id]
            return tuple(WaitTarget(each, is_queued=True) for each in its_own or names)
    name = found.name if found else named
    if name is None and goal is not Condition.GONE:
        raise node_not_found_error(place, reference)
    return () if name is None else (WaitTarget(name),)


def locate_for_watch(app: App, text: str) -> WaitTarget:
    """Return the node to watch. It may not exist: it may be requested, by another client too, or another run recreates it."""
    reference, place = app.reference(text), app.place
    name, (found, others) = place.name(reference), _search_node(app.services.client, place, reference)
    if found is not None:
        return WaitTarget(found.name)
    try:
        requested = search_requested_name(
            app.services.client, place.project_of(reference), reference, (name.zone,) if name else ()
        )
    except CredentialsError:
        raise
    except AccessError:
        # A user who may see nodes may lack the permission to list queued resources.
        if name is None:
            raise
        requested = None
    if requested is not None:
        return WaitTarget(requested, is_queued=True)
    if name is not None:
        return WaitTarget(name)
    zone = _remembered_zone(app, reference) or place.default_zone
    if zone is None:
        raise node_not_found_error(place, reference, others)
    return WaitTarget(NodeName(place.project_of(reference), zone, reference.node_id))


@dataclass(frozen=True, slots=True)
class SelectedNodes:
    """The nodes that a selection matched, by zone and name, and the zones that did not answer."""

    nodes: tuple[Node, ...]
    unreachable: tuple[str, ...] = ()

    def complete(self) -> tuple[Node, ...]:
        """Return the nodes. Raises `ServiceUnavailableError` if a zone did not answer: nodes of it may be missing."""
        if self.unreachable:
            raise IncompleteListError(self.unreachable)
        return self.nodes


def report_silent_zones(app: App, zones: Sequence[str], code: int) -> int:
    """Say which zones did not answer, after work on what the others have. Return the worse of both exit codes."""
    if not zones:
        return code
    error = IncompleteListError(zones)
    app.show_error(error)
    return worst_exit_code([error.exit_code, ExitCode(code)])


def select_nodes(app: App, selection: Selection, *, may_be_none: bool = False) -> SelectedNodes:
    """Return the nodes that a selection matches now.

    Raises `NotFoundError` for a name that does not exist, and if no node matches, unless `may_be_none`. Raises
    `ServiceUnavailableError` if nothing was found and a zone did not answer.
    """
    if selection.is_by_name:
        return SelectedNodes(
            tuple({node.name: node for node in (app.services.find(name.text) for name in selection.names)}.values())
        )
    selection, owner = bind_names(app, selection), selection_owner(app, selection)
    listing = app.services.client.list_nodes(app.project, app.zones)
    there = sorted(listing.nodes, key=by_zone_and_name)
    _check_names_exist(app, selection, there, listing.unreachable, may_be_none=may_be_none)
    now = app.now()
    found = tuple(node for node in there if selection.matches(node, now, owner))
    note_left_out(app, selection, [node.name for node in there], [node.name for node in found])
    if not found and listing.unreachable:
        raise IncompleteListError(listing.unreachable)
    if not found and not may_be_none:
        raise nothing_selected_error(app, selection)
    return SelectedNodes(found, listing.unreachable)


def narrow_listing(
    app: App, selection: Selection, listing: NodeListing, requests: Sequence[QueuedResource]
) -> tuple[NodeListing, tuple[QueuedResource, ...]]:
    """Return the nodes and queued resources of a list that a selection matches, and notes names that match nothing.

    A queued resource matches by its nodes if it has any.
    """
    if selection.is_all and not selection.has_conditions:
        return listing, tuple(requests)
    selection, owner = bind_names(app, selection), selection_owner(app, selection)
    facts = GarbageFacts(project=app.project, nodes=listing.nodes, requests=requests)
    groups, now = group_resources(facts), app.now()
    there = [name for group in groups for name in group.all_names]
    nodes = tuple(node for node in listing.nodes if selection.matches(node, now, owner))
    found = {node.name for node in nodes}
    matching = tuple(
        group.request
        for group in groups
        if group.request is not None
        and (
            not found.isdisjoint(group.names)
            if group.nodes
            else selection.matches_group(group, now, owner) is not GroupMatch.NONE
        )
    )
    note_left_out(
        app, selection, there, [*found, *(name for request in matching for name in request.full_names(app.project))]
    )
    return replace(listing, nodes=nodes), matching


def select_nodes_and_requests(
    app: App, selection: Selection
) -> tuple[tuple[Node, ...], tuple[QueuedResource, ...], tuple[str, ...]]:
    """Return the nodes that a selection matches, the matching queued resources without a node, and the silent zones."""
    listing = app.services.client.list_nodes(app.project, app.zones)
    requests = queued_resources_or_none(app.services.client, app.project, app.zones)
    narrowed, matching = narrow_listing(app, selection, listing, requests)
    there = {node.name for node in listing.nodes}
    waiting = tuple(request for request in matching if there.isdisjoint(request.full_names(app.project)))
    nodes = tuple(sorted(narrowed.nodes, key=by_zone_and_name))
    return nodes, waiting, listing.unreachable


def nothing_selected_error(app: App, selection: Selection) -> NotFoundError:
    """Return the error for a selection that matches no node although every zone answered."""
    return NotFoundError(
        f"no node of project {app.project} matches: {selection}", hint="run `tpuctl list` to see all nodes"
    )


def bind_names(app: App, selection: Selection) -> Selection:
    """Return the selection with the zone of the settings for names without one, as for a command that only names nodes.

    Raises `InvalidInputError` for a name of another project.
    """
    check_selection_project(selection, app.project)
    if app.zone_flags or all(name.is_glob or name.zone for name in selection.names):
        return selection
    names = (name if name.is_glob or name.zone else replace(name, zone=app.place.zone) for name in selection.names)
    return replace(selection, names=tuple(names))


def selection_owner(app: App, selection: Selection) -> str | None:
    """Return the label of the user for `--mine`; None if the selection does not need it."""
    return app.services.owner_label if selection.is_mine else None


def _check_names_exist(
    app: App, selection: Selection, there: Sequence[Node], unreachable: Sequence[str], *, may_be_none: bool
) -> None:
    """Check the names of a selection that are no globs: each must exist, unless `may_be_none`, and once.

    Raises `NotFoundError`, `ConflictError`, and `ServiceUnavailableError` if a zone that might have it did not answer.
    """
    for pattern in selection.names:
        if pattern.is_glob:
            continue
        found = [node.name for node in there if pattern.matches(node.name)]
        if len(found) > 1:
            raise several_nodes_error(pattern.node_id, found)
        if not found and unreachable:
            raise IncompleteListError(unreachable, name=pattern.node_id)
        if not found and not may_be_none:
            reference = NodeReference(pattern.node_id, pattern.zone)
            raise node_not_found_error(SearchPlace(app.project), reference, there)


def note_left_out(app: App, selection: Selection, there: Sequence[NodeName], found: Sequence[NodeName]) -> None:
    """Note globs that match nothing, and names that a condition leaves out."""
    for pattern in selection.unmatched_names(there):
        if pattern.is_glob and len(selection.names) > 1:
            app.terminal.note(f"`{pattern.text}` matches nothing")
    for pattern in selection.unmatched_names(found):
        if not pattern.is_glob and any(map(pattern.matches, there)):
            app.terminal.note(f"`{pattern.text}` does not meet the conditions: left alone")
