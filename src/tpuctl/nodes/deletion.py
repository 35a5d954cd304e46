"""`down` and `delete` of named nodes, for the commands and for programs: what the names refer to, and its deletion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import close_shared_connections, remove_ssh_entries
from tpuctl.errors import TpuctlError
from tpuctl.names import NodeReference
from tpuctl.nodes.conditions import Condition, Policy
from tpuctl.nodes.lookup import SearchPlace, near_node
from tpuctl.nodes.policies import within_deadline
from tpuctl.nodes.queueing import UNDECIDED
from tpuctl.nodes.tear_down import (
    DeletionTarget,
    absent_error,
    check_whole_request,
    distinct_targets,
    end_absent_node,
    end_searches,
    find_deletion_target,
    tear_down,
)
from tpuctl.nodes.usage import require_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.events import NodeEvent
    from tpuctl.models.node import Node
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.request_actions import StillMeant


def find_named(
    app: App, context: ActionContext, references: Sequence[NodeReference]
) -> tuple[list[DeletionTarget], list[NodeReference]]:
    """Return what names refer to, each looked up in all zones, and the names that do not exist."""
    found = [(reference, find_deletion_target(context, app.place, reference)) for reference in references]
    targets = [target for _, target in found if target]
    return targets, [reference for reference, target in found if target is None]


def find_created_meanwhile(
    app: App, context: ActionContext, missing: Sequence[NodeReference], *, by: str
) -> tuple[list[DeletionTarget], list[NodeReference]]:
    """End the work of other clients that are about to create missing nodes; return what they have created, and the rest."""
    place = search_place(app)
    created = [
        find_deletion_target(context, place, reference)
        for reference in missing
        if end_absent_node(context, place, reference, by=by)
    ]
    targets = [target for target in created if target]
    ids = {target.name.node_id for target in targets}
    return targets, [reference for reference in missing if reference.node_id not in ids]


def search_place(app: App) -> SearchPlace:
    """Return where names are looked up: in all zones if `--zone` names several."""
    return SearchPlace(app.project) if len(app.zones) > 1 else app.place


def existing_nodes(app: App, target: DeletionTarget) -> Iterator[Node]:
    """Yield the nodes that exist of a target: its own, and the others of its queued resources."""
    if target.node:
        yield target.node
    # A request that still waits has none.
    requests = [request for request in target.requests if target.node or request.state not in UNDECIDED]
    ids = {node_id for request in requests for node_id in request.node_ids} - {target.name.node_id}
    for node_id in sorted(ids):
        if node := app.client.find_node(replace(target.name, node_id=node_id)):
            yield node


def require_undisputed(app: App, targets: Sequence[DeletionTarget]) -> None:
    """Raise `ConflictError` if a node of these is in use, is another user's, or is kept, whether it exists or is requested."""
    existing = {node.name: node for target in targets for node in existing_nodes(app, target)}
    requested = {
        node.name: node
        for target in targets
        for request in (*target.requests, *target.other_requests)
        for node in request.all_requested_nodes(target.name.project)
    }
    require_free(app, list((requested | existing).values()))


@dataclass(frozen=True, slots=True)
class Deletion:
    """What was deleted or not: the result of each target, and the names that did not exist."""

    results: tuple[tuple[DeletionTarget, NodeResult | TpuctlError], ...]
    missing: tuple[NodeReference, ...]


def delete_targets(
    app: App,
    targets: Sequence[DeletionTarget],
    missing: Sequence[NodeReference],
    *,
    approve: Callable[[Sequence[DeletionTarget]], None],
    listen: Callable[[], AbstractContextManager[Callable[[NodeEvent], None]]],
    by: str,
    timeout: timedelta | None,
    wait: bool,
    all_nodes: bool,
    ends_creations: bool = True,
    recheck: Callable[[DeletionTarget], None] = lambda _: None,
    still_meant: StillMeant = lambda _: None,
) -> Deletion:
    """Delete targets and wait until they are gone; with `ends_creations` also `missing` ones that other clients are creating.

    `approve` is called before with all that will be deleted, and raises if that may not be; `listen` opens a display of
    events, which is closed while `approve` may ask. Then shared connections and entries for ssh are removed, also those of
    missing names. Call `check_whole_request` before.
    """
    approve(targets)
    late: list[DeletionTarget] = []
    if missing and ends_creations:
        with listen() as listener, within_deadline(app, timeout if wait else None):
            late, missing = find_created_meanwhile(app, app.context(listener), missing, by=by)
        for target in late:
            check_whole_request(target, all_nodes=all_nodes)
        approve(late)
    with listen() as listener, within_deadline(app, timeout if wait else None):
        context = app.context(listener)
        created = [
            found
            for target in targets
            for name in end_searches(context, target.name, by=by)
            if (
                found := find_deletion_target(
                    context, search_place(app), NodeReference(name.node_id, name.zone, name.project)
                )
            )
        ]
    if created:
        for target in created:
            check_whole_request(target, all_nodes=all_nodes)
        approve(created)
    targets = [*targets, *late, *created]
    names = " ".join(f"{target.name.zone}/{target.name.node_id}" for target in distinct_targets(targets))
    policy = Policy(goal=Condition.GONE, timeout=timeout)
    with (
        app.in_flight(f"the deletion of `{names}` continues", resume=f"tpuctl wait {names} --for gone"),
        listen() as listener,
    ):
        results = tear_down(
            app.context(listener), targets, policy, by=by, wait=wait, recheck=recheck, still_meant=still_meant
        )
        done = tuple(zip(targets, results, strict=True))
        deleted = [target for target, result in done if not isinstance(result, TpuctlError)]
        close_shared_connections(app, [target.node for target in deleted if target.node])
        remove_ssh_entries(app, [target.name for target in deleted], missing)
    return Deletion(done, tuple(missing))


def note_missing(app: App, missing: Sequence[NodeReference], by: str) -> None:
    """Say of each name that it does not exist; of one that the journal lacks too, which node may have been meant."""
    for reference in missing:
        absent = absent_error(reference, search_place(app)).message
        if app.journal.namesakes(reference.project or app.project, reference.node_id):
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
