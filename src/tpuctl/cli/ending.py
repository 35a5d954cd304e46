"""What `down` and `delete` have in common: find everything first, ask once, then delete."""

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

    from tpuctl.actions.cloud import Context
    from tpuctl.actions.ensure_ready import Outcome
    from tpuctl.cli.app import App
    from tpuctl.names import NodeReference


@dataclass(frozen=True, slots=True)
class Ended:
    """What was deleted, the names that stand for nothing in any zone, and why the others were not deleted."""

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
    """Delete what the names stand for; `by` is the command.

    Nothing is deleted unless every name was looked up without a failure (`strict`: and found) and the answer was yes.
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
        show_plan(app, tuple(map(_step, distinct(targets))), spec=None, node=None)
        return Ended(targets, missing, [])
    _confirm(app, targets, yes=yes)
    with app.progress(events=events) as progress:
        context = app.context(progress)
        late = list(filter(None, (_made_meanwhile(app, context, entry, by=by) for entry in missing)))
    _confirm(app, late, yes=yes)
    targets, missing = [*targets, *late], [entry for entry in missing if entry.node_id not in _ids(late)]
    endings = _tear_down(app, targets, timeout=timeout, events=events, by=by, wait=wait)
    ended = [target for target, ending in zip(targets, endings, strict=True) if not isinstance(ending, TpuctlError)]
    let_go(app, [target.node for target in ended if target.node])
    forget(app, [target.name for target in ended], missing)
    return Ended(ended, missing, [ending for ending in endings if isinstance(ending, TpuctlError)])


def _tear_down(
    app: App, targets: list[Target], *, timeout: timedelta | str | None, events: str | None, by: str, wait: bool
) -> list[Outcome | TpuctlError]:
    policy = Policy(goal=Goal.GONE, timeout=deadline(app, timeout))
    named = " ".join(f"{target.name.zone}/{target.name.node_id}" for target in distinct(targets))
    going_on = f"the deletion of `{named}` goes on"
    with app.going_on(going_on, resume=f"tpuctl wait {named} --for gone"), app.progress(events=events) as progress:
        return tear_down(app.context(progress), targets, policy, by=by, wait=wait)


def _confirm(app: App, targets: list[Target], *, yes: bool) -> None:
    """Ask whether these may be deleted. Raises `NotConfirmedError` for a no."""
    once = distinct(targets)
    what = ", ".join(f"{_what(target)} `{target.name.node_id}` in {target.name.zone}" for target in once)
    disks = sum(target.node is not None for target in once)
    also = {0: "", 1: ", with its boot disk"}.get(disks, ", with their boot disks")
    if targets and not app.terminal.confirm(f"delete {what}{also}?", yes=yes):
        raise NotConfirmedError("nothing was done")


def _made_meanwhile(app: App, context: Context, reference: NodeReference, *, by: str) -> Target | None:
    """Take what is not there from whoever may be about to make it again, and return what they have made of it."""
    return find_target(context, app.place, reference) if end_absent(context, app.place, reference, by=by) else None


def _ids(targets: list[Target]) -> set[str]:
    return {target.name.node_id for target in targets}


def _step(target: Target) -> Step:
    owner = target.request.name if target.request else None
    return Step(Verb.DELETE, target.name, _what(target), queued_resource=owner)


def _what(target: Target) -> str:
    """Return in words what is deleted."""
    node = f"the {target.node.accelerator_type} node ({target.node.state})" if target.node else ""
    if target.request is None:
        return node
    request = f"the queued resource `{target.request.queued_resource_id}` ({target.request.state})"
    if len(target.request.node_ids) > 1:
        request += f" for {', '.join(target.request.node_ids)}"
    return f"{request} with {node}" if node else f"{request} of"
