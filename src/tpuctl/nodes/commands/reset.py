"""`tpuctl reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    force_lease_option,
    node_argument,
    timeout_option,
    yes_option,
)
from tpuctl.app.ssh_options import close_shared_connections, route_options, with_reachable_goal
from tpuctl.errors import NotConfirmedError
from tpuctl.nodes.actions import reset_node
from tpuctl.nodes.commands.busy_nodes import if_idle_option, use_in_question
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.policy_options import choose_goal, deadline, level_option, within_deadline
from tpuctl.nodes.conditions import Policy, Verb
from tpuctl.nodes.plan import PlanStep, ResetMode, reset_mode
from tpuctl.nodes.rendering import show_node

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App

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
    help="Stop and start the node, reboot its workers, or delete and recreate it; auto keeps the disk.",
)
@level_option
@route_options
@timeout_option
@force_lease_option
@if_idle_option
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
    if_idle: bool,
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
    with within_deadline(app, deadline(app, timeout)):
        found = app.find(node)
    chosen = reset_mode(found, ResetMode(mode))
    if dry_run:
        steps = tuple(PlanStep(verb, found.name, "requested") for verb in _VERBS[chosen])
        show_plan(app, steps, spec=None, node=found)
        return
    in_use = use_in_question(app, [found], if_idle=if_idle, yes=yes)
    if not app.terminal.confirm(in_use + _QUESTIONS[chosen].format(found.name.node_id), yes=yes):
        raise NotConfirmedError("nothing was done")
    policy = Policy(goal=choose_goal(app, goal), timeout=deadline(app, timeout))
    policy = with_reachable_goal(app, policy, found.name, goal=goal, node=found)
    full_name = f"{found.name.zone}/{found.name.node_id}"
    with (
        app.progress(events=events) as progress,
        app.in_flight(
            f"the reset of `{full_name}` has begun; the node may be stopped or deleted now",
            resume=f"tpuctl up {full_name}",
        ),
    ):
        outcome = reset_node(app.context(progress), found, chosen, policy, force_lease=force_lease)
    close_shared_connections(app, [found])
    if outcome.node is not None:
        show_node(app, outcome.node)
