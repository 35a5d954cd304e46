"""What `delete`, `down` and `queue cancel` do in the frame of a change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tpuctl.errors import TpuctlError
from tpuctl.nodes.commands.change_frame import ChangePlan, confirm, run_change, show_errors
from tpuctl.nodes.commands.request_views import find_named_request, nodes_of_request
from tpuctl.nodes.commands.selected_changes import DeletionChoice, describe_groups, select_groups, show_groups
from tpuctl.nodes.conditions import Verb
from tpuctl.nodes.group_lookup import absent_error, check_whole_request, request_group
from tpuctl.nodes.lookup import IncompleteListError, near_node, nothing_selected_error
from tpuctl.nodes.named_deletion import delete_groups, find_named, note_missing, search_place
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.policies import deadline
from tpuctl.nodes.rendering import deleted_view
from tpuctl.nodes.resource_group import ResourceGroup, distinct_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpuctl.app.app import App
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.selection import Selection


def delete_selected(app: App, selection: Selection, options: ChangeOptions, *, by: str, is_strict: bool = False) -> int:
    """Delete nodes with the queued resources that own them; `by` is the command. Return the exit code.

    Deletes only after every name was looked up without a failure, and the user agreed. If it `is_strict`, every name must
    exist, and something must match.
    """

    def find() -> DeletionChoice:
        with app.progress(events=options.events) as progress:
            context = app.services.context(progress)
            if not selection.is_by_name:
                return select_groups(app, context, selection)
            references = [app.reference(name.text, allow_queued=True) for name in selection.names]
            targets, missing = find_named(app, context, references)
        found = DeletionChoice(selection=selection, targets=tuple(targets), missing=tuple(missing))
        if missing and is_strict:
            error = absent_error(missing[0], search_place(app))
            if near := near_node(app, missing[0]):
                error.hint = f"did you mean `{near.name.zone}/{near.name.node_id}`?\n{error.hint}"
            raise error
        return found

    def describe(targets: Sequence[ResourceGroup]) -> str:
        once = distinct_groups(targets)
        what = ", ".join(f"{_description(target)} `{target.name.node_id}` in {target.name.zone}" for target in once)
        disks = sum(bool(target.nodes) for target in once)
        also = {0: "", 1: ", with its boot disk"}.get(disks, ", with their boot disks")
        if racing := [f"{request.zone} ({request.state})" for target in once for request in target.other_requests]:
            also += f", and the requests of the same race in {', '.join(racing)}"
        return f"delete {what}{also}"

    return _delete(app, options, find, describe, by=by, is_strict=is_strict)


def cancel_requests(app: App, selection: Selection, options: ChangeOptions) -> int:
    """Delete queued resources with their nodes. Ask only about those whose nodes exist. Return the exit code."""

    def find() -> DeletionChoice:
        targets = []
        for name in selection.names:
            reference = app.reference(name.text, allow_queued=True)
            request = find_named_request(app, reference)
            nodes = tuple(nodes_of_request(app, request, reference).values())
            targets.append(request_group(request, nodes, reference, reference.project or app.project))
        return DeletionChoice(selection=selection, targets=tuple(distinct_groups(targets)))

    def describe(targets: Sequence[ResourceGroup]) -> str:
        what = ", ".join(
            f"the queued resource `{target.request.queued_resource_id}` ({target.request.state}) with its node "
            f"`{target.name.node_id}` ({target.nodes[0].state})"
            for target in targets
            if target.request and target.nodes
        )
        return f"delete {what} and all data on it" if what else ""

    return _delete(app, options, find, describe, by="queue cancel")


def _delete(
    app: App,
    options: ChangeOptions,
    find: Callable[[], DeletionChoice],
    describe: Callable[[Sequence[ResourceGroup]], str],
    *,
    by: str,
    is_strict: bool = False,
) -> int:
    """Delete what is found, in the frame of a change. `describe` returns the question about named targets."""

    def plan() -> ChangePlan:
        found = find()
        if not (found.targets or found.missing or found.kept):
            if found.unreachable:
                raise IncompleteListError(found.unreachable)
            if is_strict:
                raise nothing_selected_error(app, found.selection)
            app.terminal.note(f"no node or queued resource of project {app.project} matches: {found.selection}")
        for target in found.targets:
            # Of a selection every node of a queued resource matches.
            check_whole_request(target, all_nodes=options.all_nodes or not found.selection.is_by_name)
        if options.dry_run:
            note_missing(app, found.missing, by)
        for target in found.targets:
            if target.left_zones:
                app.terminal.note(
                    f"requests of the same race are left in {', '.join(target.left_zones)}; delete them too with "
                    f"`tpuctl down {target.name.node_id}`"
                )
        steps = [step for target in distinct_groups(found.targets) for step in _plan_deletion(target)]
        return ChangePlan(steps=steps, act=lambda: act(found), unreachable=found.unreachable)

    def act(found: DeletionChoice) -> int:
        def approve(targets: Sequence[ResourceGroup]) -> None:
            if not targets:
                return
            if not found.selection.is_by_name and tuple(targets) == found.targets:
                show_groups(app, found)
                confirm(app, options, f"delete {describe_groups(found, app.project)}", found.nodes)
            elif question := describe(targets):
                confirm(app, options, question, [node for group in distinct_groups(targets) for node in group.nodes])

        deletion = delete_groups(
            app,
            found.targets,
            found.missing,
            approve=approve,
            listen=lambda: app.progress(events=options.events),
            by=by,
            timeout=deadline(app, options.timeout),
            wait=options.wait,
            all_nodes=options.all_nodes,
            # A node that does not exist meets no condition.
            ends_creations=not found.selection.has_conditions,
            still_meant=None if found.selection.is_by_name else partial(found.require_selected, app),
        )
        errors = [result for _, result in deletion.results if isinstance(result, TpuctlError)]
        gone = [target.asked for target, result in deletion.results if not isinstance(result, TpuctlError)]
        is_only = len(errors) == 1 and not gone and not found.unreachable
        note_missing(app, deletion.missing, by)
        gone += [reference.node_id for reference in deletion.missing] if by == "down" else []
        app.show(deleted_view(gone))
        if is_only:
            raise errors[0]
        return show_errors(app, errors)

    return run_change(app, options, plan)


def _plan_deletion(target: ResourceGroup) -> tuple[PlanStep, ...]:
    """Return the steps that delete a target."""
    if target.other_requests:
        reason = "requested by the same race"
        others = (
            PlanStep(Verb.DELETE, replace(target.name, zone=one.zone), reason, one.name)
            for one in target.other_requests
        )
        return (*others, *_plan_deletion(replace(target, race=None)))
    description = _description(target).removesuffix(" of")
    steps = [
        PlanStep(Verb.DELETE, target.name, description, request.name, force=not request.state.is_dead)
        for request in target.requests
    ]
    is_own_step = target.has_own_node or not steps
    return (*steps, PlanStep(Verb.DELETE, target.name, description)) if is_own_step else tuple(steps)


def _description(target: ResourceGroup) -> str:
    """Return in words what is deleted."""
    first = next((node for node in target.nodes if node.name == target.name), None)
    kept = ", kept by its label `tpuctl-keep`" if first and first.is_kept else ""
    node = f"the {first.accelerator_type} node ({first.state}{kept})" if first else ""
    if target.request is None:
        return node
    request = f"the queued resource `{target.request.queued_resource_id}` ({target.request.state})"
    if len(target.request.node_ids) > 1:
        request += f" for {', '.join(target.request.node_ids)}"
    if target.next_request and node:
        node += f" and the queued resource `{target.next_request.queued_resource_id}` ({target.next_request.state}) of"
    return f"{request} with {node}" if node else f"{request} of"
