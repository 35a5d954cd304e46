"""Change several nodes for one command: `start`, `stop`, `down` and `delete`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tpuctl.app.ssh_options import close_shared_connections
from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import ExitCode, NotConfirmedError, TpuctlError, worst_exit_code
from tpuctl.nodes.actions import needs_start, needs_stop, start_node, stop_node
from tpuctl.nodes.busy_nodes import use_in_question
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.selected_changes import (
    DeletionChoice,
    as_started,
    confirm_groups,
    hourly_price,
    name_nodes,
    require_selected,
    select_groups,
    selection_check,
    show_selected,
    without_kept,
)
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.group_lookup import absent_error, check_whole_request
from tpuctl.nodes.locate import IncompleteListError
from tpuctl.nodes.named_deletion import delete_groups, find_named, note_missing, search_place
from tpuctl.nodes.node_lookup import (
    near_node,
    nothing_selected_error,
    report_silent_zones,
    select_nodes,
)
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.policies import deadline, within_deadline
from tpuctl.nodes.rendering import deleted_view, show_results
from tpuctl.nodes.resource_group import ResourceGroup, distinct_groups
from tpuctl.nodes.tracker import ReconcileRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.names import NodeName
    from tpuctl.nodes.actions import StillSelected
    from tpuctl.nodes.actuator import ActionContext, RequestedChange
    from tpuctl.nodes.commands.changes import ChangeOptions
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.controller import NodeResult
    from tpuctl.nodes.selection import Selection


def start_nodes(app: App, given: GivenSelection, options: ChangeOptions) -> int:
    """Start nodes and wait until they are READY. Return the exit code."""

    def start(context: ActionContext, node: Node, _: StillSelected) -> RequestedChange:
        return start_node(context, node, force_lease=options.force_lease)

    return _change_nodes(app, given, Verb.START, Condition.READY, options, is_needed=needs_start, change=start)


def stop_nodes(app: App, given: GivenSelection, options: ChangeOptions) -> int:
    """Stop nodes and wait until they are STOPPED. Return the exit code."""
    return _change_nodes(app, given, Verb.STOP, Condition.STOPPED, options, is_needed=needs_stop, change=stop_node)


def _change_nodes(
    app: App,
    given: GivenSelection,
    verb: Verb,
    goal: Condition,
    options: ChangeOptions,
    *,
    is_needed: Callable[..., bool],
    change: Callable[[ActionContext, Node, StillSelected], RequestedChange],
) -> int:
    """Request a change of each node that needs it, wait for all of them, show what the API reports.

    `is_needed` raises if a change is not possible: then no named node is changed, and of selected ones the others are.
    """
    selection = given.parse(app)
    timeout, wait = deadline(app, options.timeout), not options.no_wait
    with within_deadline(app, timeout if wait else None):
        selected = select_nodes(app, selection)
    is_stop = verb is Verb.STOP
    nodes = without_kept(app, selection, selected.nodes) if is_stop else selected.nodes
    found: list[Node] = []
    needed: list[Node] = []
    refused: dict[NodeName, TpuctlError] = {}
    for node in nodes:
        try:
            if is_needed(node, skip_validation=options.skip_validation):
                needed.append(node)
            found.append(node)
        except TpuctlError as error:
            if selection.is_by_name:
                raise
            refused[node.name] = error
    if options.dry_run:
        lost = _lost_by_stop(needed) if is_stop else []
        reasons = [f"requested{f'; {_FOR_GOOD}' if node in lost else ''}" for node in needed]
        steps = (PlanStep(verb, node.name, reason) for node, reason in zip(needed, reasons, strict=True))
        show_plan(app, tuple(steps), spec=None)
        return report_silent_zones(app, selected.unreachable, show_refusals(app, refused.values()))
    if not selection.is_by_name:
        show_selected(app, needed, refused.values(), priced=None if is_stop else as_started(needed))
    _confirm_change(app, needed, verb, options, is_by_name=selection.is_by_name)
    names = " ".join(f"{node.name.zone}/{node.name.node_id}" for node in found)
    recheck = selection_check(app, selection, leaves_kept=is_stop)
    still_meant = partial(require_selected, app, selection, leaves_kept=is_stop)
    outcomes: list[NodeResult | TpuctlError] = []
    with (
        app.progress(events=options.events) as progress,
        app.in_flight(f"{verb} of {names} was requested and continues", resume=f"tpuctl wait {names} --for {goal}"),
    ):
        context = app.context(progress)
        tasks = []
        policy = Policy(goal=goal, may_start=True, timeout=timeout)
        for node in found:
            pending: RequestedChange | None = None
            if node in needed:
                try:
                    with limit_cloud_calls(app.clock, timeout if wait else None, grace=DEADLINE_GRACE):
                        recheck(node)
                        pending = change(context, node, still_meant)
                except TpuctlError as error:
                    if selection.is_by_name:
                        raise
                    refused[node.name] = error
                    continue
            tasks.append(ReconcileRequest(name=node.name, policy=policy, pending=pending))
        if is_stop:
            close_shared_connections(app, needed)
        outcomes = reconcile_nodes(context, tasks, once=not wait)
    return report_silent_zones(app, selected.unreachable, show_results(app, [*outcomes, *refused.values()]))


def _confirm_change(app: App, nodes: list[Node], verb: Verb, options: ChangeOptions, *, is_by_name: bool) -> None:
    """Ask about nodes that a selection matched, and about each stop: what runs on them ends.

    Raises `NotConfirmedError` if the user refuses, `InvalidInputError` without a terminal and `--yes`.
    """
    stopped = nodes if verb is Verb.STOP else []
    in_use = use_in_question(app, stopped, if_idle=options.if_idle, yes=options.yes)
    then = "" if stopped else f", for {hourly_price(app, as_started(nodes))}/h"
    if lost := _lost_by_stop(stopped):
        tiers = " and ".join(sorted({str(node.tier) for node in lost}))
        then = f" ({_FOR_GOOD}: {name_nodes([node.name for node in lost])}, {tiers})"
    question = f"{in_use}{verb} {name_nodes([node.name for node in nodes])}{then}?"
    if (stopped or (nodes and not is_by_name)) and not app.terminal.confirm(question, yes=options.yes):
        raise NotConfirmedError("nothing was done")


_FOR_GOOD = "cannot be started again once stopped"


def _lost_by_stop(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes whose stop is for good."""
    return [node for node in nodes if not node.tier.can_start_again]


def show_refusals(app: App, errors: Iterable[TpuctlError]) -> int:
    """Show the errors of selected nodes. Return the exit code."""
    codes = []
    for error in errors:
        app.show_error(error)
        codes.append(error.exit_code)
    return worst_exit_code(codes)


def delete_nodes(app: App, given: GivenSelection, options: ChangeOptions, *, by: str, is_strict: bool = False) -> int:
    """Delete the nodes and queued resources of a selection; `by` is the command. Return the exit code.

    Deletes only after every name was looked up without a failure, and the user agreed. If it `is_strict`, every name must
    exist, and something must match.
    """
    selection = given.parse(app)
    timeout, wait = deadline(app, options.timeout), not options.no_wait
    with app.progress(events=options.events) as progress:
        context = app.context(progress)
        with within_deadline(app, timeout if wait else None):
            found = _named(app, context, selection) if selection.is_by_name else select_groups(app, context, selection)
    targets, missing = list(found.targets), list(found.missing)
    if missing and is_strict:
        error = absent_error(missing[0], search_place(app))
        if near := near_node(app, missing[0]):
            error.hint = f"did you mean `{near.name.zone}/{near.name.node_id}`?\n{error.hint}"
        raise error
    if not targets and not missing and not found.kept:
        if found.unreachable:
            raise IncompleteListError(found.unreachable)
        if is_strict:
            raise nothing_selected_error(app, selection)
        app.terminal.note(f"no node or queued resource of project {app.project} matches: {selection}")
    for target in targets:
        # Of a selection every node of a queued resource matches.
        check_whole_request(target, all_nodes=options.all_nodes or not selection.is_by_name)
    if options.dry_run:
        steps = (step for target in distinct_groups(targets) for step in plan_deletion(target))
        show_plan(app, tuple(steps), spec=None)
        note_missing(app, missing, by)
        return report_silent_zones(app, found.unreachable, ExitCode.OK)

    def approve(asked: Sequence[ResourceGroup]) -> None:
        if not selection.is_by_name and asked == targets:
            confirm_groups(app, found, if_idle=options.if_idle, yes=options.yes)
        else:
            _confirm(app, asked, options)

    deletion = delete_groups(
        app,
        targets,
        missing,
        approve=approve,
        listen=lambda: app.progress(events=options.events),
        by=by,
        timeout=timeout,
        wait=wait,
        all_nodes=options.all_nodes,
        # A node that does not exist meets no condition.
        ends_creations=not selection.has_conditions,
        still_meant=None if selection.is_by_name else partial(found.require_selected, app),
    )
    errors = [result for _, result in deletion.results if isinstance(result, TpuctlError)]
    deleted = [target for target, result in deletion.results if not isinstance(result, TpuctlError)]
    note_missing(app, deletion.missing, by)
    absent = deletion.missing if by == "down" else ()
    app.show(deleted_view([*(target.asked for target in deleted), *(reference.node_id for reference in absent)]))
    if len(errors) == 1 and not deleted and not found.unreachable:
        raise errors[0]
    return report_silent_zones(app, found.unreachable, show_refusals(app, errors))


def _named(app: App, context: ActionContext, selection: Selection) -> DeletionChoice:
    """Return what the names of a selection refer to."""
    references = [app.reference(name.text, allow_queued=True) for name in selection.names]
    targets, missing = find_named(app, context, references)
    return DeletionChoice(selection, targets=tuple(targets), missing=tuple(missing))


def _confirm(app: App, targets: Sequence[ResourceGroup], options: ChangeOptions) -> None:
    """Ask whether these may be deleted. Raises `NotConfirmedError` if the user refuses."""
    once = distinct_groups(targets)
    nodes = list(chain.from_iterable(group.nodes for group in once))
    in_use = use_in_question(app, nodes, if_idle=options.if_idle, yes=options.yes)
    what = ", ".join(f"{_description(target)} `{target.name.node_id}` in {target.name.zone}" for target in once)
    disks = sum(bool(target.nodes) for target in once)
    also = {0: "", 1: ", with its boot disk"}.get(disks, ", with their boot disks")
    if racing := [f"{request.zone} ({request.state})" for target in once for request in target.other_requests]:
        also += f", and the requests of the same race in {', '.join(racing)}"
    if targets and not app.terminal.confirm(f"{in_use}delete {what}{also}?", yes=options.yes):
        raise NotConfirmedError("nothing was done")


def plan_deletion(target: ResourceGroup) -> tuple[PlanStep, ...]:
    """Return the steps that delete a target."""
    if target.other_requests:
        reason = "requested by the same race"
        others = (
            PlanStep(Verb.DELETE, replace(target.name, zone=one.zone), reason, one.name)
            for one in target.other_requests
        )
        return (*others, *plan_deletion(replace(target, race=None)))
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
