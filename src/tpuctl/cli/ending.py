"""What `down` and `delete` share: find all nodes first, ask once, then delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpuctl.actions.tear_down import Target, absent, check_whole, distinct, end_absent, find_target, tear_down
from tpuctl.cli.dry_run import show_plan
from tpuctl.cli.keeping import let_go
from tpuctl.cli.policy import deadline, in_time
from tpuctl.cli.ssh_entries import forget
from tpuctl.errors import ExitCode, NotConfirmedError, TpuctlError, worst
from tpuctl.plan import Step
from tpuctl.readiness import Goal, Policy, Verb

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.cli.app import App
    from tpuctl.names import NodeReference


@dataclass(frozen=True, slots=True)
class Ended:
    """The deleted targets, the names that exist in no zone, and the errors of targets that were not deleted."""

    targets: list[Target]
    missing: list[NodeReference]
    errors: list[TpuctlError]

    def exit_code(self, app: App) -> ExitCode:
        """Show the errors and return the worst exit code. Raises the error of a single node."""
        if len(self.errors) == 1 and not self.targets:
            raise self.errors[0]
        for error in self.errors:
            app.show_error(error)
        return worst(error.exit_code for error in self.errors) if self.errors else ExitCode.OK


def end_nodes(
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
) -> Ended:
    """Delete the nodes and queued resources of these names; `by` is the command.

    Deletes only after every name was looked up without a failure, and the user agreed. With `strict` every name must exist.
    """
    with app.progress(events=events) as progress:
        context = app.context(progress)
        references = {text: app.reference(text, allow_queued=True) for text in texts}
        with in_time(app, deadline(app, timeout) if wait else None):
            found = {text: find_target(context, app.place, reference) for text, reference in references.items()}
    targets = [target for target in found.values() if target]
    missing = [references[text] for text, target in found.items() if target is None]
    if missing and strict:
        raise absent(missing[0], app.place)
    for target in targets:
        check_whole(target, all_nodes=all_nodes)
    if dry_run:
        steps = tuple(
            Step(
                Verb.DELETE,
                target.name,
                _description(target),
                queued_resource=target.request.name if target.request else None,
            )
            for target in distinct(targets)
        )
        show_plan(app, steps, spec=None, node=None)
        return Ended(targets, missing, [])
    _confirm(app, targets, yes=yes)
    with app.progress(events=events) as progress:
        context = app.context(progress)
        # Another client may be about to recreate a missing node: end its work, and delete what it has created.
        created = [
            find_target(context, app.place, reference) if end_absent(context, app.place, reference, by=by) else None
            for reference in missing
        ]
    late = [target for target in created if target]
    _confirm(app, late, yes=yes)
    late_ids = {target.name.node_id for target in late}
    targets, missing = [*targets, *late], [reference for reference in missing if reference.node_id not in late_ids]
    names = " ".join(f"{target.name.zone}/{target.name.node_id}" for target in distinct(targets))
    with (
        app.in_flight(f"the deletion of `{names}` continues", resume=f"tpuctl wait {names} --for gone"),
        app.progress(events=events) as progress,
    ):
        policy = Policy(goal=Goal.GONE, timeout=deadline(app, timeout))
        outcomes = tear_down(app.context(progress), targets, policy, by=by, wait=wait)
    deleted = [
        target for target, outcome in zip(targets, outcomes, strict=True) if not isinstance(outcome, TpuctlError)
    ]
    let_go(app, [target.node for target in deleted if target.node])
    forget(app, [target.name for target in deleted], missing)
    return Ended(deleted, missing, [outcome for outcome in outcomes if isinstance(outcome, TpuctlError)])


def _confirm(app: App, targets: list[Target], *, yes: bool) -> None:
    """Ask whether these may be deleted. Raises `NotConfirmedError` if the user refuses."""
    once = distinct(targets)
    what = ", ".join(f"{_description(target)} `{target.name.node_id}` in {target.name.zone}" for target in once)
    disks = sum(target.node is not None for target in once)
    also = {0: "", 1: ", with its boot disk"}.get(disks, ", with their boot disks")
    if targets and not app.terminal.confirm(f"delete {what}{also}?", yes=yes):
        raise NotConfirmedError("nothing was done")


def _description(target: Target) -> str:
    """Return in words what is deleted."""
    node = f"the {target.node.accelerator_type} node ({target.node.state})" if target.node else ""
    if target.request is None:
        return node
    request = f"the queued resource `{target.request.queued_resource_id}` ({target.request.state})"
    if len(target.request.node_ids) > 1:
        request += f" for {', '.join(target.request.node_ids)}"
    return f"{request} with {node}" if node else f"{request} of"
