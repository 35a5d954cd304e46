"""`tpuctl reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.cli.dry_run import show_plan
from tpuctl.cli.options import (
    cli_command,
    dry_run_option,
    events_option,
    node_argument,
    steal_option,
    timeout_option,
    yes_option,
)
from tpuctl.cli.policy import deadline, in_time, level_option, reachable_goal
from tpuctl.cli.reach_options import reach_options, with_reachable_goal
from tpuctl.errors import NotConfirmedError
from tpuctl.plan import ResetMode, Step, reset_mode
from tpuctl.readiness import Policy, Verb

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.cli.app import App

_VERBS = {
    ResetMode.RESTART: (Verb.STOP, Verb.START),
    ResetMode.REBOOT: (Verb.REBOOT,),
    ResetMode.RECREATE: (Verb.DELETE, Verb.CREATE),
}
_QUESTIONS = {
    ResetMode.RESTART: "restart `{}` (terminates what runs on it, keeps its boot disk; the start needs free capacity)?",
    ResetMode.REBOOT: "reboot every worker of `{}` (terminates what runs on it, keeps its boot disk)?",
    ResetMode.RECREATE: "delete `{}` and its boot disk, and recreate it?",
}


@cli_command("reset")
@node_argument
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in ResetMode]),
    default="auto",
    show_default=True,
    help="How to reset the node.",
)
@level_option
@reach_options
@timeout_option
@steal_option
@events_option
@dry_run_option
@yes_option
def command(
    app: App,
    *,
    node: str,
    mode: str,
    goal: str | None,
    timeout: timedelta | str | None,
    events: str | None,
    dry_run: bool,
    force_lease: bool,
    yes: bool,
) -> None:
    """Restart, reboot or recreate a node, and wait until it is usable again.

    The mode auto stops and starts the node if the API allows that, else it reboots the workers over ssh. Both keep the boot
    disk. Only recreate deletes it. A reboot needs workers that answer ssh.

    \b
    Examples:
      tpuctl reset trainer
      tpuctl reset trainer --mode recreate --yes
    """
    from tpuctl.actions.reset import reset  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.cli.keeping import let_go  # noqa: PLC0415  # as above
    from tpuctl.cli.results import show_node  # noqa: PLC0415  # as above

    with in_time(app, deadline(app, timeout)):
        found = app.find(node)
    chosen = reset_mode(found, ResetMode(mode))
    if dry_run:
        steps = tuple(Step(verb, found.name, "requested") for verb in _VERBS[chosen])
        show_plan(app, steps, spec=None, node=found)
        return
    if not app.terminal.confirm(_QUESTIONS[chosen].format(found.name.node_id), yes=yes):
        raise NotConfirmedError("nothing was done")
    policy = Policy(goal=reachable_goal(app, goal), timeout=deadline(app, timeout))
    policy = with_reachable_goal(app, policy, found.name, goal=goal, node=found)
    full_name = f"{found.name.zone}/{found.name.node_id}"
    with (
        app.progress(events=events) as progress,
        app.in_flight(
            f"the reset of `{full_name}` has begun; the node may be stopped or deleted now",
            resume=f"tpuctl up {full_name}",
        ),
    ):
        outcome = reset(app.context(progress), found, chosen, policy, steal=force_lease)
    let_go(app, [found])
    if outcome.node is not None:
        show_node(app, outcome.node)
