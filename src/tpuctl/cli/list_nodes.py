"""`tpuctl list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.actions.locate import incomplete, requests_to_mention
from tpuctl.cli.options import cli_command
from tpuctl.output import nodes as shown
from tpuctl.output.terminal import Format

if TYPE_CHECKING:
    from tpuctl.cli.app import App


@cli_command("list", is_short=True)
def command(app: App) -> None:
    """List the nodes of all zones of the project.

    Only `--zone` narrows it; a zone that is merely configured does not. Ends with exit code 1 when a zone could not be asked.

    \b
    Examples:
      tpuctl list
      tpuctl list --zone us-central2-b,us-central1-a
      tpuctl list -o json | jq -r '.[] | select(.state == "READY") | .nodeId'
    """
    listing = app.client.list_nodes(app.project, app.zones)
    nodes = sorted(listing.nodes, key=lambda node: (node.name.zone, node.name.node_id))
    terminal = app.terminal
    match app.format:
        case Format.JSON | Format.YAML:
            terminal.data([shown.to_json(node, sandbox=app.is_sandbox) for node in nodes], app.format)
        case Format.NAME:
            terminal.names(node.name.node_id for node in nodes)
        case Format.TABLE:
            rows = shown.rows(nodes, app.now())
            if terminal.is_interactive:
                rows += shown.unreachable_rows(listing.unreachable)
            if rows or not terminal.is_interactive:
                terminal.table(shown.HEADER, rows)
            else:
                terminal.note(f"no nodes in {', '.join(app.zones) or 'any zone'} of project {app.project}")
    if terminal.is_interactive and app.format is Format.TABLE:
        line = shown.held_by_dead(requests_to_mention(app.client, app.project, app.zones))
        if line:
            terminal.note(line)
    if listing.unreachable:
        raise incomplete(listing.unreachable)
