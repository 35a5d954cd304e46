"""`tpuctl stop`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    no_wait_option,
    nodes_argument,
    skip_validation_option,
    timeout_option,
)
from tpuctl.nodes.actions import needs_stop, stop_node
from tpuctl.nodes.commands.state_changes import change_nodes
from tpuctl.nodes.conditions import Condition, Verb

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App


@cli_command("stop")
@nodes_argument
@timeout_option
@no_wait_option
@skip_validation_option
@events_option
@dry_run_option
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    timeout: timedelta | str | None,
    no_wait: bool,
    skip_validation: bool,
    events: str | None,
    dry_run: bool,
) -> int:
    """Stop nodes, keeping their boot disks, and wait until they are STOPPED. Slices and queued nodes cannot be stopped.

    \b
    Examples:
      tpuctl stop trainer
      tpuctl stop trainer-0 trainer-1 --no-wait
    """
    return change_nodes(
        app,
        nodes,
        partial(stop_node, skip_validation=skip_validation),
        is_needed=partial(needs_stop, skip_validation=skip_validation),
        verb=Verb.STOP,
        goal=Condition.STOPPED,
        timeout=timeout,
        wait=not no_wait,
        events=events,
        dry_run=dry_run,
    )
