"""`tpuctl start`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpuctl.app.options import (
    cli_command,
    dry_run_option,
    events_option,
    force_lease_option,
    no_wait_option,
    nodes_argument,
    skip_validation_option,
    timeout_option,
)
from tpuctl.nodes.actions import needs_start, start_node
from tpuctl.nodes.commands.state_changes import change_nodes
from tpuctl.nodes.conditions import Condition, Verb

if TYPE_CHECKING:
    from datetime import timedelta

    from tpuctl.app.app import App


@cli_command("start")
@nodes_argument
@timeout_option
@no_wait_option
@skip_validation_option
@force_lease_option
@events_option
@dry_run_option
def command(
    app: App,
    *,
    nodes: tuple[str, ...],
    timeout: timedelta | str | None,
    no_wait: bool,
    skip_validation: bool,
    force_lease: bool,
    events: str | None,
    dry_run: bool,
) -> int:
    """Start stopped nodes and wait until they are READY. A start fails if the zone has no free capacity.

    \b
    Examples:
      tpuctl start trainer
      tpuctl start trainer-0 trainer-1 --no-wait
    """
    return change_nodes(
        app,
        nodes,
        partial(start_node, skip_validation=skip_validation, force_lease=force_lease),
        is_needed=partial(needs_start, skip_validation=skip_validation),
        verb=Verb.START,
        goal=Condition.READY,
        timeout=timeout,
        wait=not no_wait,
        events=events,
        dry_run=dry_run,
    )
