"""`tpuctl status`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.options import cli_command, nodes_argument
from tpuctl.nodes.rendering import node_details, show_nodes
from tpuctl.output.terminal import OutputFormat

if TYPE_CHECKING:
    from tpuctl.app.app import App


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
    if app.format is not OutputFormat.TABLE:
        show_nodes(app, found)
        return
    terminal, now = app.terminal, app.now()
    for index, node in enumerate(found):
        if index:
            terminal.write("")
        terminal.details(node_details(node, now))
