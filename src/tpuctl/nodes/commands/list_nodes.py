"""`tpuctl list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.app.options import cli_command
from tpuctl.nodes.locate import incomplete_list_error, queued_resources_or_none
from tpuctl.nodes.rendering import NODE_HEADER, dead_request_line, node_json, node_rows, unreachable_rows
from tpuctl.output.terminal import View

if TYPE_CHECKING:
    from tpuctl.app.app import App
    from tpuctl.output.terminal import Terminal


@cli_command("list", is_short=True)
def command(app: App) -> None:
    """List nodes in all zones of the project.

    Searches all zones even if one is configured; `--zone` limits the search. The exit code is 1 if a zone did not answer.

    \b
    Examples:
      tpuctl list
      tpuctl list --zone us-central2-b,us-central1-a
      tpuctl list -o json | jq -r '.[] | select(.state == "READY") | .nodeId'
    """
    listing = app.client.list_nodes(app.project, app.zones)
    nodes = sorted(listing.nodes, key=lambda node: (node.name.zone, node.name.node_id))

    def show(terminal: Terminal) -> None:
        table = node_rows(nodes, app.now())
        if terminal.is_interactive:
            table += unreachable_rows(listing.unreachable)
        if table or not terminal.is_interactive:
            terminal.table(NODE_HEADER, table)
        else:
            terminal.note(f"no nodes in {', '.join(app.zones) or 'any zone'} of project {app.project}")
        if terminal.is_interactive and (
            line := dead_request_line(queued_resources_or_none(app.client, app.project, app.zones))
        ):
            terminal.note(line)

    app.show(
        View(
            value=lambda: [node_json(node) for node in nodes],
            names=lambda: [node.name.node_id for node in nodes],
            text=show,
        )
    )
    if listing.unreachable:
        raise incomplete_list_error(listing.unreachable)
