"""Change several nodes for one command: `change_nodes` for `start` and `stop`, `delete_nodes` for `down` and `delete`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tpuctl.app.ssh_options import close_shared_connections, remove_ssh_entries
from tpuctl.clock import DEADLINE_GRACE, limit_cloud_calls
from tpuctl.errors import ExitCode, NotConfirmedError, TpuctlError, worst_exit_code
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.policy_options import deadline, within_deadline
from tpuctl.nodes.conditions import Condition, Policy, Verb
from tpuctl.nodes.controller import reconcile_nodes
from tpuctl.nodes.plan import PlanStep
from tpuctl.nodes.rendering import show_results
from tpuctl.nodes.tear_down import (
    DeletionTarget,
    absent_error,
    check_whole_request,
    distinct_targets,
    end_absent_node,
    find_deletion_target,
    tear_down,
)
from tpuctl.nodes.tracker import ReconcileRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.names import NodeReference
    from tpuctl.nodes.actuator import RequestedChange
    from tpuctl.nodes.context import ActionContext


class NodeAction(Protocol):
    """An action on a node that returns what it requested, None if no request was needed."""

    def __call__(self, context: ActionContext, node: Node) -> RequestedChange | None:
        """Request the change."""


def change_nodes(
    app: App,
    texts: tuple[str, ...],
    change: NodeAction,
    *,
    is_needed: Callable[[Node], bool],
    verb: Verb,
    goal: Condition,
    timeout: timedelta | str | None,
    wait: bool,
    events: str | None,
    dry_run: bool,
) -> int:
    """Request a change of each node, wait for all of them, show what the API reports. Return the exit code.

    `is_needed` raises if a change is not possible: then no node is changed.
    """
    timeout = deadline(app, timeout)
    with within_deadline(app, timeout if wait else None):
        found = [app.find(text) for text in texts]
    needed = [node for node in found if is_needed(node)]
    if dry_run:
        steps = tuple(PlanStep(verb, node.name, "requested") for node in needed)
        show_plan(app, steps, spec=None, node=None)
        return ExitCode.OK
    names = " ".join(texts)
    with (
        app.progress(events=events) as progress,
        app.in_flight(f"{verb} of {names} was requested and continues", resume=f"tpuctl wait {names} --for {goal}"),
    ):
        context = app.context(progress)
        with limit_cloud_calls(app.clock, timeout if wait else None, grace=DEADLINE_GRACE):
            requested = [(node, change(context, node)) for node in found]
        if verb is Verb.STOP:
            close_shared_connections(app, needed)
        policy = Policy(goal=goal, may_start=True, timeout=timeout)
        tasks = [ReconcileRequest(name=node.name, policy=policy, pending=pending) for node, pending in requested]
        outcomes = reconcile_nodes(context, tasks, once=not wait)
    return show_results(app, outcomes)


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """The deleted targets, the names that exist in no zone, and the errors of targets that were not deleted."""

    targets: list[DeletionTarget]
    missing: list[NodeReference]
    errors: list[TpuctlError]

    def exit_code(self, app: App) -> ExitCode:
        """Show the errors and return the worst exit code. Raises the error of a single node."""
        if len(self.errors) == 1 and not self.targets:
            raise self.errors[0]
        for error in self.errors:
            app.show_error(error)
        return worst_exit_code(error.exit_code for error in self.errors) if self.errors else ExitCode.OK


def delete_nodes(
    app: App,
    texts: tuple[str, ...],
    *,
    all_nodes: bool,
    timeout: timedelta | str | None,
    wait: bool,
    events: str | None,
    dry_run: bool,
    yes: bool,
    by: str,
    strict: bool = False,
) -> DeletionResult:
    """Delete the nodes and queued resources of these names; `by` is the command.

    Deletes only after every name was looked up without a failure, and the user agreed. With `strict` every name must exist.
    """
    with app.progress(events=events) as progress:
        context = app.context(progress)
        references = {text: app.reference(text, allow_queued=True) for text in texts}
        with within_deadline(app, deadline(app, timeout) if wait else None):
            found = {
                text: find_deletion_target(context, app.place, reference) for text, reference in references.items()
            }
    targets = [target for target in found.values() if target]
    missing = [references[text] for text, target in found.items() if target is None]
    if missing and strict:
        raise absent_error(missing[0], app.place)
    for target in targets:
        check_whole_request(target, all_nodes=all_nodes)
    if dry_run:
        steps = tuple(
            PlanStep(
                Verb.DELETE,
                target.name,
                _description(target),
                queued_resource=target.request.name if target.request else None,
            )
            for target in distinct_targets(targets)
        )
        show_plan(app, steps, spec=None, node=None)
        return DeletionResult(targets, missing, [])
    _confirm(app, targets, yes=yes)
    with app.progress(events=events) as progress:
        context = app.context(progress)
        # Another client may be about to recreate a missing node: end its work, and delete what it has created.
        created = [
            find_deletion_target(context, app.place, reference)
            if end_absent_node(context, app.place, reference, by=by)
            else None
            for reference in missing
        ]
    late = [target for target in created if target]
    _confirm(app, late, yes=yes)
    late_ids = {target.name.node_id for target in late}
    targets, missing = [*targets, *late], [reference for reference in missing if reference.node_id not in late_ids]
    names = " ".join(f"{target.name.zone}/{target.name.node_id}" for target in distinct_targets(targets))
    with (
        app.in_flight(f"the deletion of `{names}` continues", resume=f"tpuctl wait {names} --for gone"),
        app.progress(events=events) as progress,
    ):
        policy = Policy(goal=Condition.GONE, timeout=deadline(app, timeout))
        outcomes = tear_down(app.context(progress), targets, policy, by=by, wait=wait)
    deleted = [
        target for target, outcome in zip(targets, outcomes, strict=True) if not isinstance(outcome, TpuctlError)
    ]
    close_shared_connections(app, [target.node for target in deleted if target.node])
    remove_ssh_entries(app, [target.name for target in deleted], missing)
    return DeletionResult(deleted, missing, [outcome for outcome in outcomes if isinstance(outcome, TpuctlError)])


def _confirm(app: App, targets: list[DeletionTarget], *, yes: bool) -> None:
    """Ask whether these may be deleted. Raises `NotConfirmedError` if the user refuses."""
    once = distinct_targets(targets)
    what = ", ".join(f"{_description(target)} `{target.name.node_id}` in {target.name.zone}" for target in once)
    disks = sum(target.node is not None for target in once)
    also = {0: "", 1: ", with its boot disk"}.get(disks, ", with their boot disks")
    if targets and not app.terminal.confirm(f"delete {what}{also}?", yes=yes):
        raise NotConfirmedError("nothing was done")


def _description(target: DeletionTarget) -> str:
    """Return in words what is deleted."""
    node = f"the {target.node.accelerator_type} node ({target.node.state})" if target.node else ""
    if target.request is None:
        return node
    request = f"the queued resource `{target.request.queued_resource_id}` ({target.request.state})"
    if len(target.request.node_ids) > 1:
        request += f" for {', '.join(target.request.node_ids)}"
    return f"{request} with {node}" if node else f"{request} of"
