"""`down` and `delete` of named nodes, for the commands and for programs: what the names refer to, and its deletion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import close_shared_connections, remove_ssh_entries
from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.models.spec import GROUP_LABEL
from tpuctl.names import NodeReference
from tpuctl.nodes.group_lookup import absent_error, check_whole_request, find_group
from tpuctl.nodes.lookup import SearchPlace, describe_slices, near_node, slices_named
from tpuctl.nodes.policies import within_deadline
from tpuctl.nodes.resource_group import distinct_groups
from tpuctl.nodes.tear_down import end_creations, tear_down
from tpuctl.nodes.usage import require_free

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.events import NodeEvent
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.deletion import Ended
    from tpuctl.nodes.resource_group import ResourceGroup, StillMeant


def find_named(
    app: App, context: ActionContext, references: Sequence[NodeReference]
) -> tuple[list[ResourceGroup], list[NodeReference]]:
    """Return what names refer to, each looked up in all zones, and the names that do not exist."""
    zone = app.zones[0] if len(app.zones) == 1 else None
    references = [replace(reference, zone=reference.zone or zone) for reference in references]
    found = [(reference, find_group(context, app.place, reference)) for reference in references]
    groups = [group for _, group in found if group]
    missing = [reference for reference, group in found if group is None]
    for reference in missing:
        _require_no_group(app, reference)
    return groups, missing


def _require_no_group(app: App, reference: NodeReference) -> None:
    """Raise `ConflictError` if a name that no node has is that of a group of slices, which bill."""
    zones = (reference.zone,) if reference.zone else ()
    nodes = app.services.client.list_nodes(reference.project or app.project, zones).nodes
    if slices := slices_named(reference.node_id, nodes):
        zone = f" --zone {reference.zone}" if reference.zone else ""
        raise ConflictError(
            f"`{reference.node_id}` is a group of {describe_slices(slices)}",
            hint=f"to delete them all, run `tpuctl down -l {GROUP_LABEL}={reference.node_id}{zone}`",
        )


def search_place(app: App) -> SearchPlace:
    """Return where names are looked up: in all zones if `--zone` names several."""
    return SearchPlace(app.project) if len(app.zones) > 1 else app.place


def require_undisputed(app: App, groups: Sequence[ResourceGroup]) -> None:
    """Raise `ConflictError` if a node of these is in use, is another user's, or is kept, whether it exists or is requested."""
    existing = {node.name: node for group in groups for node in group.nodes}
    requested = {
        node.name: node
        for group in groups
        for request in (*group.requests, *group.other_requests)
        for node in request.all_requested_nodes(group.name.project)
    }
    require_free(app, list((requested | existing).values()))


@dataclass(frozen=True, slots=True)
class NamedDeletion:
    """What was deleted or not: the result of each group, and the names that did not exist."""

    results: tuple[tuple[ResourceGroup, Ended | TpuctlError], ...]
    missing: tuple[NodeReference, ...]


def delete_groups(
    app: App,
    groups: Sequence[ResourceGroup],
    missing: Sequence[NodeReference],
    *,
    approve: Callable[[Sequence[ResourceGroup]], None],
    listen: Callable[[], AbstractContextManager[Callable[[NodeEvent], None]]],
    by: str,
    timeout: timedelta | None,
    wait: bool,
    all_nodes: bool,
    ends_creations: bool = True,
    still_meant: StillMeant | None = None,
) -> NamedDeletion:
    """Delete groups and wait until they are gone; with `ends_creations` also `missing` ones that other clients are creating.

    `approve` is called before with all that will be deleted, and raises if that may not be; `listen` opens a display of
    events, which is closed while `approve` may ask. Then shared connections and entries for ssh are removed, also those of
    missing names. Call `check_whole_request` before.
    """
    approve(groups)
    with listen() as listener, within_deadline(app, timeout if wait else None):
        context, place = app.services.context(listener), search_place(app)
        references = end_creations(context, place, groups, missing if ends_creations else (), by=by)
        created = [found for reference in references if (found := find_group(context, place, reference))]
    for group in created:
        check_whole_request(group, all_nodes=all_nodes)
    if created:
        approve(created)
    groups = [*groups, *created]
    ids = {group.asked for group in created}
    missing = [reference for reference in missing if reference.node_id not in ids]
    names = " ".join(f"{group.name.zone}/{group.name.node_id}" for group in distinct_groups(groups))
    with (
        app.in_flight(f"the deletion of `{names}` continues", resume=f"tpuctl wait {names} --for gone"),
        listen() as listener,
    ):
        results = tear_down(
            app.services.context(listener), groups, by=by, timeout=timeout, wait=wait, still_meant=still_meant
        )
        done = tuple(zip(groups, results, strict=True))
        deleted = [group for group, result in done if not isinstance(result, TpuctlError)]
        close_shared_connections(app, [node for group in deleted for node in group.nodes])
        gone = dict.fromkeys(name for group in deleted for name in (group.name, *(node.name for node in group.nodes)))
        remove_ssh_entries(app, list(gone), missing)
    return NamedDeletion(done, tuple(missing))


def note_missing(app: App, missing: Sequence[NodeReference], by: str) -> None:
    """Say of each name that it does not exist; of one that the journal lacks too, which node may have been meant."""
    for reference in missing:
        absent = absent_error(reference, search_place(app)).message
        if app.services.journal.namesakes(reference.project or app.project, reference.node_id):
            app.terminal.note(f"{reference.node_id}: already gone" if by == "down" else absent)
            continue
        gone = f"{reference.node_id}: already gone, or never there: the journal has no node of this name"
        app.terminal.note(gone if by == "down" else absent)
        if near := near_node(app, reference):
            place = f"{near.name.zone}/{near.name.node_id}"
            app.terminal.warn(
                f"`{reference.node_id}` may be misspelled: `{place}` is {near.state}, and was not deleted",
                f"  hint: see it with `tpuctl status {place}`",
            )
