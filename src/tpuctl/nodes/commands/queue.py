"""`tpuctl queue`: list, show, await, cancel and retry queued resources."""

from __future__ import annotations

import click

from tpuctl.app.lazy_import import body_in, constant_in
from tpuctl.app.option_help import OptionGroup, grouped_option
from tpuctl.app.options import (
    DurationType,
    LazyGroup,
    TableOptions,
    cli_command,
    events_option,
    force_lease_option,
    no_wait_option,
    takes_options,
    timeout_option,
)
from tpuctl.app.value_completion import complete_columns, complete_node
from tpuctl.check.commands.preflight_options import check_options
from tpuctl.nodes.commands.change_options import change_options
from tpuctl.nodes.request_steps import RequestGoal

_QUEUE_HELP = """Show, await, cancel and retry queued resources: requests for nodes that wait for capacity.

`tpuctl up NODE --queue` makes one. A queued resource counts against the quota until it is deleted, also if it FAILED.
NAME is the id of a queued resource or of one of its nodes, ZONE/NAME, or a full resource name.
"""
_QUEUE_COMMANDS = {
    "list": ("tpuctl.nodes.commands.queue:queue_list", "List queued resources in all zones."),
    "status": ("tpuctl.nodes.commands.queue:queue_status", "Show all details of a queued resource and its nodes."),
    "wait": ("tpuctl.nodes.commands.queue:queue_wait", "Wait until a queued resource is ACTIVE or gone."),
    "cancel": ("tpuctl.nodes.commands.queue:queue_cancel", "Delete queued resources and wait until they are gone."),
    "retry": ("tpuctl.nodes.commands.queue:queue_retry", "Request the node of a FAILED queued resource again."),
}

queue_group = LazyGroup(
    _QUEUE_COMMANDS,
    name="queue",
    help=_QUEUE_HELP,
    no_args_is_help=True,
    aliases={"ls": "list", "describe": "status", "rm": "cancel"},
    elsewhere={"delete": "cancel", "down": "cancel", "show": "status", "create": "retry"},
)
_name_argument = click.argument("name", metavar="NAME", shell_complete=complete_node)


@cli_command(
    "list", is_short=True, shows={"zone": "Zone to list, or several as ZONE,ZONE. [default: all]", "output": None}
)
@takes_options(
    TableOptions, "table", shell_complete=complete_columns(constant_in("tpuctl.nodes.queue_rendering:QUEUE_COLUMNS"))
)
@body_in("tpuctl.nodes.commands.queue_run:run_queue_list")
def queue_list() -> None:
    """List the queued resources in all zones of the project. The exit code is 1 if a zone did not answer.

    IN STATE counts from the time at which tpuctl first saw the state, or with ≤ from the creation: the API has no other time.

    \b
    Examples:
      tpuctl queue list
      tpuctl queue list --zone us-central1-a,us-east5-b
      tpuctl queue list -o json | jq -r '.[] | select(.state.state == "FAILED") | .queuedResourceId'
    """


@cli_command("status", is_short=True)
@_name_argument
@body_in("tpuctl.nodes.commands.queue_run:run_queue_status")
def queue_status() -> None:
    """Show all details of a queued resource: its state, limits, nodes, and why it FAILED.

    \b
    Examples:
      tpuctl queue status trainer
      tpuctl queue status us-central1-a/trainer -o yaml
    """


@cli_command("wait")
@_name_argument
@grouped_option(
    "--for",
    "goal",
    group=OptionGroup.READINESS,
    type=click.Choice([str(goal) for goal in RequestGoal]),
    default=str(RequestGoal.ACTIVE),
    show_default=True,
    help="Condition to wait for.",
)
@timeout_option
@events_option
@body_in("tpuctl.nodes.commands.queue_change_run:run_queue_wait")
def queue_wait() -> None:
    """Wait until a queued resource is ACTIVE, so that its nodes exist, or until it is gone. Changes nothing.

    Same as `tpuctl wait NAME --for active`. A request that FAILED ends the wait with the exit code of its error: 6 no capacity,
    7 quota, 5 not in time. One that was suspended ends it with 8.

    \b
    Examples:
      tpuctl queue wait trainer --timeout 6h
      tpuctl queue wait trainer --for gone
    """


@cli_command("cancel")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_node)
@change_options(
    grouped_option(
        "--all-nodes",
        group=OptionGroup.SAFETY,
        is_flag=True,
        help="Cancel a queued resource with all its nodes, if it has several.",
    ),
    no_wait_option,
)
@body_in("tpuctl.nodes.commands.queue_change_run:run_queue_cancel")
def queue_cancel() -> None:
    """Delete queued resources and wait until they are gone, so that nothing waits and the quota is free.

    Asks before it deletes one whose node exists, as `tpuctl down NODE` does. One that is SUSPENDING is deleted after that.

    \b
    Examples:
      tpuctl queue cancel trainer
      tpuctl queue cancel sweep --all-nodes --yes
    """


@cli_command("retry")
@_name_argument
@grouped_option(
    "--queue-for",
    group=OptionGroup.PURCHASE,
    type=DurationType(),
    metavar="TIME",
    help="Time that the new queued resource waits for capacity, at least 1m. [default: --timeout]",
)
@check_options
@timeout_option
@force_lease_option
@events_option
@body_in("tpuctl.nodes.commands.queue_change_run:run_queue_retry")
def queue_retry() -> None:
    """Request the node of a queued resource again, and wait until it is usable.

    Same as `tpuctl up NODE` with the spec of the journal, else of the queued resource: deletes one that FAILED, or that the
    service SUSPENDED, and waits for one that still waits.

    \b
    Examples:
      tpuctl queue retry trainer
      tpuctl queue retry trainer --queue-for 12h
    """
