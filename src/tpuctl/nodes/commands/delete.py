"""`tpuctl delete`."""

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
from tpuctl.nodes.commands.state_changes import delete_nodes
from tpuctl.nodes.rendering import show_deleted
from tpuctl.nodes.tear_down import absent_error

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App


@cli_command("delete")
@nodes_argument
@click.option("--ignore-not-found", is_flag=True, help="Succeed if a node does not exist.")
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
    ignore_not_found: bool,
    all_nodes: bool,
    timeout: timedelta | str | None,
    no_wait: bool,
    events: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete nodes with their boot disks and wait until they are gone. If one does not exist, none is deleted (exit code 3).

    \b
    Examples:
      tpuctl delete trainer
      tpuctl delete trainer-0 trainer-1 --yes --ignore-not-found
    """
    result = delete_nodes(
        app,
        nodes,
        all_nodes=all_nodes,
        timeout=timeout,
        wait=not no_wait,
        events=events,
        dry_run=dry_run,
        yes=yes,
        by="delete",
        strict=not ignore_not_found,
    )
    for reference in result.missing:
        app.terminal.note(absent_error(reference, app.place).message)
    if not dry_run:
        show_deleted(app, [target.asked for target in result.targets])
    return result.exit_code(app)
