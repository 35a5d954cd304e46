"""`down` and `delete` of named nodes, for the commands and for programs: what the names refer to, and its deletion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import close_shared_connections, remove_ssh_entries
from tpuctl.errors import TpuctlError
from tpuctl.nodes.conditions import Condition, Policy
from tpuctl.nodes.locate import SearchPlace
from tpuctl.nodes.node_lookup import is_in_journal, near_node
from tpuctl.nodes.tear_down import DeletionTarget, absent_error, end_absent_node, find_deletion_target, tear_down

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.names import NodeReference
    from tpuctl.nodes.actuator import ActionContext
    from tpuctl.nodes.controller import NodeResult


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
    ids = {node_id for request in target.requests for node_id in request.node_ids} - {target.name.node_id}
    for node_id in sorted(ids) if target.node else ():
        if node := app.client.find_node(replace(target.name, node_id=node_id)):
            yield node


def delete_targets(
    app: App,
    context: ActionContext,
    targets: Sequence[DeletionTarget],
    missing: Sequence[NodeReference] = (),
    *,
    by: str,
    timeout: timedelta | None,
    wait: bool,
    recheck: Callable[[DeletionTarget], None] = lambda _: None,
) -> list[NodeResult | TpuctlError]:
    """Delete targets and wait until they are gone; then also their shared connections and their entries for ssh.

    The entries of `missing` names are removed too. Return the results in order.
    """
    policy = Policy(goal=Condition.GONE, timeout=timeout)
    results = tear_down(context, targets, policy, by=by, wait=wait, recheck=recheck)
    deleted = [target for target, result in zip(targets, results, strict=True) if not isinstance(result, TpuctlError)]
    close_shared_connections(app, [target.node for target in deleted if target.node])
    remove_ssh_entries(app, [target.name for target in deleted], missing)
    return results


def note_missing(app: App, missing: list[NodeReference], by: str) -> None:
    """Say of each name that it does not exist; of one that the journal lacks too, which node may have been meant."""
    for reference in missing:
        absent = absent_error(reference, search_place(app)).message
        if is_in_journal(app, reference):
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
