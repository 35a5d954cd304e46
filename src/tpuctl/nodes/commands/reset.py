"""`tpuctl reset`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    force_lease_option,
    if_idle_option,
    timeout_option,
    yes_option,
)
from tpuctl.app.route_options import route_options
from tpuctl.app.ssh_options import close_shared_connections, with_reachable_goal
from tpuctl.check.preflight import preflight_check
from tpuctl.errors import NotConfirmedError, TpuctlError
from tpuctl.nodes.actions import NodeReset, reset_nodes
from tpuctl.nodes.busy_nodes import use_in_question
from tpuctl.nodes.commands.dry_run import show_plan
from tpuctl.nodes.commands.policy_options import level_option
from tpuctl.nodes.commands.selected_changes import (
    name_nodes,
    require_selected,
    selection_check,
    show_selected,
    without_kept,
)
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.commands.state_changes import show_refusals
from tpuctl.nodes.conditions import Policy, Verb
from tpuctl.nodes.node_lookup import report_silent_zones, select_nodes
from tpuctl.nodes.plan import PlanStep, ResetMode, reset_mode
from tpuctl.nodes.policies import choose_goal, deadline, within_deadline
from tpuctl.nodes.rendering import show_results

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from tpuctl.app.app import App
    from tpuctl.models.node import Node
    from tpuctl.nodes.commands.selection_options import GivenSelection

_VERBS = {
    ResetMode.RESTART: Verb.STOP,
    ResetMode.REBOOT: Verb.REBOOT,
    ResetMode.RECREATE: Verb.DELETE,
}
_QUESTIONS = {
    ResetMode.RESTART: "restart {} (terminates what runs on it, keeps its boot disk; the start needs free capacity)",
    ResetMode.REBOOT: "reboot every worker of {} (terminates what runs on it, keeps its boot disk)",
    ResetMode.RECREATE: "delete {} and its boot disk, and recreate it",
}


@cli_command("reset")
@selection_options()
@grouped_option(
    "--mode",
    group=OptionGroup.REPAIR,
    type=click.Choice([str(mode) for mode in ResetMode]),
    default="auto",
    show_default=True,
    help="How the node is reset: restart (stop and start), reboot (its workers, over ssh), recreate (delete and create), "
    "or auto: restart if the API allows it, else reboot.",
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
    selection: GivenSelection,
    mode: str,
    goal: str | None,
    timeout: timedelta | str | None,
    events: str | None,
    dry_run: bool,
    force_lease: bool,
    if_idle: bool,
    yes: bool,
) -> int:
    """Restart, reboot or recreate nodes, and wait until they are usable again.

    The mode auto stops and starts a node if the API allows that, else it reboots the workers over ssh. Both keep the boot
    disk. Only recreate deletes it. A reboot needs workers that answer ssh.

    \b
    Examples:
      tpuctl reset trainer
      tpuctl reset trainer --mode recreate --yes
      tpuctl reset -l team=vision --mode reboot
    """
    asked = selection.parse(app)
    with within_deadline(app, deadline(app, timeout)):
        selected = select_nodes(app, asked)
    chosen: list[tuple[Node, ResetMode]] = []
    refused: list[TpuctlError] = []
    for node in without_kept(app, asked, selected.nodes):
        try:
            chosen.append((node, reset_mode(node, ResetMode(mode))))
        except TpuctlError as error:
            if asked.is_by_name:
                raise
            refused.append(error)
    nodes = [node for node, _ in chosen]
    if dry_run:
        steps = tuple(PlanStep(_VERBS[each], node.name, "requested") for node, each in chosen)
        show_plan(app, steps)
        return report_silent_zones(app, selected.unreachable, show_refusals(app, refused))
    if not asked.is_by_name:
        show_selected(app, nodes, refused)
    in_use = use_in_question(app, nodes, if_idle=if_idle, yes=yes)
    if nodes and not app.terminal.confirm(in_use + _question(chosen), yes=yes):
        raise NotConfirmedError("nothing was done")
    policy = Policy(goal=choose_goal(app, goal), timeout=deadline(app, timeout))
    resets = [
        NodeReset(node, each, with_reachable_goal(app, policy, node.name, goal=goal, node=node))
        for node, each in chosen
    ]
    names = " ".join(f"{node.name.zone}/{node.name.node_id}" for node in nodes)
    began = "the node may be" if len(nodes) == 1 else "the nodes may be"
    with (
        app.progress(events=events) as progress,
        app.in_flight(f"the reset of `{names}` has begun; {began} stopped or deleted now", resume=f"tpuctl up {names}"),
    ):
        recheck = selection_check(app, asked, leaves_kept=True)
        still_meant = partial(require_selected, app, asked, leaves_kept=True)
        context = app.context(progress, preflight=preflight_check(app, {}, only_limits=True))
        outcomes = reset_nodes(context, resets, recheck=recheck, still_meant=still_meant, force_lease=force_lease)
    close_shared_connections(app, nodes)
    return report_silent_zones(app, selected.unreachable, show_results(app, [*outcomes, *refused]))


def _question(chosen: Sequence[tuple[Node, ResetMode]]) -> str:
    """Return what to ask: what happens to which nodes."""
    parts = []
    for each, text in _QUESTIONS.items():
        names = [node.name for node, mode in chosen if mode is each]
        parts += [text.format(name_nodes(names))] if names else []
    kept = [node.name for node, mode in chosen if mode is ResetMode.RECREATE and node.is_kept]
    parts += [f"kept by the label `tpuctl-keep`: {name_nodes(kept)}"] if kept else []
    return f"{'; '.join(parts)}?"
