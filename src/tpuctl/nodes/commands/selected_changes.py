"""Changes of what a selection matches: what is deleted, the table and the question before it, the look right before it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.errors import AccessError, ConflictError, CredentialsError
from tpuctl.models.billing import sum_dollars
from tpuctl.names import NodeName, NodeReference, natural_key
from tpuctl.nodes.actuator import NoLongerSelectedError
from tpuctl.nodes.costs import CostFacts, node_rates
from tpuctl.nodes.garbage import GarbageFacts, group_resources
from tpuctl.nodes.group_lookup import complete_group, find_group
from tpuctl.nodes.lookup import (
    bind_names,
    list_requests,
    note_left_out,
    selection_owner,
    several_nodes_error,
    unreachable_zones_error,
)
from tpuctl.nodes.named_deletion import search_place
from tpuctl.nodes.queue_rendering import waiting_row
from tpuctl.nodes.race_rules import race_id_of
from tpuctl.nodes.rendering import NODE_COLUMNS, node_rows
from tpuctl.nodes.selection import GroupMatch, Selection
from tpuctl.output.tables import choose_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.models.billing import Dollars
    from tpuctl.models.node import Node
    from tpuctl.models.queued import QueuedResource
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.costs import NodeRate
    from tpuctl.nodes.resource_group import ResourceGroup

_TABLE = choose_columns(NODE_COLUMNS, "name,zone,type,state,age,owner,price,note", sort=None, is_wide=False)
# So many names stand in the question.
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionChoice:
    """What a command deletes, the names that do not exist, and the zones that did not answer."""

    selection: Selection
    targets: tuple[ResourceGroup, ...]
    missing: tuple[NodeReference, ...] = ()
    unreachable: tuple[str, ...] = ()
    requests: tuple[QueuedResource, ...] = ()
    # Matches that are left alone, because they are kept and not named.
    kept: tuple[NodeName, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are deleted."""
        return [node for group in self.targets for node in group.nodes]

    @property
    def waiting(self) -> list[QueuedResource]:
        """The queued resources that have no node."""
        return [group.request for group in self.targets if group.request and not group.nodes]

    def require_selected(self, app: App, current: ResourceGroup) -> None:
        """Raise `NoLongerSelectedError` if a group as it was just read is not one of the selected any more."""
        names = set(current.names)
        for group in self.targets:
            if names.isdisjoint(group.names) or current.is_being_deleted:
                continue  # another one; or deleted by another client, or with the first target of its race
            if _identity(current) - _identity(group):
                raise NoLongerSelectedError(group.id, "was recreated, or got nodes,")
            matched = self.selection.matches_group(current, app.now(), selection_owner(app, self.selection))
            is_kept = self.selection.leaves_kept(current.described, current.all_names)
            if is_kept or matched is not GroupMatch.ALL:
                raise NoLongerSelectedError(group.id, f"became {current.state}, or got other labels,")


def _identity(group: ResourceGroup) -> set[object]:
    """Return which resources a group has; the states may change."""
    request = {(group.request.name, group.request.created)} if group.request else set()
    return {*request, *((node.name, node.id) for node in group.nodes)}


def select_groups(app: App, context: ActionContext, selection: Selection) -> DeletionChoice:
    """Return what a selection deletes: nodes, and queued resources of which every node matches, with or without a node.

    Notes a queued resource that matches only in part. Raises `ConflictError` for a name that several nodes have, or that
    only another zone has, and `ServiceUnavailableError` for a name that was not found if a zone did not answer. Without the
    permission to list queued resources, warns of it, and raises `AccessError` for what is not found.
    """
    selection, owner = bind_names(app, selection), selection_owner(app, selection)
    client, project, zones = app.services.client, app.project, app.zones
    nodes = client.list_nodes(project, zones)
    requests: tuple[QueuedResource, ...] = ()
    unreachable = nodes.unreachable
    refused: AccessError | None = None
    try:
        queued = list_requests(client, project, zones)
        requests, unreachable = queued.queued_resources, tuple(dict.fromkeys((*unreachable, *queued.unreachable)))
    except CredentialsError:
        raise
    except AccessError as error:
        # A user who may delete nodes may lack the permission to list queued resources. A node names its owner itself.
        if any(node.queued_resource for node in nodes.nodes):
            raise
        refused = error
    facts = GarbageFacts(project=project, nodes=nodes.nodes, requests=requests, unreachable=frozenset(unreachable))
    groups = sorted(group_resources(facts), key=lambda group: (group.zone, natural_key(group.id)))
    now = app.now()
    chosen: list[ResourceGroup] = []
    kept: list[NodeName] = []
    for group in groups:
        match selection.matches_group(group, now, owner):
            case GroupMatch.ALL if selection.leaves_kept(group.described, group.all_names):
                kept += group.names
            case GroupMatch.ALL:
                chosen.append(group)
            case GroupMatch.SOME:
                what = f"queued resource `{group.request.queued_resource_id}`" if group.request else f"`{group.id}`"
                app.terminal.note(f"{what} in {group.zone} is left alone: not all of its nodes match")
            case GroupMatch.NONE:
                pass
    there = [name for group in groups for name in group.all_names]
    missing = _missing_names(selection, groups, unreachable)
    if refused is not None:
        if missing or not chosen:
            raise refused  # what is not found may be a request that waits
        app.terminal.warn(f"requests that wait for nodes are left alone: {refused.message}")
    for reference in missing:
        _check_is_in_no_zone(app, context, reference)
    note_left_out(app, selection, there, [name for group in chosen for name in group.all_names])
    _note_kept(app, kept)
    own_requests = [group.request for group in chosen if group.request]
    targets = [complete_group(context, group, own_requests) for group in chosen]
    others = {name for group in groups if group not in chosen for name in group.names}
    for index, target in enumerate(targets):
        # The other zones of a race belong to it only if they are selected too.
        is_whole = not (app.zones or unreachable) and target.race is not None and others.isdisjoint(target.race.names)
        targets[index] = target if is_whole else replace(target, race=None)
    return DeletionChoice(
        selection=selection,
        targets=tuple(targets),
        missing=tuple(missing),
        unreachable=unreachable,
        requests=requests,
        kept=tuple(kept),
    )


def without_kept(app: App, selection: Selection, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that a command may interrupt, and note the kept ones that the selection does not name."""
    kept = [node for node in nodes if selection.leaves_kept([node], [node.name])]
    _note_kept(app, [node.name for node in kept])
    return [node for node in nodes if node not in kept]


def _note_kept(app: App, names: Sequence[NodeName]) -> None:
    if names:
        theirs = "its label `tpuctl-keep` keeps it" if len(names) == 1 else "their label `tpuctl-keep` keeps them"
        app.terminal.note(f"left alone: {name_nodes(names)}: {theirs}; only an exact name selects a kept node")


def _missing_names(
    selection: Selection, groups: Sequence[ResourceGroup], unreachable: Sequence[str]
) -> list[NodeReference]:
    """Return the names of a selection, no globs, of which there is neither a node nor a queued resource."""
    missing = []
    for pattern in selection.names:
        if pattern.is_glob:
            continue
        found = [group for group in groups if any(map(pattern.matches, group.all_names))]
        races = {race_id_of(group.request, pattern.node_id) if group.request else "" for group in found}
        is_one_race = len(races) == 1 and "" not in races
        if len({group.zone for group in found}) > 1 and not is_one_race:
            places = [NodeName(group.project, group.zone, group.id) for group in found]
            raise several_nodes_error(pattern.node_id, places)
        if not found and unreachable:
            raise unreachable_zones_error(pattern.node_id, unreachable)
        if not found:
            missing.append(NodeReference(pattern.node_id, pattern.zone, pattern.project))
    return missing


def _check_is_in_no_zone(app: App, context: ActionContext, reference: NodeReference) -> None:
    """Raise `ConflictError` if a name that the zones of a selection do not have exists in another zone."""
    if not (reference.zone or app.zones):
        return  # all zones were listed
    found = find_group(context, search_place(app), reference)
    if found is not None:
        place = f"{found.name.zone}/{reference.node_id}"
        raise ConflictError(
            f"`{reference.node_id}` is not in {reference.zone or ', '.join(app.zones)}; found {place}",
            hint=f"to delete that one, run `tpuctl down {place}`",
        )


def require_selected(app: App, selection: Selection, node: Node, current: Node, *, leaves_kept: bool = False) -> None:
    """Raise `NoLongerSelectedError` if a node that was just read is not the selected one now. Named nodes are not judged."""
    if selection.is_by_name:
        return
    if current.id != node.id:
        raise NoLongerSelectedError(node.name.node_id, "was recreated")
    is_kept = leaves_kept and selection.leaves_kept([current], [current.name])
    if is_kept or not selection.matches(current, app.now(), selection_owner(app, selection)):
        raise NoLongerSelectedError(node.name.node_id, f"became {current.state}, or got other labels,")


def show_selected(app: App, planned: Sequence[tuple[Node, object]], *, priced: Sequence[Node] | None = None) -> None:
    """Show the nodes that a selection matched, before a question about them; with prices of `priced`, in other states."""
    if nodes := [node for node, _ in planned]:
        _TABLE.note(app.terminal, [*node_rows(nodes, app.now(), _rates(app, priced or nodes, ()))])


def hourly_price(app: App, nodes: Sequence[Node]) -> Dollars:
    """Return what nodes cost together for an hour in their states."""
    return sum_dollars(rate.per_hour for rate in _rates(app, nodes, ()))


def show_groups(app: App, choice: DeletionChoice) -> None:
    """Show what a selection deletes, before the question."""
    nodes = choice.nodes
    rows = node_rows(nodes, app.now(), _rates(app, nodes, choice.requests))
    _TABLE.note(app.terminal, [*rows, *(waiting_row(request, app.now()) for request in choice.waiting)])


def describe_groups(choice: DeletionChoice, project: str) -> str:
    """Return in words what a selection deletes."""
    nodes = choice.nodes
    # Named as the table names them.
    ids = [
        NodeName(project, one.zone, one.node_ids[0] if len(one.node_ids) == 1 else one.queued_resource_id)
        for one in choice.waiting
    ]
    parts = [name_nodes([node.name for node in nodes])] if nodes else []
    parts += [f"waiting {name_nodes(ids, 'queued resource')}"] if ids else []
    disks = {0: "", 1: ", with its boot disk"}.get(len(nodes), ", with their boot disks")
    return f"{' and '.join(parts)}{disks}"


def name_nodes(names: Sequence[NodeName], what: str = "node") -> str:
    """Return some names for a question: each, or the number of them and the first few; with the zone where one repeats."""
    count = Counter(name.node_id for name in names)
    labels = [name.node_id if count[name.node_id] == 1 else f"{name.zone}/{name.node_id}" for name in names]
    shown = ", ".join(f"`{label}`" for label in labels[:_NAMED])
    return shown if len(names) <= _NAMED else f"{len(names)} {what}s ({shown} and {len(names) - _NAMED} more)"


def _rates(app: App, nodes: Sequence[Node], requests: Sequence[QueuedResource]) -> list[NodeRate]:
    return node_rates(nodes, CostFacts(app.now(), requests, app.settings.grants()))
