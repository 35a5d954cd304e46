"""`tpuctl down`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    no_wait_option,
    nodes_argument,
    timeout_option,
    yes_option,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App


@cli_command("down")
@nodes_argument
@click.option("--all-nodes", is_flag=True, help="Delete a queued resource with all its nodes.")
@timeout_option
@no_wait_option
@events_option
@dry_run_option
@yes_option
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    all_nodes: bool,
    timeout: timedelta | str | None,
    no_wait: bool,
    events: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete nodes, the queued resources that own them, and preempted nodes of that name, so that nothing bills.

    Prints "already gone" only after a search of all zones for nodes and queued resources.

    \b
    Examples:
      tpuctl down trainer
      tpuctl down trainer-0 trainer-1 --yes
    """
    from tpuctl.nodes.commands.state_changes import delete_nodes  # noqa: PLC0415  # not needed by --help and completion
    from tpuctl.nodes.rendering import show_deleted  # noqa: PLC0415  # as above

    result = delete_nodes(
        app,
        nodes,
        all_nodes=all_nodes,
        timeout=timeout,
        wait=not no_wait,
        events=events,
        dry_run=dry_run,
        yes=yes,
        by="down",
    )
    for reference in result.missing:
        app.terminal.note(f"{reference.node_id}: already gone")
    if not dry_run:
        show_deleted(app, [*(target.asked for target in result.targets), *(entry.node_id for entry in result.missing)])
    return result.exit_code(app)
