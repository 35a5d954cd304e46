"""`tpuctl reset`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import cli_command, force_lease_option, if_idle_option
from tpuctl.app.route_options import route_options
from tpuctl.app.ssh_options import close_shared_connections, with_reachable_goal
from tpuctl.check.preflight import preflight_check
from tpuctl.nodes.actions import NodeReset, reset_nodes
from tpuctl.nodes.commands.change_frame import NodeChange, full_names
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.commands.policy_options import level_option
from tpuctl.nodes.commands.selected_changes import name_nodes
from tpuctl.nodes.commands.selection_options import selection_options
from tpuctl.nodes.conditions import Policy, Verb
from tpuctl.nodes.plan import PlanStep, ResetMode, reset_mode
from tpuctl.nodes.policies import choose_goal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpuctl.app.app import App
    from tpuctl.errors import TpuctlError
    from tpuctl.models.node import Node
    from tpuctl.nodes.commands.change_options import ChangeOptions
    from tpuctl.nodes.commands.selection_options import GivenSelection
    from tpuctl.nodes.controller import NodeResult

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
@change_options(force_lease_option, if_idle_option)
def command(app: App, *, selection: GivenSelection, options: ChangeOptions, mode: str, goal: str | None) -> int:
    """Restart, reboot or recreate nodes, and wait until they are usable again.

    The mode auto stops and starts a node if the API allows that, else it reboots the workers over ssh. Both keep the boot
    disk. Only recreate deletes it. A reboot needs workers that answer ssh.

    \b
    Examples:
      tpuctl reset trainer
      tpuctl reset trainer --mode recreate --yes
      tpuctl reset -l team=vision --mode reboot
    """
    return Reset(app=app, options=options, selection=selection.parse(app), mode=ResetMode(mode), goal=goal).run()


@dataclass(kw_only=True)
class Reset(NodeChange[ResetMode]):
    """Reset nodes, each in a mode that the API allows, and wait until they are usable. Asks about each."""

    mode: ResetMode
    goal: str | None  # None: ssh, where workers can be reached

    def plan(self, node: Node) -> ResetMode:
        """Return how to reset a node."""
        return reset_mode(node, self.mode)

    def step(self, node: Node, work: ResetMode) -> PlanStep:
        """Return the first request of the reset."""
        return PlanStep(_VERBS[work], node.name, "requested")

    def question(self, items: Sequence[tuple[Node, ResetMode | None]]) -> str:
        """Return what happens to which nodes."""
        parts = []
        for each, text in _QUESTIONS.items():
            names = [node.name for node, mode in items if mode is each]
            parts += [text.format(name_nodes(names))] if names else []
        kept = [node.name for node, mode in items if mode is ResetMode.RECREATE and node.is_kept]
        parts += [f"kept by the label `tpuctl-keep`: {name_nodes(kept)}"] if kept else []
        return "; ".join(parts)

    def send(self, items: Sequence[tuple[Node, ResetMode | None]]) -> Sequence[NodeResult | TpuctlError]:
        """Reset the nodes, and wait for all of them."""
        app, nodes = self.app, [node for node, _ in items]
        policy = Policy(goal=choose_goal(app, self.goal), timeout=self.timeout)
        resets = [
            NodeReset(node, mode, with_reachable_goal(app, policy, node.name, goal=self.goal, node=node))
            for node, mode in items
            if mode is not None
        ]
        names, began = full_names(nodes), "the node may be" if len(nodes) == 1 else "the nodes may be"
        with self.working(
            f"the reset of `{names}` has begun; {began} stopped or deleted now",
            resume=f"tpuctl up {names}",
            preflight=preflight_check(app, {}, only_limits=True),
        ) as context:
            results = reset_nodes(
                context,
                resets,
                recheck=self.recheck,
                still_meant=self.require_meant,
                force_lease=self.options.force_lease,
            )
        close_shared_connections(app, nodes)
        return results
