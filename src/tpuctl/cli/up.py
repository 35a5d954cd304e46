"""`tpuctl up`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from tpuctl.cli.options import (
    anyway_option,
    cli_command,
    dry_run_option,
    events_option,
    no_wait_option,
    node_argument,
    timeout_option,
    yes_option,
)
from tpuctl.cli.spec import build_spec, spec_options, take_spec
from tpuctl.readiness import Repair, Seen

if TYPE_CHECKING:
    from tpuctl.cli.app import App
    from tpuctl.events import Event
    from tpuctl.model import Difference, Node, NodeSpec
    from tpuctl.names import NodeName


@cli_command("up")
@node_argument
@spec_options
@click.option("--for", "goal", type=click.Choice(["ready", "healthy", "ssh"]), help="What usable means. [default: ssh]")
@click.option("--replace", is_flag=True, help="Delete and make anew a node that differs.")
@click.option(
    "--repair", type=click.Choice([str(step) for step in Repair]), help="How far a repair may go. [default: restart]"
)
@click.option("--max-restarts", type=click.IntRange(min=0), help="Restarts before giving up. [default: 2]")
@click.option("--max-recreates", type=click.IntRange(min=0), help="Recreations before giving up. [default: 1]")
@timeout_option
@no_wait_option
@anyway_option
@events_option
@dry_run_option
@yes_option
def command(
    app: App, *, node: str, dry_run: bool, no_wait: bool, anyway: bool, yes: bool, **options: Any
) -> None:  # click's options
    """Bring a node up, from whatever is there, and wait until it is usable.

    Creates it when there is none, starts it when it is stopped, makes it again when it was preempted, restarts it when it
    comes up broken. Run it again at any time: it goes on from what it finds.

    \b
    Examples:
      tpuctl up trainer --type v4-8 --zone us-central2-b
      tpuctl up trainer --type v5litepod-16 --spot --timeout 2h
      tpuctl up trainer          (as it was before)
    """
    from tpuctl.actions.bring_up import bring_up  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.dry_run import show_plan  # noqa: PLC0415  # as above
    from tpuctl.cli.policy import ready_policy  # noqa: PLC0415  # as above
    from tpuctl.cli.results import show_node  # noqa: PLC0415  # as above
    from tpuctl.plan import steps  # noqa: PLC0415  # as above

    spec = build_spec(app, take_spec(options), anyway=anyway)
    events = options.pop("events")
    policy = ready_policy(app, forced=yes, **options)
    name, found, spec = _settle(app, node, spec, yes=yes or dry_run, anyway=anyway)
    differences = spec.differences(found) if spec and found else ()
    if dry_run:
        show_plan(app, steps(policy, Seen(name=name, node=found, differences=differences)), spec=spec, node=found)
        return
    # What was not there to be looked at was not confirmed either.
    policy = dataclasses.replace(policy, replace=policy.replace and bool(differences))
    if policy.replace:
        _confirm_replacement(app, name, differences, yes=yes)
    undo = f"tpuctl down {name.zone}/{name.node_id}"
    with (
        app.progress(events=events) as progress,
        app.going_on(lambda: _going_on(name, progress.last), resume=app.command_line(), undo=undo),
    ):
        outcome = bring_up(app.context(progress), name, spec, policy, once=no_wait)
    if outcome.node is not None:
        show_node(app, outcome.node)


def _settle(
    app: App, text: str, spec: NodeSpec | None, *, yes: bool, anyway: bool
) -> tuple[NodeName, Node | None, NodeSpec | None]:
    """Return which node it is about, what is there, and what it is to be; no spec where it is taken as it is."""
    from tpuctl.actions.bring_up import check_type  # noqa: PLC0415  # completion and --help need not wait for it
    from tpuctl.cli.target import remembered_spec, where_to_create  # noqa: PLC0415  # as above

    name, found = where_to_create(app, text, spec)
    if spec is None and found is None:
        spec = remembered_spec(app, name, yes=yes)
    if found is None and spec is not None and not anyway:
        check_type(app.client, name.project, name.zone, spec)
    return name, found, spec


def _confirm_replacement(app: App, name: NodeName, differences: tuple[Difference, ...], *, yes: bool) -> None:
    from tpuctl.cli.ending import NotConfirmedError  # noqa: PLC0415  # completion and --help need not wait for it

    what = "; ".join(map(str, differences))
    if not app.terminal.confirm(f"delete `{name.node_id}` and its boot disk, to make it anew ({what})?", yes=yes):
        raise NotConfirmedError("nothing was done")


def _going_on(name: NodeName, last: Event | None) -> str:
    """Return what an interruption leaves behind in the cloud."""
    known = f"the last that is known of it: {last.text.removeprefix('it is ')}" if last else "nothing was asked for yet"
    return f"`{name.node_id}` in {name.zone} bills as soon as it runs ({known})"
