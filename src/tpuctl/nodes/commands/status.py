"""`tpuctl status`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.app.options import cli_command, nodes_argument
from tpuctl.nodes.rendering import node_details, nodes_view

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.output.terminal import Terminal


@cli_command("status", is_short=True)
@nodes_argument
def command(app: App, *, nodes: tuple[str, ...]) -> None:
    """Show all details of nodes: state, health, workers, addresses, symptoms, maintenance.

    \b
    Examples:
      tpuctl status trainer
      tpuctl status us-central2-b/trainer -o yaml
      test "$(tpuctl status trainer -o json | jq -r .health)" = HEALTHY
    """
    found = [app.find(node) for node in nodes]

    def show(terminal: Terminal) -> None:
        for index, node in enumerate(found):
            if index:
                terminal.write("")
            terminal.details(node_details(node, app.now()))

    app.show(replace(nodes_view(found, app.now(), is_list=False), text=show))
